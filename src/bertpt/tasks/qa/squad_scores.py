"""Exact match and F1 of answers, by the definitions of the SQuAD evaluation (1.1 and 2.0).

Rajpurkar et al. 2016, section 6.1, and 2018, section 5: texts are compared in lower case, without punctuation,
articles and additional white space; a prediction counts by the reference answer that it fits best.
Scores are shares, 0 to 1 (the evaluation scripts print 100 times that).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)  # that of ASCII


def normalized(text: str) -> str:
    """Lower case, then without ASCII punctuation, then without articles, words one space apart."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1 when both are the same after normalising, else 0."""
    return float(normalized(prediction) == normalized(answer))


def f1(prediction: str, answer: str, *, version_2: bool) -> float:
    """F1 of the words that both share, as bags.

    Where either is empty, version 2 gives 1 when both are; version 1.1 knows no empty text and gives 0.
    """
    found, wanted = normalized(prediction).split(), normalized(answer).split()
    if version_2 and not (found and wanted):
        return float(found == wanted)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def best_scores(prediction: str, answers: Sequence[str], *, version_2: bool) -> tuple[float, float]:
    """Exact match and F1 by the answer that fits best.

    In version 2 answers that are empty after normalising do not count, and a question without any has the answer "".
    """
    if version_2:
        answers = [answer for answer in answers if normalized(answer)] or [""]
    return (
        max(exact_match(prediction, answer) for answer in answers),
        max(f1(prediction, answer, version_2=version_2) for answer in answers),
    )


def best_threshold(
    values: Sequence[float], answerable: Sequence[bool], margins: Sequence[float]
) -> tuple[float, float]:
    """The best mean score of any threshold on the null score, and that threshold.

    Args:
        values: of each question, the score of its best answer that is not empty.
        answerable: whether it has an answer; margins: null score less the score of the best answer.
    """
    score = float(len(answerable) - sum(answerable))  # nothing is answered
    best, threshold = score, float("-inf")
    order = sorted(range(len(margins)), key=margins.__getitem__)
    for number, index in enumerate(order):
        score += values[index] if answerable[index] else -1.0
        is_last_of_equals = number + 1 == len(order) or margins[order[number + 1]] > margins[index]
        if is_last_of_equals and score > best:
            best, threshold = score, margins[index]
    return best / max(1, len(margins)), threshold
