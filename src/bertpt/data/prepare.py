"""The prepare stage: documents and tokenizer to a token store, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bertpt.config import Config
from bertpt.data.documents import Document, iter_documents
from bertpt.data.encode import EncodeCounts, Encoder
from bertpt.data.locate import documents_dir, finished, store_dir, store_key, tokenizer_dir
from bertpt.data.paircheck import check_pairs, pair_faults
from bertpt.data.sizes import corpus_size
from bertpt.data.stage import StageResult, existing
from bertpt.data.store import SPLITS, Split, id_dtype
from bertpt.data.store_writer import SplitWriter, StoreWriter
from bertpt.data.wordpiece import WordPieceTokenizer, load_tokenizer
from bertpt.errors import RequestError
from bertpt.files import check_hashes, staged_directory, write_manifest
from bertpt.progress import Progress
from bertpt.progress import say as say_line

__all__ = ["check_pairs", "pair_faults", "prepare"]

UNKNOWN_WARNING = 0.01
_TOP_UNKNOWN = 20


def prepare(
    config: Config, *, overwrite: bool = False, say: Callable[[str], None] = say_line, progress: bool = True
) -> StageResult:
    """Encode all documents once, for every length, pair rule and mask.

    Raises:
        RequestError: documents or tokenizer are missing (names the command), or no sentence is left.
    """
    key, settings, inputs = store_key(config)
    directory = store_dir(config)
    if (manifest := existing(directory, overwrite)) is not None:
        say(f"tokens: {directory} is up to date ({manifest['counts']['train']['tokens']:,} training tokens)")
        return StageResult(directory, manifest, skipped=True)
    for made, command in ((documents_dir(config), "download"), (tokenizer_dir(config), "train-tokenizer")):
        check_hashes(made, finished(config, made, command))
    tokenizer = load_tokenizer(tokenizer_dir(config))
    encoder = Encoder(tokenizer, config.corpus.language, config.corpus.sentences, config.corpus.min_sentences, {})
    with staged_directory(directory) as aside:
        counts = _write(aside, documents_dir(config), encoder, progress)
        settings |= {
            "vocab_size": tokenizer.vocab_size,
            "dtype": id_dtype(tokenizer.vocab_size).name,
            "special_ids": tokenizer.special_ids,
            "sources": list(encoder.labels),
        }
        manifest = write_manifest(aside, stage="prepare", key=key, inputs=inputs, settings=settings, counts=counts)
    for line in [*_report(counts), *pair_faults(manifest, config.pairs.rule)]:
        say(f"tokens: {line}")
    say(f"tokens: {directory}")
    return StageResult(directory, manifest, skipped=False)


def _write(aside: Path, documents: Path, encoder: Encoder, shown: bool) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    total = sum(corpus_size(documents, split).documents for split in SPLITS)
    with (
        StoreWriter(aside, encoder.tokenizer.continues_word) as writer,
        Progress("prepare", unit="documents", total=total, shown=shown) as progress,
    ):
        for split in SPLITS:
            read = encoder.encode_split(_counted(documents, split, progress), writer.split(split))
            if not writer.split(split).documents:
                raise RequestError(_nothing_left(documents, split, read, encoder.min_sentences))
            counts[split] = _counts(read, writer.split(split), encoder.tokenizer, list(encoder.labels))
    return counts


def _counted(documents: Path, split: Split, progress: Progress) -> Iterator[Document]:
    for document in iter_documents(documents, split):
        yield document
        progress.add()


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
    for chunk, count in _ranked(chunks)[: 10 * _TOP_UNKNOWN]:
        for word in tokenizer.unknown_words(chunk):
            words[word] += count
    return dict(_ranked(words)[:_TOP_UNKNOWN])


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


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
