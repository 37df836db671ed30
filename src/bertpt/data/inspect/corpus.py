"""``bertpt inspect corpus``: what the documents are like, and what became of the rest."""

from __future__ import annotations

import hashlib
import heapq
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertpt.config import Config
from bertpt.config.schema import AnySource
from bertpt.data.corpus.documents import Document, iter_documents
from bertpt.data.corpus.gather import FrequentLines, RepeatedLines
from bertpt.data.corpus.report import CHANGES, ends_at_blank_lines
from bertpt.data.corpus.sizes import corpus_size
from bertpt.data.corpus.sources.base import source_labels
from bertpt.data.corpus.sources.local_files import human_size
from bertpt.data.inspect import layout
from bertpt.data.inspect.layout import Bucket, bars, histogram, sections, table
from bertpt.data.locate import documents_dir, finished, store_dir
from bertpt.data.stage import SPLITS
from bertpt.data.tokens.sentences import split_sentences
from bertpt.errors import RequestError
from bertpt.progress import Progress, counted

SENTENCE_LOWS = (1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025)
LETTER_LOWS = (1, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
PREPARED = {
    "documents_too_short": "documents below min_sentences dropped",
    "sentences_without_pieces": "sentences without any piece dropped",
    "sentences_cut": "overlong sentences cut",
    "words_over_100_letters": "words of more than 100 letters, each one [UNK]",
}
"""What `bertpt prepare` counts, in words."""
_WARN_ONE_SENTENCE = 0.1
_WARN_REPEATED = 0.1
_FREQUENT = 5
_FREQUENT_FROM = 3  # documents
# Keys of the manifest that are figures of their own here.
_FIGURES = {
    "documents", "heldout", "lines", "text_bytes", "one_line", "one_sentence", "median_lines", "duplicates",
    "repeated_lines_share",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """One source. ``documents`` to ``lines`` are exact; sentences are of the ``split_documents`` that were split."""

    label: str
    documents: int
    heldout: int
    text_bytes: int
    lines: int
    split_documents: int
    sentences: int
    median_sentences: float
    one_sentence_documents: int
    one_sentence_cause: str | None
    changes: dict[str, int]

    @property
    def one_sentence_share(self) -> float:
        """Documents of one sentence, as a share of those that were split."""
        return self.one_sentence_documents / max(self.split_documents, 1)


@dataclass(frozen=True, slots=True)
class Sample:
    """A document to read."""

    source: str
    name: str
    split: str
    sentences: list[str]


@dataclass(frozen=True, slots=True)
class CorpusFigures:
    """All that is known of a documents folder."""

    directory: str
    fingerprint: str
    is_fallback: bool
    sources: list[SourceFigures]
    sentences_per_document: list[Bucket]
    letters_per_document: list[Bucket]
    repeated_documents: int
    repeated_lines_share: float
    frequent_lines: dict[str, int]
    removed_lines: dict[str, int]
    prepared: dict[str, dict[str, int]]
    samples: list[Sample]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        value = asdict(self)
        for name in ("sentences_per_document", "letters_per_document"):
            value[name] = [bucket._asdict() for bucket in getattr(self, name)]
        return value

    def lines(self) -> list[str]:
        """For people."""
        return list(sections(_parts(self)))


@dataclass(slots=True)
class _Tally:
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    text_bytes: int = 0
    lines: int = 0
    sentences: array[int] = field(default_factory=lambda: array("q"))


def inspect_corpus(
    config: Config, *, samples: int = 3, seed: int = 0, split_documents: int = 100_000, progress: bool = True
) -> CorpusFigures:
    """Read all documents of a configuration.

    Args:
        config: ``data_dir`` and ``corpus`` are used.
        samples: how many documents are shown.
        seed: chooses them.
        split_documents: about so many are split into sentences, chosen by ``seed``; all where there are fewer.
        progress: show progress on stderr.

    Raises:
        RequestError: there are no finished documents, or they are damaged.
    """
    directory = documents_dir(config)
    manifest = finished(config, directory, "download")
    reader = _Reader(config, samples, seed, split_documents)
    total = sum(corpus_size(directory, split).documents for split in SPLITS)
    reader.share = min(1.0, split_documents / max(total, 1))
    with Progress("inspect corpus", unit="documents", total=total, shown=progress) as shown:
        for split in SPLITS:
            for document in iter_documents(directory, split):
                reader.take(document, split)
                shown.add()
    return reader.figures(directory, manifest, _prepared(config))


def _prepared(config: Config) -> dict[str, dict[str, int]]:
    """What the token store of this configuration left out or cut, by split; empty when there is none."""
    try:
        counts = finished(config, store_dir(config), "prepare")["counts"]
    except RequestError:
        return {}
    return {split: {key: counts[split].get(key, 0) for key in PREPARED} for split in SPLITS}


class _Reader:
    """Takes document by document; what it keeps of each is 24 bytes."""

    def __init__(self, config: Config, samples: int, seed: int, split_documents: int) -> None:
        self.corpus, self.count, self.seed, self.share = config.corpus, samples, seed, 1.0
        self.tallies: dict[str, _Tally] = {}
        self.hashes, self.letters = array("Q"), array("q")
        self.repeated, self.frequent = RepeatedLines(), FrequentLines()
        self.chosen: list[tuple[int, int, Document, str]] = []

    def take(self, document: Document, split: str) -> None:
        """Count a document, and keep it if it is among the samples."""
        tally = self.tallies.setdefault(document.source, _Tally())
        data = document.text.encode()
        lines = document.text.split("\n")
        tally.documents[split] += 1
        tally.text_bytes += len(data)
        tally.lines += len(lines)
        for line in lines:
            self.repeated.add(line)
        self.frequent.add(lines)
        self.letters.append(len(document.text))
        # By seed and text alone, so that a document is chosen whatever stands around it.
        digest = hashlib.blake2b(data, digest_size=16, key=str(self.seed).encode()).digest()
        draw = int.from_bytes(digest[8:], "big")
        self.hashes.append(int.from_bytes(digest[:8], "big"))
        if draw < self.share * 2**64:
            tally.sentences.append(len(split_sentences(document.text, self.corpus.language, self.corpus.sentences)))
        heapq.heappush(self.chosen, (-draw, len(self.hashes), document, split))
        if len(self.chosen) > self.count:
            heapq.heappop(self.chosen)

    def figures(
        self, directory: Path, manifest: Mapping[str, Any], prepared: dict[str, dict[str, int]]
    ) -> CorpusFigures:
        """Add it all up."""
        known = manifest["counts"].get("sources", {})
        chosen = self.corpus.fallback if manifest["counts"].get("is_fallback") else self.corpus.sources
        sources = dict(zip(source_labels(chosen), chosen, strict=True))
        sentences = [np.array(tally.sentences, np.int64) for tally in self.tallies.values()]
        return CorpusFigures(
            directory=str(directory),
            fingerprint=manifest["fingerprint"],
            is_fallback=bool(manifest["counts"].get("is_fallback")),
            sources=[
                self._source(label, tally, known.get(label, {}), sources) for label, tally in self.tallies.items()
            ],
            sentences_per_document=histogram(np.concatenate([np.empty(0, np.int64), *sentences]), SENTENCE_LOWS),
            letters_per_document=histogram(np.array(self.letters, np.int64), LETTER_LOWS),
            repeated_documents=len(self.hashes) - len(np.unique(np.array(self.hashes, np.uint64))),
            repeated_lines_share=self.repeated.share,
            frequent_lines=self.frequent.most(_FREQUENT, _FREQUENT_FROM),
            removed_lines=dict(manifest["counts"].get("repeated_lines", {}).get("examples", {})),
            prepared=prepared,
            samples=[
                Sample(document.source, document.name, split, self._sentences(document))
                for _, _, document, split in sorted(self.chosen, key=lambda entry: -entry[0])
            ],
        )

    def _sentences(self, document: Document) -> list[str]:
        return split_sentences(document.text, self.corpus.language, self.corpus.sentences)

    def _source(
        self, label: str, tally: _Tally, counts: Mapping[str, Any], sources: Mapping[str, AnySource]
    ) -> SourceFigures:
        sentences: NDArray[np.int64] = np.array(tally.sentences, np.int64)
        one = int((sentences == 1).sum())
        cause = None
        if one > _WARN_ONE_SENTENCE * len(sentences):
            cause = _cause(sources.get(label), self.corpus.sentences)
        return SourceFigures(
            label=label,
            documents=tally.documents["train"],
            heldout=tally.documents["heldout"],
            text_bytes=tally.text_bytes,
            lines=tally.lines,
            split_documents=len(sentences),
            sentences=int(sentences.sum()),
            median_sentences=float(np.median(sentences)) if len(sentences) else 0.0,
            one_sentence_documents=one,
            one_sentence_cause=cause,
            changes={key: value for key, value in counts.items() if key not in _FIGURES and isinstance(value, int)},
        )


def _cause(source: AnySource | None, sentences: str) -> str:
    """Why many documents are likely a single sentence, and what to set."""
    if sentences == "lines":
        return (
            "corpus.sentences: lines takes a whole line as one sentence; where lines are paragraphs, set"
            " corpus.sentences: split"
        )
    blank_line = "a blank line after every sentence; keep blank lines between documents only, or set documents: heading"
    rows = "rows or files that are single sentences; documents: group, heading or blank-line joins them"
    if source is None or not hasattr(source, "documents"):
        return "documents this short in the source; corpus.min_sentences=2 leaves them out"
    try:
        return blank_line if ends_at_blank_lines(source) else rows
    except RequestError:  # the files are gone
        return f"{blank_line}; or {rows}"


def _parts(figures: CorpusFigures) -> Iterator[tuple[str, list[str]]]:
    note = ", made from corpus.fallback" if figures.is_fallback else ""
    header = ("source", "train", "held out", "text", "lines", "sentences", "median", "one sentence")
    rows = [
        (
            source.label,
            f"{source.documents:,}",
            f"{source.heldout:,}",
            human_size(source.text_bytes),
            f"{source.lines:,}",
            f"{source.sentences:,}",
            f"{source.median_sentences:g}",
            f"{source.one_sentence_share:.1%}",
        )
        for source in figures.sources
    ]
    title = f"{figures.directory} (fingerprint {figures.fingerprint[:8]}{note})"
    yield title, [*table(header, rows), _legend(figures)]
    yield "Sentences in a document", bars(figures.sentences_per_document)
    yield "Letters in a document", bars(figures.letters_per_document)
    yield "Dropped, changed and counted on the way", _changes(figures)
    yield "To note", [f"  {line}" for line in _notes(figures)]
    for sample in figures.samples:
        shown = layout.shortened(" | ".join(sample.sentences[:12]), 600)
        number = counted(len(sample.sentences), "sentences")
        name = f"{sample.name} ({sample.source}, {sample.split}, {number}, parted by |)"
        yield f"Sample: {name}", layout.paragraph(shown)


def _lines_with_counts(lines: Mapping[str, int]) -> str:
    return ", ".join(f"{layout.shortened(line, 60)!r} ({count:,})" for line, count in list(lines.items())[:_FREQUENT])


def _legend(figures: CorpusFigures) -> str:
    split = sum(source.split_documents for source in figures.sources)
    total = sum(source.documents + source.heldout for source in figures.sources)
    legend = "  train, held out: documents; median: sentences in a document; one sentence: share of such documents"
    return legend if split == total else f"{legend}\n  Sentences are those of {split:,} of the {total:,} documents."


def _changes(figures: CorpusFigures) -> list[str]:
    lines = []
    for source in figures.sources:
        found = [counted(count, CHANGES.get(key, key.replace("_", " "))) for key, count in source.changes.items()]
        lines.append(f"  {source.label}: {'; '.join(found) or 'nothing'}")
    for split, counts in figures.prepared.items():
        found = [counted(count, PREPARED[key]) for key, count in counts.items() if count]
        lines.append(f"  token store, {split}: {'; '.join(found) or 'nothing'}")
    return lines


def _notes(figures: CorpusFigures) -> Iterator[str]:
    total = sum(source.documents + source.heldout for source in figures.sources)
    yield f"{figures.repeated_documents:,} of {counted(total, 'documents')} repeat another one word for word" + (
        "; corpus.deduplicate: documents keeps the first only" if figures.repeated_documents else ""
    )
    cleaned = "; was the text cleaned after scraping?" if figures.repeated_lines_share > _WARN_REPEATED else ""
    yield f"{figures.repeated_lines_share:.1%} of the lines repeat another line{cleaned}"
    if figures.frequent_lines:
        shown = _lines_with_counts(figures.frequent_lines)
        yield f"lines in most documents: {shown}; corpus.max_line_documents takes out those above a number"
    if figures.removed_lines:
        yield f"removed, with the documents they stood in: {_lines_with_counts(figures.removed_lines)}"
    for source in figures.sources:
        if source.one_sentence_cause:
            yield (
                f"{source.label}: {source.one_sentence_share:.0%} of the documents are a single sentence, which has no"
                f" next one; likely cause: {source.one_sentence_cause}"
            )
