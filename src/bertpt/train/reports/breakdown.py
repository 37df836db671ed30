"""What stands behind the means of an evaluation: which words are guessed, what the pair head's certainty is worth."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from bertpt.train.evaluate import Predictions

# Last rank of each band: the tokens that grammar needs, common words, rare ones, the tail.
_BANDS = (100, 1000, 10_000)
_BINS = 10


def frequency_bands(unigram: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Bool [V] for each band of ranks by frequency in the training text (1: the most frequent id)."""
    rank = np.empty(len(unigram), np.int64)
    rank[np.argsort(-np.asarray(unigram), kind="stable")] = np.arange(1, len(unigram) + 1)
    edges = [0, *(last for last in _BANDS if last < len(unigram)), len(unigram)]
    bands = {}
    for first, last in itertools.pairwise(edges):
        name = f"rank_from_{first + 1}" if last == edges[-1] else f"rank_{first + 1}_to_{last}"
        bands[name] = (rank > first) & (rank <= last)
    return bands


def breakdown(predictions: Predictions, unigram: NDArray[np.int64]) -> dict[str, float]:
    """Masked accuracy by frequency, of whole words and of pieces of words; certainty of the pair head.

    NaN where a group has no token.

    Args:
        predictions: of the held-out rows.
        unigram: int64 [V], counts of the training text.
    """
    groups = {name: band[predictions.labels] for name, band in frequency_bands(unigram).items()}
    groups |= {"whole_word": predictions.whole_word, "word_piece": ~predictions.whole_word}
    found = {
        f"mlm_accuracy_{name}": float(predictions.mlm_right[of].mean()) if of.any() else float("nan")
        for name, of in groups.items()
    }
    if len(predictions.nsp_nll):
        certainty = nsp_certainty(predictions)
        found["nsp_confidence"] = float(certainty.mean())
        found["nsp_calibration_error"] = calibration_error(certainty, predictions.nsp_right)
    return found


def nsp_certainty(predictions: Predictions) -> NDArray[np.float64]:
    """float64 [R]: probability of the answer that the pair head gives, from 0.5 to 1."""
    of_label = np.exp(-predictions.nsp_nll)
    return np.where(predictions.nsp_right, of_label, 1 - of_label)


def calibration_error(certainty: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Expected calibration error over ten bins of equal width (Guo et al. 2017): |accuracy - certainty|, by count."""
    index = np.clip(((certainty - 0.5) * 2 * _BINS).astype(np.int64), 0, _BINS - 1)
    size = np.bincount(index, minlength=_BINS)
    gap = np.bincount(index, right, _BINS) - np.bincount(index, certainty, _BINS)
    return float(np.abs(gap).sum() / size.sum())
