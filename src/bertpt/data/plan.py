"""Which spans of the store make the rows of an epoch: a pure function of (seed, epoch, length, rule).

Segments follow Google's ``create_pretraining_data``: whole sentences of one document are gathered up
to a target length, split at a random sentence into A and B; B stays (label 0) or gives way to
sentences of a random place in another document (label 1), and the sentences it leaves unused begin
the next row; what is too long is cut at the front or back of the longer side, token by token.

Three deliberate differences. The target is shortened with probability 0.1 for each row, not for each
document: the expected share is the same, but a book is not cut into hundreds of scraps because of one
draw. A random B is never text equal to the true continuation. A sentence longer than a row is
taken as several, so that its end is not lost.

All documents advance in step, one row each at a time, in numpy; huge ones as several stretches. Random access to
the offsets takes most of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertpt.config.schema import Pairs
from bertpt.data.random import U64, below, bits, extend, half_of, uniform
from bertpt.data.store import Tokens, offsets
from bertpt.errors import RequestError

I64 = NDArray[np.int64]

ROW = np.dtype([("a_start", "<i8"), ("b_start", "<i8"), ("a_length", "<i4"), ("b_length", "<i4"), ("is_random", "?")])
"""A row: A = ids[a_start : a_start + a_length], B alike (length 0 without pairs), label 1 = ``is_random``."""

# What a draw is for; part of its counter, so that no two draws share bits.
_SHORT, _TARGET, _SPLIT, _RANDOM, _DOCUMENT, _SENTENCE, _CUT_A, _CUT_B, _ORDER = range(9)
_TRIES = 10  # Google's number of tries for a document other than A's
STRETCH = 2**18  # tokens, more than a long novel has: one row of 2,000 ends early because of it
_SAME = 16  # tokens of B and of the true continuation that are compared


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Parts of documents that are planned side by side; most documents are one. Rows never go over the end of one.

    All advance in step, so a few huge documents would leave numpy two rows a turn.
    """

    document: I64  # [S], ascending
    first: I64  # [S], sentences of a stretch are [first[s], last[s])
    last: I64
    nth: I64  # [S], from 0 within the document: what its draws follow from

    @classmethod
    def of(cls, sentences: I64, documents: I64) -> _Stretches:
        """Cut documents of more than ``STRETCH`` tokens at ends of sentences."""
        starts = sentences[documents]
        parts = -(-np.diff(starts) // STRETCH)
        document = np.repeat(np.arange(len(parts)), parts)
        begins = offsets(parts)
        nth = np.arange(len(document)) - begins[document]
        first = np.searchsorted(sentences, starts[document] + nth * STRETCH)
        first[begins[:-1]] = documents[:-1]
        last = np.append(first[1:], documents[-1:])
        kept = last > first  # a sentence may be longer than what is left of a stretch
        return cls(document[kept], first[kept], last[kept], nth[kept])


@dataclass(frozen=True, slots=True)
class _Text:
    """Offsets with sentences longer than a row divided. Shapes as in the store."""

    ids: NDArray[Any]
    sentences: I64
    documents: I64
    stretches: _Stretches
    group_starts: I64  # documents of one group (a source, or the corpus) are [group_starts[d], group_ends[d])
    group_ends: I64


def plan_epoch(tokens: Tokens, pairs: Pairs, *, length: int, seed: int, epoch: int) -> NDArray[Any]:
    """The shuffled rows of one epoch.

    Returns:
        [rows] of dtype :data:`ROW`; every row fits ``length`` with its [CLS] and [SEP].

    Raises:
        RequestError: the split holds too few documents for pairs, or gives no row.
    """
    if not len(tokens.ids):
        raise RequestError("no row can be made of this text: it has no sentence with tokens")
    key = bits(seed, epoch)
    if pairs.rule == "none":
        rows = _single_rows(tokens, pairs, length - 2, key)
    else:
        text = _divided(tokens, length - 3, by_source=pairs.random_from == "source")
        groups = text.group_ends - text.group_starts
        if (fewest := int(groups.min()) if len(groups) else 0) < 2:
            raise RequestError(_too_few(pairs, fewest))
        rows = _pair_rows(text, pairs, length - 3, key)
    return rows[np.argsort(extend(key, _ORDER, np.arange(len(rows))), kind="stable")]


def _too_few(pairs: Pairs, documents: int) -> str:
    if pairs.random_from == "source":
        return (
            f"pairs.random_from: source needs at least 2 documents of each source, one has {documents};"
            " set pairs.random_from=corpus"
        )
    return (
        f"pairs.rule: {pairs.rule} needs at least 2 documents, there are {documents};"
        " mark where documents end (blank lines), or set pairs.rule=none"
    )


def _divided(tokens: Tokens, room: int, *, by_source: bool = False) -> _Text:
    """Take sentences of more than ``room`` tokens as several, of which two fill a row."""
    lengths, documents = np.asarray(tokens.lengths), np.asarray(tokens.documents)
    piece = (room + 1) // 2  # rounded down, two would not reach the target, and a third would be cut off
    long = np.flatnonzero(lengths > room)
    if len(long):  # few: what is done for each sentence would take 40 bytes of memory for each of all
        size = lengths[long].astype(np.int64)
        more = -(-size // piece) - 1
        before = offsets(more)
        lengths = np.insert(lengths, np.repeat(long + 1, more), piece)
        lengths[long + before[:-1]] = piece
        lengths[long + before[1:]] = size - more * piece
        documents = documents + before[np.searchsorted(long, documents)]
    # Documents stand in the order of their sources, hence a group is a run of equal labels.
    label = np.asarray(tokens.sources) if by_source else np.zeros(len(documents) - 1, np.uint8)
    edges = np.concatenate([[0], np.flatnonzero(np.diff(label)) + 1, [len(label)]])
    group = np.searchsorted(edges, np.arange(len(label)), side="right") - 1
    sentences = offsets(lengths)
    stretches = _Stretches.of(sentences, documents)
    return _Text(tokens.ids, sentences, documents, stretches, edges[group], edges[group + 1])


def _targets(pairs: Pairs, room: int, key: U64) -> I64:
    short = uniform(extend(key, _SHORT)) < pairs.short_share
    return np.where(short, 2 + below(extend(key, _TARGET), room - 1), room)


def _single_rows(tokens: Tokens, pairs: Pairs, room: int, epoch_key: U64) -> NDArray[Any]:
    """Rows of whole sentences of one document, none lost."""
    sentences = tokens.sentence_offsets()
    stretches = _Stretches.of(sentences, np.asarray(tokens.documents))
    position, ends = sentences[stretches.first], sentences[stretches.last]
    stretch_key = _stretch_keys(epoch_key, stretches)
    made = []
    stretch = np.arange(len(ends))
    turn = 0
    while len(stretch):
        start = position[stretch]
        target = _targets(pairs, room, extend(stretch_key[stretch], turn))
        # The last sentence that still ends within the target; one that is too long alone is cut there.
        end = sentences[np.searchsorted(sentences, start + target, side="right") - 1]
        end = np.minimum(np.where(end > start, end, start + target), ends[stretch])
        made.append(_rows(start, end - start, np.zeros_like(start), np.zeros_like(start), np.zeros(len(start), bool)))
        position[stretch] = end
        stretch = stretch[end < ends[stretch]]
        turn += 1
    return np.concatenate(made)


def _pair_rows(text: _Text, pairs: Pairs, room: int, epoch_key: U64) -> NDArray[Any]:
    """One row a turn from each stretch that is not used up."""
    sentences, stretches = text.sentences, text.stretches
    cursor = stretches.first.copy()
    stretch = np.arange(len(cursor))
    stretch_key = _stretch_keys(epoch_key, stretches)
    made = []
    turn = 0
    while len(stretch):
        key = extend(stretch_key[stretch], turn)
        document, first, last = stretches.document[stretch], cursor[stretch], stretches.last[stretch]
        target = _targets(pairs, room, key)
        end = np.minimum(np.searchsorted(sentences, sentences[first] + target), last)
        split = first + 1 + below(extend(key, _SPLIT), np.maximum(end - first - 1, 1))
        has_next = end - first >= 2
        is_random = ~has_next | (uniform(extend(key, _RANDOM)) < pairs.random_share)
        a_start, a_length = sentences[first], sentences[split] - sentences[first]
        b_start, b_end = sentences[split].copy(), sentences[end].copy()
        chosen = np.flatnonzero(is_random)
        repeats = _draw_other(text, chosen, document, key, split, target - a_length, b_start, b_end)
        # Where only copies of the true continuation were drawn, the pair is a true one, or none.
        is_random[repeats] = False
        b_start[repeats], b_end[repeats] = sentences[split[repeats]], sentences[end[repeats]]
        rows = _truncated(a_start, a_length, b_start, b_end - b_start, is_random, room, key)
        made.append(rows[rows["b_length"] > 0])
        cursor[stretch] = np.where(is_random, split, end)
        stretch = stretch[cursor[stretch] < last]
        turn += 1
    return np.concatenate(made)


def _stretch_keys(epoch_key: U64, stretches: _Stretches) -> U64:
    """uint64 [S]: the first stretch of a document has the key of the document."""
    keys = extend(epoch_key, stretches.document)
    further = stretches.nth > 0
    keys[further] = extend(keys[further], 2**48 + stretches.nth[further])  # no turn goes so far
    return keys


def _draw_other(
    text: _Text,
    chosen: I64,
    document: I64,
    key: U64,
    split: I64,
    wanted: I64,
    b_start: I64,
    b_end: I64,
) -> I64:
    """Fill B of the ``chosen`` rows with sentences from a random place of another document, in place.

    Returns the rows for which every try gave the text of the true continuation.
    """
    sentences, documents = text.sentences, text.documents
    for attempt in range(_TRIES):
        if not len(chosen):
            break
        own = document[chosen]
        group = text.group_starts[own]
        other = group + below(extend(key[chosen], _DOCUMENT, attempt), text.group_ends[own] - group - 1)
        other += other >= own
        within = below(extend(key[chosen], _SENTENCE, attempt), documents[other + 1] - documents[other])
        sentence = documents[other] + within
        start = sentences[sentence]
        end = np.searchsorted(sentences, start + np.maximum(wanted[chosen], 1))
        b_start[chosen], b_end[chosen] = start, sentences[np.minimum(end, documents[other + 1])]
        true_start, true_end = sentences[split[chosen]], sentences[documents[own + 1]]
        chosen = chosen[_equal(text.ids, start, b_end[chosen], true_start, true_end)]
    return chosen


def _equal(ids: NDArray[Any], a: I64, a_end: I64, b: I64, b_end: I64) -> NDArray[np.bool_]:
    """Whether the spans begin with the same tokens, as far as both go and 16 at most."""
    common = np.minimum(np.minimum(a_end - a, b_end - b), _SAME)
    equal: NDArray[np.bool_] = common > 0
    for step in range(int(common.max(initial=0))):
        check = np.flatnonzero(equal & (step < common))
        if not len(check):
            break
        equal[check] = ids[a[check] + step] == ids[b[check] + step]
    return equal


def _truncated(
    a_start: I64, a: I64, b_start: I64, b: I64, is_random: NDArray[np.bool_], room: int, key: U64
) -> NDArray[Any]:
    """Cut the longer side (B when equal) token by token, each at the front or the back with equal chance."""
    excess = np.maximum(a + b - room, 0)
    level = np.minimum(excess, np.abs(a - b))
    rest = excess - level
    cut_a = np.where(a > b, level, 0) + rest // 2
    cut_b = np.where(b > a, level, 0) + rest - rest // 2
    front_a = half_of(extend(key, _CUT_A), cut_a)
    front_b = half_of(extend(key, _CUT_B), cut_b)
    return _rows(a_start + front_a, a - cut_a, b_start + front_b, b - cut_b, is_random)


def _rows(a_start: I64, a: I64, b_start: I64, b: I64, is_random: NDArray[np.bool_]) -> NDArray[Any]:
    rows = np.empty(len(a_start), ROW)
    for name, value in zip(ROW.names or (), (a_start, b_start, a, b, is_random), strict=True):
        rows[name] = value
    return rows
