"""Which spans of the store make the rows of an epoch: a pure function of (seed, epoch, length, rule).

``pairs.rule: next``. Segments follow Google's ``create_pretraining_data``: whole sentences of one document are
gathered up to a target length, split at a random sentence into A and B; B stays (label 0) or gives way to
sentences of a random place in another document (label 1), and the sentences it leaves unused begin
the next row; what is too long is cut at the front or back of the longer side, token by token.

Three deliberate differences. The target is shortened with probability 0.1 for each row, not for each
document: the expected share is the same, but a book is not cut into hundreds of scraps because of one
draw. A random B is never text equal to the true continuation. A sentence longer than a row is
taken as several, so that its end is not lost.

``order`` is sentence order prediction (Lan et al. 2020, section 3.1): segments gathered and split alike, in order
(label 0) or swapped (label 1) with probability 0.5. The released code gives a chunk of one sentence a random B, a
third kind of pair; here it takes in the sentence after it, or at a document's end the one before it, so that every
pair is two segments of one document. A document of one sentence gives no row. ``none`` is rows of whole sentences of
one document (DOC-SENTENCES of Liu et al. 2019).

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
from bertpt.data.rows.mixture import Mixture, documents_of_epoch
from bertpt.data.tokens.store import Tokens, offsets
from bertpt.errors import RequestError

I64 = NDArray[np.int64]

ROW = np.dtype([("a_start", "<i8"), ("b_start", "<i8"), ("a_length", "<i4"), ("b_length", "<i4"), ("is_random", "?")])
"""A row: A = ids[a_start : a_start + a_length], B alike (length 0 without pairs); its label is ``pair_labels``."""

PAIR_WORDS = {"next": ("B follows A", "B is random"), "order": ("in order", "swapped")}
"""Labels 0 and 1 of each rule with pairs, in words."""

# What a draw is for; part of its counter, so that no two draws share bits.
_SHORT, _TARGET, _SPLIT, _RANDOM, _DOCUMENT, _SENTENCE, _CUT_A, _CUT_B, _ORDER = range(9)
_SWAPPED = 0.5
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
    nth: I64  # [S], from 0 within the document
    key: U64  # [S], what the draws of a stretch follow from

    @classmethod
    def of(cls, sentences: I64, first: I64, last: I64, key: U64) -> _Stretches:
        """Cut documents of more than ``STRETCH`` tokens at ends of sentences; the first part has the document's key."""
        starts = sentences[first]
        parts = -(-(sentences[last] - starts) // STRETCH)
        document = np.repeat(np.arange(len(parts)), parts)
        nth = np.arange(len(document)) - offsets(parts)[document]
        begin = np.where(nth == 0, first[document], np.searchsorted(sentences, starts[document] + nth * STRETCH))
        end = np.where(nth == parts[document] - 1, last[document], np.append(begin[1:], 0))
        keys = key[document]
        further = nth > 0
        keys[further] = extend(keys[further], 2**48 + nth[further])  # no turn goes so far
        kept = end > begin  # a sentence may be longer than what is left of a stretch
        return cls(document[kept], begin[kept], end[kept], nth[kept], keys[kept])


@dataclass(frozen=True, slots=True)
class _Text:
    """Offsets with sentences longer than a row divided, and the D documents of an epoch, copies included."""

    ids: NDArray[Any]
    sentences: I64
    first: I64  # [D], sentences of a document are [first[d], last[d])
    last: I64
    stretches: _Stretches


@dataclass(frozen=True, slots=True)
class _Others:
    """The P documents that a random B is drawn from, and which of them serve each of the D documents."""

    first: I64  # [P], sentences as in _Text
    last: I64
    group_starts: I64  # [D], documents of one group (a source, or the corpus) are [group_starts[d], group_ends[d])
    group_ends: I64
    own_starts: I64  # [D], the document itself and its copies, which do not serve it
    own_ends: I64


def pair_labels(rows: NDArray[Any], rule: str) -> NDArray[np.bool_]:
    """Bool [rows]: True for label 1, a random B (``next``) or swapped segments (``order``)."""
    labels: NDArray[np.bool_] = rows["b_start"] < rows["a_start"] if rule == "order" else rows["is_random"]
    return labels


def plan_epoch(
    tokens: Tokens, pairs: Pairs, *, length: int, seed: int, epoch: int, mixture: Mixture | None = None
) -> NDArray[Any]:
    """The rows of one epoch, shuffled; in the first ``pairs.curriculum_epochs`` those of fewest tokens come first.

    Args:
        tokens: the split.
        pairs: the rule.
        length: most tokens of a row with its [CLS] and [SEP].
        seed: of all draws.
        epoch: from 0.
        mixture: how often the documents of each source come; once each by default.

    Returns:
        [rows] of dtype :data:`ROW`.

    Raises:
        RequestError: the split holds too few documents for pairs, or gives no row.
    """
    if not len(tokens.ids):
        raise RequestError("no row can be made of this text: it has no sentence with tokens")
    key = bits(seed, epoch)
    document, copy = documents_of_epoch(tokens, mixture, seed=seed, epoch=epoch)
    keys = extend(key, document + (copy << 40))
    if pairs.rule == "none":
        sentences, documents = tokens.sentence_offsets(), np.asarray(tokens.documents)
    else:
        sentences, documents = _divided(tokens, length - 3)
    first, last = documents[document], documents[document + 1]
    text = _Text(tokens.ids, sentences, first, last, _Stretches.of(sentences, first, last, keys))
    if pairs.rule == "none":
        rows = _single_rows(text, pairs, length - 2)
    elif pairs.rule == "order":
        rows = _ordered_rows(text, pairs, length - 3)
    else:
        rows = _pair_rows(text, _others(tokens, documents, document, text, pairs), pairs, length - 3)
    if not len(rows):
        raise RequestError(f"pairs.rule: {pairs.rule} gives no row: each document is one sentence; set pairs.rule=none")
    order = extend(key, _ORDER, np.arange(len(rows)))
    if epoch < pairs.curriculum_epochs:
        return rows[np.lexsort((order, rows["a_length"] + rows["b_length"]))]
    return rows[np.argsort(order, kind="stable")]


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


def _divided(tokens: Tokens, room: int) -> tuple[I64, I64]:
    """Offsets in which a sentence of more than ``room`` tokens is several, of which two fill a row."""
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
    return offsets(lengths), documents


def _others(tokens: Tokens, documents: I64, document: I64, text: _Text, pairs: Pairs) -> _Others:
    """Where a random B is drawn: the documents of this epoch, or all of A's own source.

    Raises:
        RequestError: a document would have no other.
    """
    count = len(documents) - 1
    by_source = pairs.random_from == "source"
    # Documents stand in the order of their sources, hence a group is a run of equal labels.
    label = np.asarray(tokens.sources) if by_source else np.zeros(count, np.uint8)
    edges = np.concatenate([[0], np.flatnonzero(np.diff(label)) + 1, [len(label)]])
    if (fewest := int(np.diff(edges).min())) < 2:
        raise RequestError(_too_few(pairs, fewest))
    if by_source or document[0] == document[-1]:  # in an epoch with weights, one document alone has no other in it
        group = np.searchsorted(edges, document, side="right") - 1
        return _Others(documents[:-1], documents[1:], edges[group], edges[group + 1], document, document + 1)
    starts = np.searchsorted(document, document)
    ends = np.searchsorted(document, document, side="right")
    whole = np.zeros_like(document), np.full_like(document, len(document))
    return _Others(text.first, text.last, *whole, starts, ends)


def _targets(pairs: Pairs, room: int, key: U64) -> I64:
    short = uniform(extend(key, _SHORT)) < pairs.short_share
    return np.where(short, 2 + below(extend(key, _TARGET), room - 1), room)


def _single_rows(text: _Text, pairs: Pairs, room: int) -> NDArray[Any]:
    """Rows of whole sentences of one document, none lost."""
    sentences, stretches = text.sentences, text.stretches
    position, ends = sentences[stretches.first], sentences[stretches.last]
    made = []
    stretch = np.arange(len(ends))
    turn = 0
    while len(stretch):
        start = position[stretch]
        target = _targets(pairs, room, extend(stretches.key[stretch], turn))
        # The last sentence that still ends within the target; one that is too long alone is cut there.
        end = sentences[np.searchsorted(sentences, start + target, side="right") - 1]
        end = np.minimum(np.where(end > start, end, start + target), ends[stretch])
        made.append(_rows(start, end - start, np.zeros_like(start), np.zeros_like(start), np.zeros(len(start), bool)))
        position[stretch] = end
        stretch = stretch[end < ends[stretch]]
        turn += 1
    return np.concatenate(made)


def _ordered_rows(text: _Text, pairs: Pairs, room: int) -> NDArray[Any]:
    """As ``_pair_rows``, with both segments from one place, swapped in half of the rows."""
    sentences, stretches = text.sentences, text.stretches
    cursor = stretches.first.copy()
    # A later stretch of one sentence has one before it; a document of one sentence gives no row.
    stretch = np.flatnonzero((stretches.last - stretches.first >= 2) | (stretches.nth > 0))
    made = [np.empty(0, ROW)]
    turn = 0
    while len(stretch):
        key = extend(stretches.key[stretch], turn)
        first, last = cursor[stretch], stretches.last[stretch]
        target = _targets(pairs, room, key)
        end = np.minimum(np.searchsorted(sentences, sentences[first] + target), last)
        end = np.where((end - first < 2) & (end < last), end + 1, end)
        first = np.where(end - first < 2, first - 1, first)
        split = first + 1 + below(extend(key, _SPLIT), end - first - 1)
        swapped = uniform(extend(key, _RANDOM)) < _SWAPPED
        front, middle, back = sentences[first], sentences[split], sentences[end]
        # Swapped before it is cut: which side loses more tells nothing about the label.
        a_start, b_start = np.where(swapped, middle, front), np.where(swapped, front, middle)
        a_length = np.where(swapped, back - middle, middle - front)
        made.append(_truncated(a_start, a_length, b_start, back - front - a_length, np.zeros_like(swapped), room, key))
        cursor[stretch] = end
        stretch = stretch[end < last]
        turn += 1
    return np.concatenate(made)


def _pair_rows(text: _Text, others: _Others, pairs: Pairs, room: int) -> NDArray[Any]:
    """One row a turn from each stretch that is not used up."""
    sentences, stretches = text.sentences, text.stretches
    cursor = stretches.first.copy()
    stretch = np.arange(len(cursor))
    made = []
    turn = 0
    while len(stretch):
        key = extend(stretches.key[stretch], turn)
        document, first, last = stretches.document[stretch], cursor[stretch], stretches.last[stretch]
        target = _targets(pairs, room, key)
        end = np.minimum(np.searchsorted(sentences, sentences[first] + target), last)
        split = first + 1 + below(extend(key, _SPLIT), np.maximum(end - first - 1, 1))
        has_next = end - first >= 2
        is_random = ~has_next | (uniform(extend(key, _RANDOM)) < pairs.random_share)
        a_start, a_length = sentences[first], sentences[split] - sentences[first]
        b_start, b_end = sentences[split].copy(), sentences[end].copy()
        chosen = np.flatnonzero(is_random)
        repeats = _draw_other(text, others, chosen, document, key, split, target - a_length, b_start, b_end)
        # Where only copies of the true continuation were drawn, the pair is a true one, or none.
        is_random[repeats] = False
        b_start[repeats], b_end[repeats] = sentences[split[repeats]], sentences[end[repeats]]
        rows = _truncated(a_start, a_length, b_start, b_end - b_start, is_random, room, key)
        made.append(rows[rows["b_length"] > 0])
        cursor[stretch] = np.where(is_random, split, end)
        stretch = stretch[cursor[stretch] < last]
        turn += 1
    return np.concatenate(made)


def _draw_other(
    text: _Text,
    others: _Others,
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
    sentences = text.sentences
    for attempt in range(_TRIES):
        if not len(chosen):
            break
        own = document[chosen]
        group, skipped = others.group_starts[own], others.own_starts[own]
        copies = others.own_ends[own] - skipped
        number = others.group_ends[own] - group - copies
        other = group + below(extend(key[chosen], _DOCUMENT, attempt), number)
        other += np.where(other >= skipped, copies, 0)
        within = below(extend(key[chosen], _SENTENCE, attempt), others.last[other] - others.first[other])
        sentence = others.first[other] + within
        start = sentences[sentence]
        end = np.searchsorted(sentences, start + np.maximum(wanted[chosen], 1))
        b_start[chosen], b_end[chosen] = start, sentences[np.minimum(end, others.last[other])]
        true_start, true_end = sentences[split[chosen]], sentences[text.last[own]]
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
