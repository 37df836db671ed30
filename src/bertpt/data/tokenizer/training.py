"""The tokenizer stage: a WordPiece vocabulary trained on the corpus, or one that is given."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertpt.config import Config
from bertpt.data.corpus.documents import Document, iter_documents
from bertpt.data.corpus.sizes import corpus_size
from bertpt.data.locate import documents_dir, tokenizer_dir, tokenizer_key
from bertpt.data.stage import StageResult, existing
from bertpt.data.tokenizer.extend import extend, new_entries
from bertpt.data.tokenizer.given import given_place, holds_vocabulary, normalising_of, read_given, tokenizer_of_weights
from bertpt.data.tokenizer.vocabulary import (
    MAX_TRAINED,
    TRAINED_PER_ENTRY,
    choose_alphabet,
    count_words,
    learn_vocabulary,
)
from bertpt.data.tokenizer.wordpiece import SPECIALS, Normalising, WordPieceTokenizer, load_tokenizer, save
from bertpt.errors import BertptError, RequestError
from bertpt.files import staged_directory, write_manifest
from bertpt.progress import Progress, peak_memory
from bertpt.progress import say as say_line

__all__ = ["WordPieceTokenizer", "load_tokenizer", "train_tokenizer"]

UNKNOWN_WARNING = 0.01
_CASED_WARNING = 100  # entries with capitals in a vocabulary that is used for lower-cased text


def train_tokenizer(
    config: Config, *, overwrite: bool = False, say: Callable[[str], None] = say_line, progress: bool = True
) -> StageResult:
    """Train the vocabulary that the configuration asks for, or copy the given one.

    Equal documents and settings give byte-identical files, in any process and for any number of threads.

    Raises:
        RequestError: no documents, a vocabulary size too small for the text, a given vocabulary that does not fit.
    """
    key, settings, inputs = tokenizer_key(config)
    directory = tokenizer_dir(config)
    if (manifest := existing(directory, overwrite)) is not None:
        say(f"tokenizer: {directory} is up to date ({manifest['counts']['entries']:,} entries)")
        return StageResult(directory, manifest, skipped=True)
    if (given := given_place(config)) is not None:
        tokens, flags, counts = _given(given, config, say)
    else:
        flags = normalising_of(config.tokenizer)
        tokens, counts = _train(config, flags, say, progress)
    with staged_directory(directory) as aside:
        save(aside, tokens, flags)
        _check(aside, tokens)
        manifest = write_manifest(
            aside, stage="train-tokenizer", key=key, inputs=inputs, settings=settings, counts=counts
        )
    peak = peak_memory()
    say(f"tokenizer: {directory}" + (f" (peak memory {peak / 1e6:,.0f} MB)" if peak else ""))
    return StageResult(directory, manifest, skipped=False)


def _check(directory: Path, tokens: list[str]) -> None:
    """Read the tokenizer back: the same entries, the five specials among them."""
    if load_tokenizer(directory).tokens != tokens:
        raise BertptError(f"{directory}: the saved tokenizer does not hold the vocabulary that was made")


def _given(place: Path, config: Config, say: Callable[[str], None]) -> tuple[list[str], Normalising, dict[str, Any]]:
    """The given vocabulary, longer by the words of ``tokenizer.extend_from``."""
    tokens, flags = read_given(place, config.tokenizer)
    _say_given(tokens, flags, place, say)
    counts: dict[str, Any] = {"entries": len(tokens)}
    if config.tokenizer.extend_from is not None:
        extension = extend(tokens, flags, Path(config.tokenizer.extend_from))
        say(f"tokenizer: {extension.report(config.tokenizer.extend_from)}")
        tokens = extension.tokens
        counts = {"entries": len(tokens), "extension": extension.counts}
    if config.model.init_from is not None and config.tokenizer.from_ is not None:
        _check_weights(tokens, flags, config)
    return tokens, flags, counts


def _check_weights(tokens: list[str], flags: Normalising, config: Config) -> None:
    """Refuse a vocabulary that is not the one of the weights to start from, or that with words added."""
    place = tokenizer_of_weights(Path(str(config.model.init_from)))
    if not holds_vocabulary(place):
        return  # weights alone: their number of rows is compared when they are loaded
    old, old_flags = read_given(place, config.tokenizer)
    try:
        new_entries(old, tokens)
        if flags != old_flags:
            raise RequestError(f"{flags}, the weights were trained with {old_flags}")
    except RequestError as error:
        raise RequestError(
            f"tokenizer.from: {config.tokenizer.from_}: does not fit model.init_from {config.model.init_from}: {error};"
            " leave tokenizer.from out to take the tokenizer of the weights"
        ) from error


def _say_given(tokens: list[str], flags: Normalising, place: Path, say: Callable[[str], None]) -> None:
    say(f"tokenizer: {len(tokens):,} entries from {place}, lowercase {str(flags.lowercase).lower()}")
    capitals = sum(token != token.lower() for token in tokens if token not in SPECIALS)
    if flags.lowercase and capitals > _CASED_WARNING:
        say(f"tokenizer: {capitals:,} entries have capitals that lower-cased text never uses; set lowercase: false")


# --- training -------------------------------------------------------------------------------------------------


@dataclass
class _Sample:
    """The documents that the vocabulary is trained on."""

    directory: Path
    sample_bytes: int
    seed: int
    documents: int = 0
    used_documents: int = 0
    used_bytes: int = 0

    def texts(self, progress: Progress) -> Iterator[str]:
        """Texts of the chosen documents, all of them when they hold at most ``sample_bytes``."""
        total = corpus_size(self.directory, "train").text_bytes
        share = min(1.0, self.sample_bytes / max(total, 1))
        for document in iter_documents(self.directory, "train"):
            self.documents += 1
            progress.add()
            size = len(document.text.encode())
            if share < 1.0 and not (self._draw(document) < share and self.used_bytes + size <= self.sample_bytes):
                continue
            self.used_documents += 1
            self.used_bytes += size
            yield document.text

    def _draw(self, document: Document) -> float:
        """Uniform in [0, 1), by seed and text: it does not depend on the other documents."""
        digest = hashlib.blake2b(document.text.encode(), digest_size=8, key=str(self.seed).encode()).digest()
        return int.from_bytes(digest, "little") / 2**64


def _train(
    config: Config, flags: Normalising, say: Callable[[str], None], shown: bool
) -> tuple[list[str], dict[str, Any]]:
    chosen = config.tokenizer
    sample = _Sample(documents_dir(config), chosen.sample_bytes, chosen.seed)
    with Progress("train-tokenizer", unit="documents", shown=shown) as progress:
        most = max(MAX_TRAINED, TRAINED_PER_ENTRY * chosen.vocab_size)
        counted = count_words(sample.texts(progress), flags, most)
    if not counted.words:
        raise RequestError(f"{sample.directory}: no words in {sample.documents:,} training documents")
    alphabet = choose_alphabet(counted.words, chosen.vocab_size, flags, counted.pruned_letters)
    tokens = learn_vocabulary(counted.words, alphabet, chosen.vocab_size, chosen.min_frequency)
    letters = set(alphabet.letters)
    unknown = sum(count for word, count in counted.words.items() if not letters.issuperset(word))
    total = sum(counted.words.values()) + counted.long_words + counted.pruned_occurrences
    counts = {
        "documents": sample.documents,
        "used_documents": sample.used_documents,
        "used_bytes": sample.used_bytes,
        "words": total,
        "distinct_words": len(counted.words),
        "pruned_words": counted.pruned,
        "long_words": counted.long_words,
        "letters": len(alphabet.letters),
        "dropped_letters": len(alphabet.dropped),
        "unknown_share": (unknown + counted.long_words) / total,
        "asked": chosen.vocab_size,
        "entries": len(tokens),
    }
    for line in _report(counts, "".join(alphabet.dropped[:20]), chosen.seed):
        say(f"tokenizer: {line}")
    return tokens, counts


def _report(counts: dict[str, Any], dropped: str, seed: int) -> Iterator[str]:
    if counts["used_documents"] < counts["documents"]:
        yield (
            f"trained on {counts['used_bytes'] / 1e6:,.1f} MB: {counts['used_documents']:,} of"
            f" {counts['documents']:,} documents, chosen by tokenizer.seed {seed} (tokenizer.sample_bytes)"
        )
    else:
        yield f"trained on {counts['used_bytes'] / 1e6:,.1f} MB, {counts['words']:,} words"
    fewer = " (no other pair of pieces comes tokenizer.min_frequency times)" * (counts["entries"] < counts["asked"])
    yield f"asked {counts['asked']:,} entries, got {counts['entries']:,}{fewer}; {counts['letters']:,} letters" + (
        f"; {counts['dropped_letters']:,} rare letters left out: {dropped}" if dropped else ""
    )
    if counts["long_words"]:
        yield f"{counts['long_words']:,} words of more than 100 letters left out; each will be one [UNK]"
    if counts["pruned_words"]:
        yield f"{counts['pruned_words']:,} rare words left out, to bound memory"
    if counts["unknown_share"] > UNKNOWN_WARNING:
        yield f"{counts['unknown_share']:.1%} of the words will be [UNK]; a larger tokenizer.vocab_size helps"
