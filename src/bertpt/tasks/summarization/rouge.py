"""ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): what a summary has in common with a reference, as F-measure.

Words are lower-cased runs of letters and digits, without stemming, as in Google's ``rouge-score``; there every
letter outside a-z is a gap, so that Russian or Hindi scores 0. Here letters of every script count, with their
combining marks, and each ideograph is a word. That package (last release 2022) also needs NLTK for a stemmer that is
off by default.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

NAMES = ("rouge1", "rouge2", "rougeL")
_ASCII = re.compile("[a-z0-9]+")
_IDEOGRAPHS = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])")

Counts = Counter[tuple[str, ...]]


def words(text: str) -> list[str]:
    """The words of a text, in order."""
    text = text.lower()
    if text.isascii():
        return _ASCII.findall(text)
    kept = "".join(
        c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in unicodedata.normalize("NFC", text)
    )
    return _IDEOGRAPHS.sub(r" \1 ", kept).split()


def ngrams(tokens: Sequence[str], n: int) -> Counts:
    """How often each n-gram stands there."""
    return Counter(zip(*(tokens[begin:] for begin in range(n)), strict=False))


def f_measure(common: int, candidate: int, reference: int) -> float:
    """``2 P R / (P + R)`` with ``P = common / candidate`` and ``R = common / reference``; 0 where nothing is common."""
    return 2 * common / (candidate + reference) if common else 0.0


def rouge(candidate: Sequence[str], reference: Sequence[str]) -> dict[str, float]:
    """F-measures of the words of a summary; an n-gram counts as often as it stands in both.

    ``rougeL`` is of the longest common subsequence of the two texts, each taken as one sequence.
    """
    scores = {}
    for n in (1, 2):
        ours, theirs = ngrams(candidate, n), ngrams(reference, n)
        scores[f"rouge{n}"] = f_measure((ours & theirs).total(), ours.total(), theirs.total())
    return scores | {"rougeL": f_measure(common_length(candidate, reference), len(candidate), len(reference))}


def common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence.

    A column of the usual table is the bits of one number (Hyyro 2004), so a row of it costs a few operations on
    long integers: 0.1 ms for texts of 200 words.
    """
    places: dict[str, int] = {}
    for index, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << index
    full = (1 << len(one)) - 1
    column = full
    for word in other:
        found = column & places.get(word, 0)
        column = (column + found | column - found) & full
    return len(one) - column.bit_count()
