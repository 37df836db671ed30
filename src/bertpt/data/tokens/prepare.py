"""The prepare stage: documents and tokenizer to a token store, in bounded memory."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertpt.config import Config
from bertpt.config.languages import language_code
from bertpt.data.corpus.sizes import corpus_size
from bertpt.data.locate import documents_dir, finished, store_dir, store_key, tokenizer_dir
from bertpt.data.stage import SPLITS, Split, StageResult, existing
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer, load_tokenizer
from bertpt.data.tokens.encode import EncodeCounts, ranked, source_index
from bertpt.data.tokens.paircheck import check_pairs, pair_faults
from bertpt.data.tokens.parts import Job, made_in_order, make, read, tasks_of
from bertpt.data.tokens.store import id_dtype
from bertpt.data.tokens.store_writer import SplitWriter, StoreWriter
from bertpt.data.tokens.workers import default_workers, each_in_order
from bertpt.errors import RequestError
from bertpt.files import check_hashes, staged_directory, write_manifest
from bertpt.progress import Progress
from bertpt.progress import say as say_line

__all__ = ["check_pairs", "pair_faults", "prepare"]

UNKNOWN_WARNING = 0.01
_TOP_UNKNOWN = 20


def prepare(
    config: Config,
    *,
    workers: int | None = None,
    dask: str | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = say_line,
    progress: bool = True,
) -> StageResult:
    """Encode all documents once, for every length, pair rule and mask.

    The text is encoded in parts. A finished part waits on disk until all are done, so that the same call goes on
    after a kill. The store is the same to the byte, whoever has made the parts.

    Args:
        workers: processes, about 0.4 GiB each; as many as there are processors by default, fewer for small texts. They
            are spawned: a script that starts several needs ``if __name__ == "__main__":``.
        dask: address of a Dask scheduler, whose workers see the data directory under the same path, instead.

    Raises:
        RequestError: documents or tokenizer are missing (names the command), or no sentence is left.
        BertptError: a worker died, or cannot be reached.
    """
    key, settings, inputs = store_key(config)
    directory = store_dir(config)
    if (manifest := existing(directory, overwrite)) is not None:
        say(f"tokens: {directory} is up to date ({manifest['counts']['train']['tokens']:,} training tokens)")
        return StageResult(directory, manifest, skipped=True)
    for made, command in ((documents_dir(config), "download"), (tokenizer_dir(config), "train-tokenizer")):
        check_hashes(made, finished(config, made, command))
    tokenizer = load_tokenizer(tokenizer_dir(config))
    parts = directory.with_name(f".{directory.name}.parts")
    job = Job(
        key,
        str(tokenizer_dir(config).resolve()),
        language_code(config.corpus.language) if config.corpus.sentences == "split" else "",
        config.corpus.sentences,
        config.corpus.min_sentences,
        str(parts.resolve()),
    )
    with staged_directory(directory) as aside:
        if overwrite:
            shutil.rmtree(parts, ignore_errors=True)
        work = _Work(job, tokenizer, documents_dir(config), workers, dask, progress)
        try:
            counts, labels = work.write(aside, say)
        except RequestError:
            shutil.rmtree(parts, ignore_errors=True)
            raise
        settings |= {
            "vocab_size": tokenizer.vocab_size,
            "dtype": id_dtype(tokenizer.vocab_size).name,
            "special_ids": tokenizer.special_ids,
            "sources": labels,
        }
        manifest = write_manifest(aside, stage="prepare", key=key, inputs=inputs, settings=settings, counts=counts)
    shutil.rmtree(parts, ignore_errors=True)
    for line in [*_report(counts), *pair_faults(manifest, config.pairs.rule)]:
        say(f"tokens: {line}")
    say(f"tokens: {directory}")
    return StageResult(directory, manifest, skipped=False)


@dataclass(frozen=True, slots=True)
class _Work:
    """One preparation under way."""

    job: Job
    tokenizer: WordPieceTokenizer
    documents: Path
    workers: int | None
    dask: str | None
    shown: bool

    def write(self, aside: Path, say: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
        """Make all parts and write the store from them; counts of both splits and the labels of the sources."""
        tasks = tasks_of(self.job, self.documents)
        waiting = {task: None for task in tasks if read(task) is None}
        if len(waiting) < len(tasks):
            say(f"tokens: {len(tasks) - len(waiting):,} of {len(tasks):,} parts were finished before")
        sizes = [corpus_size(self.documents, split) for split in SPLITS]
        workers = self.workers or default_workers(sum(size.text_bytes for size in sizes))
        total = sum(size.documents for size in sizes)
        labels: dict[str, int] = {}
        read_of = {split: EncodeCounts() for split in SPLITS}
        with (
            closing(each_in_order(make, list(waiting), workers=workers, dask=self.dask)) as made,
            StoreWriter(aside, self.tokenizer.continues_word) as writer,
            Progress("prepare", unit="documents", total=total, shown=self.shown) as progress,
        ):
            for task, part in zip(tasks, made_in_order(tasks, waiting, made), strict=True):
                index = np.array([source_index(labels, label) for label in part.labels] or [0], np.uint8)
                writer.split(task.split).add(part.ids, part.lengths, part.sizes, index[part.sources])
                read_of[task.split].add(part.counts)
                progress.add(part.counts.documents_read)
            for split, counts in read_of.items():
                if not writer.split(split).documents:
                    raise RequestError(_nothing_left(self.documents, split, counts, self.job.min_sentences))
            counted: dict[str, Any] = {
                split: _counts(counts, writer.split(split), self.tokenizer, list(labels))
                for split, counts in read_of.items()
            }
        return counted, list(labels)


def _nothing_left(documents: Path, split: Split, read: EncodeCounts, min_sentences: int) -> str:
    if not read.documents_read:
        return f"{documents}: no {split} documents"
    return (
        f"{documents}: none of {read.documents_read:,} {split} documents has {min_sentences} sentences"
        f" or more (corpus.min_sentences: {min_sentences})"
    )


def _counts(
    read: EncodeCounts, writer: SplitWriter, tokenizer: WordPieceTokenizer, labels: list[str]
) -> dict[str, Any]:
    """Plain figures for the manifest."""
    words = int(writer.unigram[~tokenizer.continues_word].sum())
    unknown = int(writer.unigram[tokenizer.unk_id])
    return {
        "documents_read": read.documents_read,
        "text_bytes": read.text_bytes,
        "documents": writer.documents,
        "sentences": writer.sentences,
        "tokens": writer.tokens,
        "documents_of_two_sentences_or_more": read.several_sentence_documents,
        "documents_of_one_sentence": read.one_sentence_documents,
        "documents_too_short": read.short_documents,
        "sentences_without_pieces": read.empty_sentences,
        "sentences_cut": read.cut_sentences,
        "words_over_100_letters": read.long_words,
        "unknown_tokens": unknown,
        "unknown_share": unknown / max(words, 1),
        "tokens_per_word": writer.tokens / max(words, 1),
        "top_unknown_words": _top_unknown(read.unknown, tokenizer),
        "documents_by_source": {label: int(writer.sources[index]) for index, label in enumerate(labels)},
    }


def _top_unknown(chunks: Counter[str], tokenizer: WordPieceTokenizer) -> dict[str, int]:
    """The most frequent unknown words, out of the most frequent chunks that hold one."""
    words: Counter[str] = Counter()
    for chunk, count in ranked(chunks)[: 10 * _TOP_UNKNOWN]:
        for word in tokenizer.unknown_words(chunk):
            words[word] += count
    return dict(ranked(words)[:_TOP_UNKNOWN])


def _report(counts: dict[str, Any]) -> Iterator[str]:
    for split in SPLITS:
        part = counts[split]
        yield (
            f"{split}: {part['documents']:,} documents, {part['sentences']:,} sentences, {part['tokens']:,} tokens,"
            f" {part['tokens_per_word']:.2f} tokens a word, {part['unknown_share']:.3%} [UNK]"
        )
    train = counts["train"]
    dropped = {
        "documents too short (corpus.min_sentences)": train["documents_too_short"],
        "sentences without any piece": train["sentences_without_pieces"],
        "sentences cut into parts": train["sentences_cut"],
        "words over 100 letters, each one [UNK]": train["words_over_100_letters"],
    }
    if any(dropped.values()):
        yield "train: " + "; ".join(f"{count:,} {what}" for what, count in dropped.items() if count)
    if train["unknown_share"] > UNKNOWN_WARNING:
        top = ", ".join(list(train["top_unknown_words"])[:10])
        yield f"{train['unknown_share']:.1%} of the words are [UNK] (most often {top}); does the vocabulary fit?"
    if train["documents_of_one_sentence"] > train["documents"] / 2:
        yield (
            f"{train['documents_of_one_sentence']:,} of {train['documents']:,} documents have one sentence: is there a"
            " blank line after every line, or is each row a sentence? See `documents` of the source"
        )
