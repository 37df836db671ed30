"""Scores of predictions: of classes and numbers by scikit-learn and scipy, of tags and entities."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics

from bertpt.tasks.tagging.iob import entities


def class_scores(labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> dict[str, float]:
    """Accuracy, macro F1 over all ``classes``, Matthews correlation, and of two classes the F1 of the second.

    Args:
        labels: int64 [N].
        predicted: int64 [N].
        classes: how many there are; F1 of a class that is nowhere is 0.
    """
    numbers = list(range(classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a file with a single label
        found = {
            "accuracy": float(metrics.accuracy_score(labels, predicted)),
            "f1_macro": float(metrics.f1_score(labels, predicted, labels=numbers, average="macro", zero_division=0)),
            "matthews": float(metrics.matthews_corrcoef(labels, predicted)),
        }
        if classes == 2:
            found["f1"] = float(metrics.f1_score(labels, predicted, pos_label=1, zero_division=0))
    return found


def confusion(labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> list[list[int]] | None:
    """Rows: the true class; columns: the predicted one. ``None`` above 200 classes: it grows with their square."""
    if classes > 200:
        return None
    matrix: list[list[int]] = metrics.confusion_matrix(labels, predicted, labels=list(range(classes))).tolist()
    return matrix


def number_scores(values: NDArray[Any], predicted: NDArray[Any]) -> dict[str, float]:
    """Pearson and Spearman correlation (NaN where one side is constant) and mean squared error; both [N]."""
    values, predicted = values.astype(np.float64), predicted.astype(np.float64)
    found = {"pearson": float("nan"), "spearman": float("nan")}
    if len(values) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.ConstantInputWarning)
            found["pearson"] = float(stats.pearsonr(values, predicted).statistic)
            found["spearman"] = float(stats.spearmanr(values, predicted).statistic)
    return found | {"mse": float(((values - predicted) ** 2).mean())}


class Tagged(NamedTuple):
    """Scores of tagged sentences, and ``precision``, ``recall``, ``f1`` and ``count`` (in the truth) of each type."""

    scores: dict[str, float]
    each: dict[str, dict[str, float]]


def entity_scores(true: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> Tagged:
    """Precision, recall and F1 of entities, right where type and both ends are, and accuracy of words.

    Micro-averaged over types, as ``conlleval`` and ``seqeval`` in strict mode do; 0 where nothing is to divide by.

    Args:
        true: tags in strict IOB2 by sentence.
        found: the same.
    """
    sides = [{(n, each) for n, tags in enumerate(side) for each in entities(tags)} for side in (true, found)]
    right, wanted, given = (
        Counter(each.type for _, each in group) for group in (sides[0] & sides[1], sides[0], sides[1])
    )
    every = _shares(right.total(), wanted.total(), given.total())
    accuracy = {"accuracy": _accuracy(true, found)}
    return Tagged(
        {name: every[name] for name in ("f1", "precision", "recall")} | accuracy,
        {kind: _shares(right[kind], wanted[kind], given[kind]) for kind in sorted(wanted | given)},
    )


def tag_scores(true: Sequence[Sequence[str]], found: Sequence[Sequence[str]], labels: Sequence[str]) -> Tagged:
    """Accuracy of words, and F1 averaged over all ``labels``; F1 of one that is nowhere is 0."""
    pairs = [pair for one, other in zip(true, found, strict=True) for pair in zip(one, other, strict=True)]
    wanted, given = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    right = Counter(one for one, other in pairs if one == other)
    each = {label: _shares(right[label], wanted[label], given[label]) for label in labels}
    return Tagged(
        {"accuracy": _accuracy(true, found), "f1_macro": sum(own["f1"] for own in each.values()) / len(each)}, each
    )


def _accuracy(true: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> float:
    right = sum(one == other for pair in zip(true, found, strict=True) for one, other in zip(*pair, strict=True))
    return right / max(1, sum(map(len, true)))


def _shares(right: int, wanted: int, given: int) -> dict[str, float]:
    return {
        "precision": right / given if given else 0.0,
        "recall": right / wanted if wanted else 0.0,
        "f1": 2 * right / (wanted + given) if wanted + given else 0.0,
        "count": wanted,
    }
