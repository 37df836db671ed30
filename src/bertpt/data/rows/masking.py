"""Which tokens of a row are predicted and what stands in their place: a pure function of (seed, epoch, row).

Source of the rule: Devlin et al. 2019, section 3.1, and ``create_masked_lm_predictions`` of the released
code: ``round(rate * n)`` positions without replacement, at least 1, at most a cap derived from the
length; of these 80% become [MASK], 10% a random token, 10% stay. Here n counts the maskable tokens (the
released code counts [CLS] and [SEP] too, hence predicts 15.4% of the text at length 128 and 25% of
a row of 10), and special tokens and padded rows of the embedding are never drawn as replacement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertpt.config.schema import Masking
from bertpt.data.random import U64, below, bits, extend, uniform

_CHOICE, _KIND, _TOKEN, _SPAN = range(4)
_STATIC = 0x73746174  # 'stat'
I64 = NDArray[np.int64]

_NEVER = np.uint64(2**64 - 1)


def max_predictions(rate: float, length: int) -> int:
    """Most predictions in a row of ``length`` tokens: 20 at 128 and 77 at 512 for 15%, as released."""
    return max(1, math.ceil(rate * length))


@dataclass(frozen=True, slots=True)
class Masker:
    """The masking rule for one vocabulary.

    Attributes:
        special: sorted int64 [5], ids that are never chosen and never drawn.
        continues_word: bool [V], True for pieces that continue a word.
    """

    settings: Masking
    vocab_size: int
    mask_id: int
    special: NDArray[np.int64]
    continues_word: NDArray[np.bool_]

    def __call__(
        self,
        ids: I64,
        lengths: I64,
        row_keys: U64,
        cap: int,
        places: I64 | None = None,
    ) -> tuple[I64, I64, I64]:
        """Mask packed rows.

        Args:
            ids: int64 [T], the tokens of B rows.
            lengths: int64 [B]; row_keys: uint64 [B], one random key for each row.
            cap: most predictions in a row.
            places: int64 [T], the counter of each token's draws; by default where it stands in its row.

        Returns:
            masked ids int64 [T], positions int64 [M] among the T in ascending order, labels int64 [M].
        """
        row = np.repeat(np.arange(len(lengths)), lengths)
        if places is None:
            places = np.arange(len(ids)) - (np.cumsum(lengths) - lengths)[row]
        maskable = ~np.isin(ids, self.special)
        chosen = self._choose(ids, row, places, maskable, lengths, row_keys, cap)
        positions = np.flatnonzero(chosen)
        labels = ids[positions]
        of, place = row[positions], places[positions]
        kind = uniform(extend(bits(row_keys, _KIND)[of], place))
        drawn = below(extend(bits(row_keys, _TOKEN)[of], place), self.vocab_size - len(self.special))
        for special in self.special:  # skip over the special ids: uniform over all others
            drawn += drawn >= special
        mask, random = self.settings.mask_share, self.settings.mask_share + self.settings.random_share
        masked = ids.copy()
        masked[positions] = np.where(kind < mask, self.mask_id, np.where(kind < random, drawn, labels))
        return masked, positions, labels

    def _choose(
        self, ids: I64, row: I64, places: I64, maskable: NDArray[np.bool_], lengths: I64, row_keys: U64, cap: int
    ) -> NDArray[np.bool_]:
        """Bool [T]: the tokens with the smallest random numbers of their row, as many as the rate asks."""
        available = np.bincount(row[maskable], minlength=len(lengths))
        wanted = np.clip(np.floor(self.settings.rate * available + 0.5).astype(np.int64), 1, cap)
        number = np.where(maskable, extend(bits(row_keys, _CHOICE)[row], places), _NEVER)
        if self.settings.unit != "token":
            inner = self.continues_word[ids] & maskable & np.concatenate([[False], maskable[:-1]])
            start = np.flatnonzero(~inner)
            words = _Words(np.diff(np.append(start, len(ids))), row[start], number[start], maskable[start])
            chosen_words = np.zeros(len(start), np.bool_)
            left = wanted.copy()
            if self.settings.unit == "ngram":
                draw = uniform(extend(bits(row_keys, _SPAN)[row[start]], places[start]))
                _choose_spans(words, draw, self.settings.max_ngram, chosen_words, left)
            _choose_words(words, chosen_words, left, wanted)
            return np.repeat(chosen_words, words.size)
        column = np.arange(len(ids)) - (np.cumsum(lengths) - lengths)[row]
        grid = np.full((len(lengths), int(lengths.max(initial=1))), _NEVER)
        grid[row, column] = number
        grid.sort(axis=1)
        limit = grid[np.arange(len(lengths)), np.minimum(wanted, available) - 1]
        chosen: NDArray[np.bool_] = maskable & (number <= limit[row])
        return chosen


@dataclass(frozen=True, slots=True)
class _Words:
    """The W words of B rows, in order; a special token is one that may not be chosen."""

    size: I64  # [W], tokens
    row: I64  # [W]
    number: U64  # [W], those of smallest number are chosen first
    maskable: NDArray[np.bool_]  # [W]


def _choose_words(words: _Words, chosen: NDArray[np.bool_], left: I64, wanted: I64) -> None:
    """Choose the words with the smallest numbers of their row while they fit into what is ``left``, in place.

    A word that would go past it is passed over for the next that fits, as released: long words are
    predicted a little less often. Where a row has none that fits and none chosen, its first word is taken all the
    same, even past the cap: a row has at least one prediction.
    """
    size, row = words.size, words.row
    order = np.lexsort((words.number, row))
    candidates = order[words.maskable[order]]
    first = candidates[np.diff(row[candidates], prepend=-1) > 0]
    waiting = candidates[~chosen[candidates]]
    while len(waiting := waiting[size[waiting] <= left[row[waiting]]]):
        of = row[waiting]
        before = np.cumsum(size[waiting]) - size[waiting]
        used = before - before[np.searchsorted(of, of)] + size[waiting]
        fits = used <= left[of]
        chosen[waiting[fits]] = True
        left -= np.bincount(of[fits], size[waiting[fits]], len(left)).astype(np.int64)
        waiting = waiting[~fits]
    chosen[first[left[row[first]] == wanted[row[first]]]] = True


def run_lengths(draw: NDArray[np.float64], room: I64, longest: int) -> I64:
    """int64 [W]: from uniform draws in [0, 1) the words of a run, n of 1 to ``room`` in proportion to 1/n; 0 for 0."""
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, longest + 1))])
    found: I64 = np.searchsorted(harmonic, draw * harmonic[room], side="right")
    return np.minimum(found, room)


def _choose_spans(words: _Words, draw: NDArray[np.float64], longest: int, chosen: NDArray[np.bool_], left: I64) -> None:
    """Choose runs of words while they fit into what is ``left``, in place.

    Every word begins a run of 1 to ``longest`` words, n with a chance in proportion to 1/n, up to the end of its
    segment at most. In the order of the first words' numbers a run is taken unless one of its words was; the first
    that does not fit gives as many of its words as do, and single words take what is left then.
    """
    count = len(words.size)
    ends = np.append(np.flatnonzero(~words.maskable), count)  # specials end segments, and so do rows by their [SEP]
    room = np.minimum(ends[np.searchsorted(ends, np.arange(count))] - np.arange(count), longest)
    room = np.minimum(room, np.searchsorted(words.row, words.row, side="right") - np.arange(count))
    length = run_lengths(draw, room, longest)
    taken, rank = np.zeros(count, np.bool_), words.number
    kept: list[I64] = []
    waiting = np.flatnonzero(length)
    # Of runs that touch, the one of smallest number is next in the order whatever the others do: all such at once.
    while len(waiting):
        best = np.full(count, _NEVER)
        for nth in range(longest):
            at = waiting[nth < length[waiting]]
            best[at + nth] = np.minimum(best[at + nth], rank[at])
        wins, free = np.ones(len(waiting), np.bool_), np.ones(len(waiting), np.bool_)
        for nth in range(longest):
            within = nth < length[waiting]
            wins &= ~within | (best[np.minimum(waiting + nth, count - 1)] == rank[waiting])
        kept.append(waiting[wins])
        for nth in range(longest):
            at = waiting[wins & (nth < length[waiting])]
            taken[at + nth] = True
        for nth in range(longest):
            free &= (nth >= length[waiting]) | ~taken[np.minimum(waiting + nth, count - 1)]
        waiting = waiting[free]
    if not kept:
        return
    runs = np.concatenate(kept)
    runs = runs[np.lexsort((rank[runs], words.row[runs]))]
    # Word by word in that order: what is chosen is each row's words up to the first that does not fit.
    word = np.repeat(runs, length[runs])
    word += np.arange(len(word)) - np.repeat(np.cumsum(length[runs]) - length[runs], length[runs])
    of = words.row[word]
    before = np.cumsum(words.size[word]) - words.size[word]
    used = before - before[np.searchsorted(of, of)] + words.size[word]
    fits = used <= left[of]
    chosen[word[fits]] = True
    left -= np.bincount(of[fits], words.size[word[fits]], len(left)).astype(np.int64)


def row_keys(seed: int, epoch: NDArray[Any] | int, row: NDArray[Any]) -> NDArray[np.uint64]:
    """uint64 [B]: the key of each row's masks."""
    return bits(seed, 0x6D61736B, epoch, row)  # 'mask': a stream apart from the plan's


def static_keys(seed: int, epoch: NDArray[Any] | int, dupe_factor: int, rows: int) -> NDArray[np.uint64]:
    """uint64 [B]: the keys of static masks, to be drawn by each token's place in the store.

    A token then meets the same numbers in every ``dupe_factor``-th epoch, whatever row it comes in: what is predicted
    of a row that comes again is the same, and of its tokens in other rows the same but for the row's budget.
    """
    return np.broadcast_to(bits(seed, _STATIC, np.asarray(epoch) % dupe_factor), (rows,))
