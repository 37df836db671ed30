"""From logits to answers: the best spans of a context over all its windows.

Source: ``write_predictions`` of the released ``run_squad.py``, but for one thing: there the ``n_best`` starts are
combined with the ``n_best`` ends, here every allowed pair is looked at, so that the best one is never missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bertpt.tasks.qa.graphemes import whole

_ANY_LENGTH = 0.01  # a window's size counts so much beside the context on the poorer side


@dataclass(frozen=True, slots=True)
class Window:
    """What the model says of one row.

    Attributes:
        begin: the first token of the context in it.
        starts: float [n], logits of its n tokens of the context; ends: of the same.
        null: logits of [CLS], both added.
    """

    begin: int
    starts: NDArray[np.float32]
    ends: NDArray[np.float32]
    null: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece of the context.

    Attributes:
        text: as it stands there; start, end: its characters, end excluded.
        score: logits of its first and last token, added.
        probability: softmax of the scores of the ``n_best`` (and of the null score in version 2).
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is said of a question.

    Attributes:
        answers: the best ones, best first; none when the context has no token.
        null_score: the least score of [CLS] of any window.
        null_probability: that there is no answer, in version 2; else 0.
        is_null: whether no answer is given.
    """

    answers: list[Answer]
    null_score: float
    null_probability: float
    is_null: bool

    @property
    def text(self) -> str:
        """The answer; empty when none is given."""
        return "" if self.is_null else self.answers[0].text

    @property
    def margin(self) -> float:
        """The null score less the score of the best answer."""
        return self.null_score - self.answers[0].score if self.answers else float("inf")


def owners(windows: Sequence[Window], tokens: int) -> NDArray[np.int64]:
    """The window in which each token of the context has most context, int64 [tokens]; of equal ones the first.

    Its measure is the number of tokens on the poorer side and 0.01 of the window's size.
    """
    best, owner = np.full(tokens, -1.0), np.full(tokens, -1, np.int64)
    for number, window in enumerate(windows):
        size = len(window.starts)
        place = np.arange(size)
        context = np.minimum(place, size - 1 - place) + _ANY_LENGTH * size
        part = slice(window.begin, window.begin + size)
        better = context > best[part]
        best[part][better] = context[better]
        owner[part][better] = number
    return owner


def best_spans(windows: Sequence[Window], tokens: int, longest: int, n_best: int) -> list[tuple[float, int, int]]:
    """The ``n_best`` spans by score: score, first and last token of the context.

    A span lies in one window, that in which its first token has most context, and has at most ``longest`` tokens.
    """
    owner = owners(windows, tokens)
    found: list[tuple[float, int, int]] = []
    for number, window in enumerate(windows):
        size = len(window.starts)
        if not size:
            continue
        width = min(longest, size)
        ends = np.concatenate([window.ends, np.full(width - 1, -np.inf, np.float32)])
        scores = window.starts[:, None] + sliding_window_view(ends, width)
        scores[owner[window.begin : window.begin + size] != number] = -np.inf
        flat = scores.ravel()
        keep = min(n_best, len(flat))
        best = np.argpartition(-flat, keep - 1)[:keep]
        firsts, more = np.divmod(best, width)
        spans = zip(flat[best].tolist(), firsts.tolist(), more.tolist(), strict=True)
        found += [
            (score, window.begin + first, window.begin + first + further)
            for score, first, further in spans
            if math.isfinite(score)
        ]
    return sorted(found, key=lambda item: (-item[0], item[1], item[2]))[:n_best]


def decide(
    windows: Sequence[Window],
    context: str,
    offsets: NDArray[np.int64],
    *,
    max_answer_length: int,
    n_best: int,
    version_2: bool,
    threshold: float,
) -> Prediction:
    """The best answers, of which those of the same text are one, and whether one is given.

    Args:
        windows: all of the context.
        context: its text.
        offsets: int64 [tokens, 2], where its tokens stand.
        max_answer_length: most tokens of an answer.
        n_best: spans that are kept.
        version_2: whether no answer may be given.
        threshold: no answer is given when its score is this much above the best one's.
    """
    null = min(window.null for window in windows)
    kept: dict[str, tuple[int, int, float]] = {}
    for score, first, last in best_spans(windows, len(offsets), max_answer_length, n_best):
        begin, end = whole(context, int(offsets[first, 0]), int(offsets[last, 1]))
        kept.setdefault(context[begin:end], (begin, end, score))
    scores = np.array([score for _, _, score in kept.values()] + ([null] if version_2 else []))
    shares = np.exp(scores - scores.max()) if len(scores) else scores
    shares = shares / shares.sum()
    answers = [
        Answer(text, begin, end, score, float(share))
        for (text, (begin, end, score)), share in zip(kept.items(), shares, strict=False)
    ]
    is_null = not answers or (version_2 and null - answers[0].score > threshold)
    return Prediction(answers, null, float(shares[-1]) if version_2 else 0.0, is_null)
