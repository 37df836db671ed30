"""Documents to token ids, a few megabytes at a time, with the figures that tell whether the text is sound."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertpt.data.corpus.documents import Document
from bertpt.data.tokenizer.wordpiece import MAX_WORD_LETTERS, WordPieceTokenizer
from bertpt.data.tokens.sentences import split_sentences
from bertpt.errors import RequestError

BATCH_LETTERS = 1_000_000  # text encoded at a time
SLICE_SENTENCES = 4_000
MAX_SENTENCE = 10_000  # pieces; far above any row, so that one sentence cannot fill memory
MAX_SOURCES = 256
_MAX_UNKNOWN = 100_000  # distinct unknown words that are counted


@dataclass
class EncodeCounts:
    """What became of some documents."""

    documents_read: int = 0
    text_bytes: int = 0
    short_documents: int = 0
    one_sentence_documents: int = 0
    several_sentence_documents: int = 0
    empty_sentences: int = 0
    cut_sentences: int = 0
    long_words: int = 0
    unknown: Counter[str] = field(default_factory=Counter)

    def add(self, other: EncodeCounts) -> None:
        """Add the figures of further documents; of the unknown words only the most frequent are kept."""
        for each in fields(self):
            if each.name != "unknown":
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.unknown.update(other.unknown)
        if len(self.unknown) > 2 * _MAX_UNKNOWN:
            self.unknown = Counter(dict(ranked(self.unknown)[:_MAX_UNKNOWN]))


def ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    """Most frequent first, then by the alphabet."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


@dataclass(frozen=True, slots=True)
class Encoded:
    """Documents as ids."""

    ids: NDArray[Any]  # integers [tokens]
    lengths: NDArray[np.int64]  # [sentences], tokens in each
    sizes: NDArray[np.int64]  # [documents], sentences in each
    sources: NDArray[np.uint8]  # [documents], index into labels
    labels: list[str]
    counts: EncodeCounts


@dataclass(frozen=True, slots=True)
class Encoder:
    """The settings of one preparation."""

    tokenizer: WordPieceTokenizer
    language: str
    mode: Literal["split", "lines"]
    min_sentences: int

    def encode(self, documents: Iterable[Document]) -> Encoded:
        """Encode documents, all of them in memory in the end."""
        counts, labels = EncodeCounts(), dict[str, int]()
        made = [self._encode_batch(batch, labels, counts) for batch in batches(documents)]
        columns = zip(*made, strict=True) if made else [[np.empty(0, np.int64)]] * 3 + [[np.empty(0, np.uint8)]]
        ids, lengths, sizes, sources = map(np.concatenate, columns)
        return Encoded(ids, lengths, sizes, sources, list(labels), counts)

    def _encode_batch(
        self, batch: list[Document], labels: dict[str, int], counts: EncodeCounts
    ) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
        sentences: list[str] = []
        sizes: list[int] = []
        for document in batch:
            found = split_sentences(document.text, self.language, self.mode)
            sentences += found
            sizes.append(len(found))
            counts.text_bytes += len(document.text.encode())
        counts.documents_read += len(batch)
        ids, lengths = self._encode(sentences, counts)
        owners = np.repeat(np.arange(len(batch)), sizes)
        counts.empty_sentences += int((lengths == 0).sum())
        owners, lengths = cut_lengths(owners[lengths > 0], lengths[lengths > 0], counts)

        sizes_now = np.bincount(owners, minlength=len(batch))
        kept = sizes_now >= self.min_sentences
        counts.short_documents += int((~kept).sum())
        counts.one_sentence_documents += int((sizes_now[kept] == 1).sum())
        counts.several_sentence_documents += int((sizes_now[kept] >= 2).sum())
        sources = np.array([source_index(labels, document.source) for document in batch], np.uint8)
        if not kept.all():
            ids, lengths = ids[np.repeat(kept[owners], lengths)], lengths[kept[owners]]
        return ids, lengths, sizes_now[kept].astype(np.int64), sources[kept]

    def _encode(self, sentences: list[str], counts: EncodeCounts) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Ids (int32 [tokens]) of all sentences and the length (int64) of each."""
        ids, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        for start in range(0, len(sentences), SLICE_SENTENCES):
            part = sentences[start : start + SLICE_SENTENCES]
            encoded, sizes = self.tokenizer.encode_flat(part)
            ids.append(encoded)
            lengths.append(sizes)
            self._count_unknown(part, encoded, sizes, counts)
        return np.concatenate(ids), np.concatenate(lengths)

    def _count_unknown(
        self, sentences: Sequence[str], ids: NDArray[np.int32], lengths: NDArray[np.int64], counts: EncodeCounts
    ) -> None:
        """Count unknown words; those of too many letters are among them, and need not be looked for anywhere else."""
        unknown, places = counts.unknown, np.flatnonzero(ids == self.tokenizer.unk_id)
        for number in np.unique(np.searchsorted(lengths.cumsum(), places, side="right")).tolist():
            for chunk in self.tokenizer.unknown_chunks(sentences[number]):
                if len(unknown) < _MAX_UNKNOWN or chunk in unknown:
                    unknown[chunk] += 1
                if len(chunk) > MAX_WORD_LETTERS:
                    counts.long_words += sum(len(word) > MAX_WORD_LETTERS for word in self.tokenizer.words(chunk))


def source_index(labels: dict[str, int], label: str) -> int:
    """The index of a source, a new one where it is met first.

    Raises:
        RequestError: there are too many.
    """
    index = labels.setdefault(label, len(labels))
    if index >= MAX_SOURCES:
        raise RequestError(f"corpus.sources: more than {MAX_SOURCES} labels; give several sources one name")
    return index


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Groups of documents of about ``BATCH_LETTERS``."""
    batch: list[Document] = []
    letters = 0
    for document in documents:
        batch.append(document)
        letters += len(document.text)
        if letters >= BATCH_LETTERS:
            yield batch
            batch, letters = [], 0
    if batch:
        yield batch


def cut_lengths(
    owners: NDArray[Any], lengths: NDArray[np.int64], counts: EncodeCounts
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Cut sentences above ``MAX_SENTENCE`` into parts; each part keeps its owner."""
    if not len(lengths) or lengths.max() <= MAX_SENTENCE:
        return owners, lengths
    counts.cut_sentences += int((lengths > MAX_SENTENCE).sum())
    parts = [
        [min(MAX_SENTENCE, length - start) for start in range(0, length, MAX_SENTENCE)] for length in lengths.tolist()
    ]
    return np.repeat(owners, list(map(len, parts))), np.array(list(itertools.chain.from_iterable(parts)), np.int64)
