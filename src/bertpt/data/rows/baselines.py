"""What can be reached without reading the context: the lines that a learning claim must beat."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertpt.data.tokens.store import Tokens, TokenStore

I64 = NDArray[np.int64]


def unigram_probabilities(counts: I64, special_ids: I64) -> NDArray[np.float64]:
    """float64 [V]: smoothed (one added) shares of the ids in the training text; special tokens get none."""
    smoothed: NDArray[np.float64] = counts.astype(np.float64) + 1
    smoothed[special_ids] = 0
    smoothed /= smoothed.sum()
    return smoothed


def store_unigrams(store: TokenStore) -> NDArray[np.float64]:
    """:func:`unigram_probabilities` of the training text of a store."""
    return unigram_probabilities(np.asarray(store.unigram), np.array(sorted(store.special_ids.values())))


def unigram_entropy(probabilities: NDArray[np.float64]) -> float:
    """Entropy of the training text's unigram distribution, nats: where a model without context ends up."""
    positive = probabilities[probabilities > 0]
    return float(-(positive * np.log(positive)).sum())


def unigram_loss(labels: I64, probabilities: NDArray[np.float64]) -> float:
    """Mean -log p of the held-out labels under the training text's unigrams, nats; NaN without labels."""
    if not len(labels):
        return float("nan")
    return float(-np.log(np.maximum(probabilities[labels], 1e-300)).mean())


def document_of(tokens: Tokens, start: I64) -> I64:
    """int64: the document that each id offset lies in."""
    return np.searchsorted(tokens.document_starts, start, side="right") - 1


def document_count_loss(
    tokens: Tokens,
    rows: NDArray[Any],
    per_row: I64,
    in_second: NDArray[np.bool_],
    labels: I64,
    probabilities: NDArray[np.float64],
) -> tuple[float, float]:
    """Mean -log p under a mix of the whole document's own counts and the corpus unigrams, nats.

    The counts of a label's document are those of its entire text, less the tokens masked in this row; the
    share of the document in the mix is the best one on these very labels (grid of 0.05). Both
    favour the baseline: a model sees one row, and tunes nothing on held-out text.

    Returns:
        loss, best share; NaN without labels.
    """
    if not len(labels):
        return float("nan"), float("nan")
    row = np.repeat(np.arange(len(rows)), per_row)
    start = np.where(in_second, rows["b_start"][row], rows["a_start"][row])
    document = document_of(tokens, start)
    starts = tokens.document_starts
    vocab = len(probabilities)
    share_in_document = np.empty(len(labels))
    order = np.argsort(document, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(document[order])) + 1):
        index = document[group[0]]
        counts = np.bincount(tokens.ids[starts[index] : starts[index + 1]], minlength=vocab)
        key = row[group] * vocab + labels[group]
        _, inverse, hidden_same = np.unique(key, return_inverse=True, return_counts=True)
        _, inverse_row, hidden = np.unique(row[group], return_inverse=True, return_counts=True)
        visible = counts[labels[group]] - hidden_same[inverse]
        share_in_document[group] = np.maximum(visible, 0) / np.maximum(counts.sum() - hidden[inverse_row], 1)
    unigram = probabilities[labels]
    losses = {
        share: float(-np.log(np.maximum(share * share_in_document + (1 - share) * unigram, 1e-300)).mean())
        for share in np.arange(0, 1.0, 0.05)
    }
    best = min(losses, key=losses.__getitem__)
    return losses[best], float(best)


def same_source(tokens: Tokens, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Bool [R]: whether both halves come from the same source."""
    source_a = tokens.sources[document_of(tokens, rows["a_start"])]
    source_b = tokens.sources[document_of(tokens, rows["b_start"])]
    same: NDArray[np.bool_] = source_a == source_b
    return same


def length_detector_accuracy(rows: NDArray[Any], label: NDArray[np.bool_]) -> float:
    """Accuracy of knowing only which half is longer, by whichever answer to that fits these labels better.

    Sentences at a document's end, and the sentence that fills a row, are of other lengths than the rest, so swapped
    segments could be told by their lengths alone.
    """
    longer = rows["a_length"] > rows["b_length"]
    agree = float((longer == label).mean())
    return max(agree, 1 - agree)


def balanced_accuracy(right: NDArray[np.bool_], label: NDArray[np.bool_]) -> float:
    """Mean of the accuracies on either label; 0.5 is chance whatever their shares. NaN if one is absent."""
    if label.all() or not label.any():
        return float("nan")
    return float((right[label].mean() + right[~label].mean()) / 2)


def balanced_by_group(right: NDArray[np.bool_], label: NDArray[np.bool_], group: NDArray[Any]) -> float:
    """Mean over groups of the balanced accuracy within each; NaN when no group has both labels.

    Pooled, the figure can be above chance for a model that knows only the groups: where one source has few
    documents, its same-source pairs are nearly all true ones, and telling the sources apart pays.
    """
    values = [balanced_accuracy(right[group == g], label[group == g]) for g in np.unique(group)]
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def source_detector_accuracy(
    is_random: NDArray[np.bool_], same_source: NDArray[np.bool_], source: NDArray[Any]
) -> float:
    """Accuracy of a detector that knows both sources: "random" where they differ, else the commoner label there."""
    guess = ~same_source
    for g in np.unique(source):
        among = same_source & (source == g)
        if among.any():
            guess[among] = is_random[among].mean() > 0.5
    return float((guess == is_random).mean())
