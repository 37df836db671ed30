"""Training a WordPiece vocabulary: counting words, choosing the alphabet, learning the pieces.

The library's trainer gives ``##`` letters their ids in the order of a hash map, and breaks ties of its
merges by those ids: two trainings on one text differ. It does not when every ``##`` letter is named
beforehand. So the words are counted here, the alphabet is fixed here (most frequent first, then by code
point), and the trainer gets both; its result depends on the counts alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bertpt.data.tokenizer.wordpiece import (
    MAX_WORD_LETTERS,
    PREFIX,
    SPECIALS,
    Normalising,
    chunks,
    clean,
    library_faults,
)
from bertpt.errors import RequestError

MAX_CHUNKS = 250_000  # distinct chunks (text between white space) held before they are split into words
MAX_PENDING_LETTERS = 16_000_000  # likewise, for scripts that put no space between words
# Distinct words shown to the trainer, which takes 1 KB for each: the most frequent ones. 50 MB of English have as many.
MAX_TRAINED = 300_000
TRAINED_PER_ENTRY = 8  # or more for a large vocabulary: so many words for each of its entries
MAX_OCCURRENCES = 100_000_000  # words shown to the trainer; larger counts are scaled down
MIN_COVERAGE = 0.99  # share of the text's letters that a vocabulary must hold
FULL_COVERAGE = 0.9999  # letters beyond it are kept only while the alphabet is small
ALPHABET_SHARE = 0.25  # "small": at most this share of the vocabulary
_BLOCK = 1000  # occurrences of a word in one string handed to the trainer


@dataclass
class WordCounts:
    """Words of a text after normalising, with how often each was seen."""

    words: Counter[str] = field(default_factory=Counter)
    long_words: int = 0  # occurrences of words over 100 letters: never trained on
    pruned: int = 0  # distinct words dropped to bound memory
    pruned_occurrences: int = 0
    pruned_letters: Counter[str] = field(default_factory=Counter)  # occurrences in the dropped words

    def keep(self, most: int) -> None:
        """Keep so many words: the most frequent, of equal ones the first by code point."""
        size = len(self.words)
        if size <= most:
            return
        # Sorting pairs would take more memory than the words themselves.
        counts = np.fromiter(self.words.values(), np.int64, size)
        least = int(np.partition(counts, size - most)[size - most])
        alike = sorted(word for word, count in self.words.items() if count == least)
        dropped = set(alike[most - int((counts > least).sum()) :])
        kept: Counter[str] = Counter()
        for word, count in self.words.items():
            if count >= least and word not in dropped:
                kept[word] = count
                continue
            self.pruned += 1
            self.pruned_occurrences += count
            for letter in word:
                self.pruned_letters[letter] += count
        self.words = kept


@dataclass(frozen=True)
class Alphabet:
    """The letters that a vocabulary holds."""

    letters: list[str]  # sorted by code point
    inner: list[str]  # those that can also stand inside a word, sorted
    dropped: list[str]  # left out, most frequent first
    dropped_share: float  # share of letter occurrences

    @property
    def entries(self) -> int:
        """Vocabulary entries that the alphabet takes."""
        return len(self.letters) + len(self.inner)


def count_words(texts: Iterable[str], normalising: Normalising, most: int = MAX_TRAINED) -> WordCounts:
    """Count the words of many texts and keep the ``most`` frequent.

    Memory is bounded by ``MAX_CHUNKS`` and by half as many words again: so rare words of long texts may be missed.
    """
    counts = WordCounts()
    pending: Counter[str] = Counter()
    normalizer, pre_tokenizer = normalising.normalizer(), pre_tokenizers.BertPreTokenizer()

    def flush() -> None:
        with library_faults("splitting words"):
            for chunk, count in pending.items():
                for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(clean(chunk))):
                    if len(word) > MAX_WORD_LETTERS:
                        counts.long_words += count
                    else:
                        counts.words[word] += count
        pending.clear()
        if len(counts.words) > most * 3 // 2:
            counts.keep(most)

    letters = 0
    for text in texts:
        pending.update(chunks(text))
        letters += len(text)
        if len(pending) > MAX_CHUNKS or letters > MAX_PENDING_LETTERS:
            flush()
            letters = 0
    flush()
    counts.keep(most)
    return counts


def _can_stand_inside(letter: str, normalising: Normalising) -> bool:
    """Whether a word can hold the letter after its first: punctuation and CJK characters stand alone."""
    text = normalising.normalizer().normalize_str(f"a{letter}a")
    return len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)) == 1


def choose_alphabet(
    words: Counter[str], vocab_size: int, normalising: Normalising, more: Counter[str] | None = None
) -> Alphabet:
    """Choose letters by frequency, then code point, each with both its forms (``x``, ``##x``).

    All letters are kept while they take at most ``ALPHABET_SHARE`` of the vocabulary; above that, those that
    ``FULL_COVERAGE`` of the text needs, as far as they fit. ``more`` are letters of the text outside of ``words``.

    Raises:
        RequestError: ``vocab_size`` cannot hold the letters of ``MIN_COVERAGE`` of the text.
    """
    counts = Counter(more)
    for word, count in words.items():
        for letter in word:
            counts[letter] += count
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
    total, covered, entries, minimum = sum(counts.values()), 0, len(SPECIALS), len(SPECIALS)
    kept: list[str] = []
    inner: list[str] = []
    full = False
    for letter in ranked:
        forms = 2 if _can_stand_inside(letter, normalising) else 1
        if covered < MIN_COVERAGE * total:
            minimum += forms
        room = vocab_size if covered < FULL_COVERAGE * total else ALPHABET_SHARE * vocab_size
        full = full or entries + forms > room
        covered += counts[letter]
        if not full:
            entries += forms
            kept.append(letter)
            inner += [letter] if forms == 2 else []
    if vocab_size < minimum:
        raise RequestError(
            f"tokenizer.vocab_size: {vocab_size} cannot hold this text's {len(ranked)} letters;"
            f" {MIN_COVERAGE:.0%} of the text needs at least {minimum}"
        )
    dropped = ranked[len(kept) :]
    return Alphabet(sorted(kept), sorted(inner), dropped, sum(counts[x] for x in dropped) / max(total, 1))


def _repeated(words: Counter[str], alphabet: Alphabet) -> Iterator[str]:
    """Each trainable word, as often as it was seen, in strings of words between spaces."""
    letters = set(alphabet.letters)
    known = {word: count for word, count in words.items() if letters.issuperset(word)}
    scale = min(1.0, MAX_OCCURRENCES / max(sum(known.values()), 1))
    for word in sorted(known):
        left = max(1, round(known[word] * scale))
        while left > 0:
            yield f"{word} " * min(left, _BLOCK)
            left -= _BLOCK


def learn_vocabulary(words: Counter[str], alphabet: Alphabet, vocab_size: int, min_frequency: int) -> list[str]:
    """Tokens in the order of their ids: the five specials, letters, ``##`` letters, pieces as learnt.

    At most ``vocab_size`` of them; fewer when no pair of pieces is seen ``min_frequency`` times.
    """
    inner = [PREFIX + letter for letter in alphabet.inner]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*SPECIALS, *inner],
        initial_alphabet=alphabet.letters,
        limit_alphabet=len(alphabet.letters),
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    with library_faults("training the tokenizer"):
        tokenizer.train_from_iterator(_repeated(words, alphabet), trainer)
    ids = tokenizer.get_vocab()
    first = {*SPECIALS, *alphabet.letters, *inner}
    pieces = [token for token in sorted(ids, key=ids.__getitem__) if token not in first]
    tokens = [*SPECIALS, *alphabet.letters, *inner, *pieces]
    if len(tokens) > vocab_size or any(not token or token.split() != [token] for token in tokens):
        raise AssertionError(f"{len(tokens)} tokens for {vocab_size}, or a token that is empty or holds white space")
    return tokens
