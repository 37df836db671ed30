"""Near-duplicates of documents, held-out ones or earlier ones: found by MinHash, confirmed exactly.

Two documents are compared by their sets of word 5-grams (runs of five words, without punctuation and case). Their
Jaccard similarity is the share of the 5-grams in either that are in both. An index of MinHash signatures
(Broder 1997), parted into bands, gives the documents that another may resemble; for these the
similarity is computed exactly. So nothing is removed that is below the threshold, and what is above it is
missed with a probability of at most ``MISSED``.
"""

from __future__ import annotations

import re
import string
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rensa import RMinHash, RMinHashLSH

WORDS = 5
PERMUTATIONS = 128
MISSED = 1e-3  # largest probability of missing a pair at the threshold
LETTERS = 4_000_000  # of a longer document, so many letters count: a 5-gram costs some 100 bytes of memory
_SEED = 1

_PLAIN = bytes.maketrans(
    (string.ascii_uppercase + string.punctuation).encode(),
    (string.ascii_lowercase + " " * len(string.punctuation)).encode(),
)
_MARKS = re.compile("[\xa0-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\u2000-\u206f\u3000-\u303f\uff00-\uff0f]+")
# Scripts that put no space between words: each letter counts as one.
_APART = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"
)


def words_of(text: str) -> list[bytes]:
    """The words of a text in lower case, punctuation left out, as UTF-8."""
    text = text[:LETTERS]
    if not text.isascii():
        text = _APART.sub(r" \g<0> ", _MARKS.sub(" ", text.lower()))
    return text.encode("utf-8", "surrogatepass").translate(_PLAIN).split()


def shingles(text: str) -> list[bytes]:
    """The text's word 5-grams in order; of a text of fewer words, all of it; none of a text without words."""
    words = words_of(text)
    if len(words) < WORDS:
        return [b" ".join(words)] if words else []
    return list(map(b" ".join, zip(*(words[first:] for first in range(WORDS)), strict=False)))


def bands_for(threshold: float) -> int:
    """The fewest bands of the signature, a power of two, that miss a pair at the threshold less often than MISSED."""
    bands = 1
    while bands < PERMUTATIONS and (1 - threshold ** (PERMUTATIONS // bands)) ** bands > MISSED:
        bands *= 2
    return bands


class DocumentIndex:
    """Documents, to ask whether another resembles one of them.

    In memory are about 3.5 KB for each document (32 bands at 0.8; measured over 20,000); the hashes of the
    5-grams, by which a resemblance is confirmed, are kept in a file: 8 bytes a word, more than the text.

    Args:
        threshold: Jaccard similarity from which on a document is a near-duplicate, above 0 and at most 1.
        scratch: a file that may be written; whoever calls removes it.
    """

    def __init__(self, threshold: float, scratch: Path) -> None:
        self.threshold = threshold
        self._scratch = scratch
        self._index = RMinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, num_bands=bands_for(threshold))
        self._ends = [0]
        scratch.write_bytes(b"")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, text: str) -> None:
        """Take in a document; one without words resembles nothing."""
        if found := shingles(text):
            self._add(found, _signature(found))

    def _add(self, found: list[bytes], signature: RMinHash) -> None:
        self._index.insert(len(self), signature)
        hashes = _hashes(found)
        with self._scratch.open("ab") as file:
            hashes.tofile(file)
        self._ends.append(self._ends[-1] + len(hashes))

    def resembles(self, text: str) -> bool:
        """Whether the document's similarity to one that was taken in reaches the threshold."""
        if not len(self) or not (found := shingles(text)):
            return False
        return self._resembles(found, _signature(found))

    def resembles_or_add(self, text: str) -> bool:
        """As :meth:`resembles`; a document that resembles none is taken in."""
        if not (found := shingles(text)):
            return False
        signature = _signature(found)
        if self._resembles(found, signature):
            return True
        self._add(found, signature)
        return False

    def _resembles(self, found: list[bytes], signature: RMinHash) -> bool:
        candidates = self._index.query(signature)
        if not candidates:
            return False
        own = _hashes(found)
        return any(jaccard(own, self._stored(number)) >= self.threshold for number in sorted(candidates))

    def _stored(self, number: int) -> NDArray[np.uint64]:
        start, end = self._ends[number], self._ends[number + 1]
        return np.fromfile(self._scratch, np.uint64, end - start, offset=8 * start)


def _signature(found: list[bytes]) -> RMinHash:
    signature = RMinHash(num_perm=PERMUTATIONS, seed=_SEED)
    signature.update(found)
    return signature


def _hashes(found: list[bytes]) -> NDArray[np.uint64]:
    """uint64 [n], sorted: the different 5-grams."""
    return np.unique(np.array(RMinHash.hash_token_sets([found])[0], np.uint64))


def jaccard(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    """Similarity of two sorted sets without repeats; 0 when both are empty."""
    both = len(np.intersect1d(a, b, assume_unique=True))
    either = len(a) + len(b) - both
    return both / either if either else 0.0
