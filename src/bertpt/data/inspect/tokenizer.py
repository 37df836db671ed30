"""``bertpt inspect tokenizer``: whether a vocabulary fits the text."""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bertpt.config import Config
from bertpt.data.corpus.documents import Document, iter_documents
from bertpt.data.corpus.sizes import corpus_size
from bertpt.data.inspect.layout import paragraph, sections, table
from bertpt.data.locate import documents_dir, finished, tokenizer_dir
from bertpt.data.random import below, bits
from bertpt.data.tokenizer.wordpiece import (
    PREFIX,
    SPECIALS,
    WordPieceTokenizer,
    load_tokenizer,
    read_backend,
    read_normalising,
)
from bertpt.data.tokens.sentences import split_sentences
from bertpt.progress import Progress, counted

_TOP = 20
_SLICE = 20_000


@dataclass(frozen=True, slots=True)
class ScriptFigures:
    """Letters of one script (the first word of their Unicode names)."""

    script: str
    letters: int
    unknown_letters: int
    entries: int

    @property
    def coverage(self) -> float:
        """Share of the text's letters that stand in words with pieces, not [UNK]."""
        return 1 - self.unknown_letters / max(self.letters, 1)


@dataclass(frozen=True, slots=True)
class SentenceSample:
    """A held-out sentence and its pieces."""

    source: str
    text: str
    pieces: list[str]


@dataclass(frozen=True, slots=True)
class TokenizerFigures:
    """A vocabulary, and how it fares on the held-out documents."""

    directory: str
    fingerprint: str
    entries: int
    asked: int | None
    model_rows: int
    word_entries: int
    continuing_entries: int
    letter_entries: int
    special_ids: dict[str, int]
    lowercase: bool
    strip_accents: bool
    handle_chinese_chars: bool
    documents: int
    of_documents: int
    words: int
    pieces: int
    unknown_words: int
    top_unknown_words: dict[str, int]
    pieces_per_word: dict[str, float]
    whole_word_share: float
    unused_entries: int
    scripts: list[ScriptFigures]
    longest_entries: list[str]
    samples: list[SentenceSample]

    @property
    def unknown_share(self) -> float:
        """Words that are [UNK], as a share of all words."""
        return self.unknown_words / max(self.words, 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        value = asdict(self) | {"unknown_share": self.unknown_share}
        value["scripts"] = [asdict(script) | {"coverage": script.coverage} for script in self.scripts]
        return value

    def lines(self) -> list[str]:
        """For people."""
        return list(sections(_parts(self)))


def inspect_tokenizer(
    config: Config, *, samples: int = 5, seed: int = 0, max_bytes: int = 20_000_000, progress: bool = True
) -> TokenizerFigures:
    """Try a tokenizer on held-out documents, which it was not trained on.

    Args:
        config: ``data_dir``, ``corpus`` and ``tokenizer`` are used.
        samples: how many sentences are shown.
        seed: chooses them.
        max_bytes: of more held-out text about so much is tried, whole documents of all sources chosen by ``seed``.
        progress: show progress on stderr.

    Raises:
        RequestError: the tokenizer or the documents are not there.
    """
    documents = documents_dir(config)
    finished(config, documents, "download")
    directory = tokenizer_dir(config)
    manifest = finished(config, directory, "train-tokenizer")
    tokenizer = load_tokenizer(directory)
    flags = read_normalising(read_backend(directory / "tokenizer.json"), directory / "tokenizer.json")
    size = corpus_size(documents, "heldout")
    read = list(_chosen(iter_documents(documents, "heldout"), max_bytes / max(size.text_bytes, 1), seed))
    multiple = config.model.pad_vocab_to_multiple_of
    counted = _count(read, tokenizer, progress)
    plain = [token for token in tokenizer.tokens if token not in SPECIALS]
    return TokenizerFigures(
        directory=str(directory),
        fingerprint=manifest["fingerprint"],
        entries=tokenizer.vocab_size,
        asked=manifest["counts"].get("asked"),
        model_rows=-(-tokenizer.vocab_size // multiple) * multiple,
        word_entries=sum(not token.startswith(PREFIX) for token in plain),
        continuing_entries=int(tokenizer.continues_word.sum()),
        letter_entries=sum(len(token) == 1 for token in plain),
        special_ids=tokenizer.special_ids,
        lowercase=flags.lowercase,
        strip_accents=flags.strip_accents,
        handle_chinese_chars=flags.handle_chinese_chars,
        documents=len(read),
        of_documents=size.documents,
        longest_entries=sorted(plain, key=lambda token: (-len(token.removeprefix(PREFIX)), token))[:_TOP],
        samples=_samples(read, tokenizer, config, samples, seed),
        **counted,
    )


def _chosen(documents: Iterator[Document], share: float, seed: int) -> Iterator[Document]:
    """A share of the documents, by seed and text alone; at least the one that comes first in that order."""
    first, found = (2**64, Document("", "", "")), 0
    for document in documents:
        digest = hashlib.blake2b(document.text.encode(), digest_size=8, key=f"tokenizer {seed}".encode()).digest()
        draw = int.from_bytes(digest, "big")
        if share >= 1 or draw < share * 2**64:
            found += 1
            yield document
        elif draw < first[0]:
            first = draw, document
    if not found and first[0] < 2**64:
        yield first[1]


def _count(documents: list[Document], tokenizer: WordPieceTokenizer, shown: bool) -> dict[str, Any]:
    """The figures that depend on the text; each different word is encoded once."""
    words: dict[str, Counter[str]] = {}
    with Progress("inspect tokenizer", unit="documents", total=len(documents), shown=shown) as progress:
        for document in documents:
            words.setdefault(document.source, Counter()).update(tokenizer.words(document.text))
            progress.add()
    total: Counter[str] = Counter()
    for part in words.values():
        total.update(part)
    pieces = _encoded(list(total), tokenizer)
    unknown = Counter({word: count for word, count in total.items() if tokenizer.unk_id in pieces[word]})
    used = {index for ids in pieces.values() for index in ids}
    number = sum(len(pieces[word]) * count for word, count in total.items())
    return {
        "words": total.total(),
        "pieces": number,
        "unknown_words": unknown.total(),
        "top_unknown_words": dict(sorted(unknown.items(), key=lambda item: (-item[1], item[0]))[:_TOP]),
        "pieces_per_word": {
            source: sum(len(pieces[word]) * count for word, count in part.items()) / max(part.total(), 1)
            for source, part in words.items()
        },
        "whole_word_share": sum(count for word, count in total.items() if len(pieces[word]) == 1 and not unknown[word])
        / max(total.total(), 1),
        "unused_entries": tokenizer.vocab_size - len(SPECIALS) - len(used - set(tokenizer.special_ids.values())),
        "scripts": _scripts(total, unknown, tokenizer),
    }


def _encoded(words: list[str], tokenizer: WordPieceTokenizer) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for start in range(0, len(words), _SLICE):
        part = words[start : start + _SLICE]
        found.update(zip(part, tokenizer.encode_sentences(part), strict=True))
    return found


def script_of(letter: str) -> str:
    """The script of a letter, as the first word of its Unicode name: LATIN, CYRILLIC, CJK ... ; empty if none."""
    return unicodedata.name(letter, "").partition(" ")[0] if letter.isalpha() else ""


def _scripts(words: Counter[str], unknown: Counter[str], tokenizer: WordPieceTokenizer) -> list[ScriptFigures]:
    letters, missed, entries = Counter[str](), Counter[str](), Counter[str]()
    for word, count in words.items():
        for letter in word:
            if script := script_of(letter):
                letters[script] += count
                missed[script] += count if word in unknown else 0
    for token in tokenizer.tokens:
        if token not in SPECIALS:
            entries.update({script for script in map(script_of, token) if script})
    ranked = sorted(letters, key=lambda script: (-letters[script], script))
    return [ScriptFigures(script, letters[script], missed[script], entries[script]) for script in ranked]


def _samples(
    documents: list[Document], tokenizer: WordPieceTokenizer, config: Config, count: int, seed: int
) -> list[SentenceSample]:
    if not documents:
        return []
    found = []
    for number in range(count):
        document = documents[below(bits(seed, number, 0), len(documents)).item()]
        sentences = split_sentences(document.text, config.corpus.language, config.corpus.sentences) or [document.text]
        sentence = sentences[below(bits(seed, number, 1), len(sentences)).item()]
        ids = tokenizer.encode_sentences([sentence])[0]
        found.append(SentenceSample(document.source, sentence, [tokenizer.token(index) for index in ids]))
    return found


def _parts(figures: TokenizerFigures) -> Iterator[tuple[str, list[str]]]:
    yield (
        f"{figures.directory} (fingerprint {figures.fingerprint[:8]})",
        [f"  {line}" for line in _vocabulary(figures)],
    )
    of_all = "" if figures.documents == figures.of_documents else f" of {figures.of_documents:,}, chosen by --seed"
    yield f"On {counted(figures.documents, 'held-out documents')}{of_all}", [f"  {line}" for line in _fit(figures)]
    header = ("script", "letters", "in [UNK] words", "coverage", "entries")
    rows = [
        (
            script.script,
            f"{script.letters:,}",
            f"{script.unknown_letters:,}",
            f"{script.coverage:.2%}",
            str(script.entries),
        )
        for script in figures.scripts
    ]
    yield "Letters by script", table(header, rows) if rows else []
    yield "Longest entries", paragraph(", ".join(figures.longest_entries), "  ")
    samples = itertools.chain.from_iterable(
        [*paragraph(sample.text, "  "), *paragraph(" ".join(sample.pieces), "    ")] for sample in figures.samples
    )
    yield "Sentences and their pieces (## continues a word)", list(samples)


def _vocabulary(figures: TokenizerFigures) -> Iterator[str]:
    asked = f" of {figures.asked:,} asked" if figures.asked else ""
    yield (
        f"{figures.entries:,} entries{asked}: {len(figures.special_ids)} special, {figures.word_entries:,} that begin a"
        f" word, {figures.continuing_entries:,} that continue one; {figures.letter_entries:,} are single letters"
    )
    padded = figures.model_rows - figures.entries
    yield (
        f"the model has {figures.model_rows:,} rows for them (model.pad_vocab_to_multiple_of)"
        + f", of which {padded:,} are never predicted nor drawn" * (padded > 0)
    )
    yield "special: " + ", ".join(f"[{name.upper()}] = {index}" for name, index in figures.special_ids.items())
    yield (
        f"letters: {'lower-cased' if figures.lowercase else 'case is kept'},"
        f" accents {'removed' if figures.strip_accents else 'kept'},"
        f" CJK characters {'are words of their own' if figures.handle_chinese_chars else 'stay in their words'}"
    )


def _fit(figures: TokenizerFigures) -> Iterator[str]:
    yield (
        f"{figures.words:,} words, {figures.pieces:,} pieces; {figures.whole_word_share:.1%} of the words are one entry"
    )
    by_source = ", ".join(f"{source} {rate:.2f}" for source, rate in figures.pieces_per_word.items())
    yield f"pieces per word: {by_source} (English text usually has 1.1 to 1.6)"
    yield f"{figures.unknown_words:,} words are [UNK] ({figures.unknown_share:.3%})" + (
        "; a larger tokenizer.vocab_size helps" if figures.unknown_share > 0.01 else ""
    )
    if figures.top_unknown_words:
        yield "most frequent: " + ", ".join(f"{word} ({count:,})" for word, count in figures.top_unknown_words.items())
    yield f"{figures.unused_entries:,} entries are not used in this text"
