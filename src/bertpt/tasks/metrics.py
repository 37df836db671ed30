"""Scores of predictions: accuracy, F1, Matthews, Pearson, Spearman, by scikit-learn and scipy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics


def class_scores(labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> dict[str, float]:
    """Accuracy, macro F1 over all ``classes``, Matthews correlation, and of two classes the F1 of the second.

    Args:
        labels: int64 [N].
        predicted: int64 [N].
        classes: how many there are; F1 of a class that is nowhere is 0.
    """
    numbers = list(range(classes))
    found = {
        "accuracy": float(metrics.accuracy_score(labels, predicted)),
        "f1_macro": float(metrics.f1_score(labels, predicted, labels=numbers, average="macro", zero_division=0)),
        "matthews": float(metrics.matthews_corrcoef(labels, predicted)),
    }
    if classes == 2:
        found["f1"] = float(metrics.f1_score(labels, predicted, pos_label=1, zero_division=0))
    return found


def confusion(labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> list[list[int]]:
    """Rows: the true class; columns: the predicted one."""
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
