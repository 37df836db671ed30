"""Sources mixed by weight: how often each document comes in an epoch, a pure function of (seed, epoch, document)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertpt.config.schema import Corpus
from bertpt.data.corpus.sources.base import source_labels
from bertpt.data.random import bits, uniform
from bertpt.data.tokens.store import Tokens
from bertpt.errors import RequestError

I64 = NDArray[np.int64]

_STREAM = 0x6D697874  # 'mixt': apart from the streams of pairs and masks


@dataclass(frozen=True, slots=True)
class Mixture:
    """Weights and limits of the sources, in the order of the store's labels."""

    weights: tuple[float, ...]
    max_repeats: tuple[float, ...]


def mixture_of(corpus: Corpus, labels: Sequence[str]) -> Mixture | None:
    """The weights that a configuration gives to the sources of a store; ``None`` where it gives none.

    Args:
        corpus: whose ``sources``, or else ``fallback``, the store was made from.
        labels: the store's ``source_labels``.

    Raises:
        RequestError: the store holds a source that has no place in the configuration.
    """
    lists = (corpus.sources, corpus.fallback)
    chosen = next((each for each in lists if set(labels) <= set(source_labels(each))), None)
    if chosen is None:
        if not any(source.weight for each in lists for source in each):
            return None
        raise RequestError(
            f"corpus.sources: weights are set, and the token store has the sources {', '.join(labels)};"
            " give these names"
        )
    by_label = dict(zip(source_labels(chosen), chosen, strict=True))
    sources = [by_label[label] for label in labels]
    if not all(source.weight for source in sources):
        return None
    return Mixture(
        tuple(float(source.weight or 0) for source in sources), tuple(float(source.max_repeats) for source in sources)
    )


def repeats(tokens: Tokens, mixture: Mixture) -> NDArray[np.float64]:
    """float64 [sources]: how often a document of each source comes in an epoch, on average; 0 of an empty source.

    An epoch has as many tokens as the split. A source gets its weight's share of them, at most ``max_repeats`` times
    what it has; what it then leaves goes to the others by their weights. Where all are at their limit the epoch
    is smaller.
    """
    sizes = np.bincount(
        np.asarray(tokens.sources), np.diff(tokens.document_starts).astype(np.float64), len(mixture.weights)
    )
    weights = np.where(sizes > 0, np.array(mixture.weights), 0.0)
    most = np.array(mixture.max_repeats) * sizes
    given = np.zeros(len(sizes))
    open_ = weights > 0
    while open_.any():
        left = sizes.sum() - given[~open_].sum()
        share = np.where(open_, weights, 0.0) * (left / weights[open_].sum())
        full = open_ & (share >= most)
        if not full.any():
            given = np.where(open_, share, given)
            break
        given = np.where(full, most, given)
        open_ &= ~full
    return given / np.maximum(sizes, 1.0)


def documents_of_epoch(tokens: Tokens, mixture: Mixture | None, *, seed: int, epoch: int) -> tuple[I64, I64]:
    """The documents of an epoch in the order of the split, copies beside each other.

    Of a source that comes r times, every document has come floor(r * epochs) or one more times after any number of
    epochs: with r = 0.3 in 3 epochs of 10, with r = 2.5 twice and thrice in turn.

    Returns:
        int64 [D] indexes of documents, int64 [D] number of the copy in this epoch, from 0.
    """
    count = len(tokens.documents) - 1
    every = np.arange(count)
    if mixture is None:
        return every, np.zeros(count, np.int64)
    rate = repeats(tokens, mixture)[np.asarray(tokens.sources)]
    offset = uniform(bits(seed, _STREAM, every))
    copies = (np.floor(rate * (epoch + 1) + offset) - np.floor(rate * epoch + offset)).astype(np.int64)
    if not copies.any():  # a handful of documents, each due in another epoch
        copies[np.argmax(rate)] = 1
    document = np.repeat(every, copies)
    return document, np.arange(len(document)) - np.repeat(np.cumsum(copies) - copies, copies)
