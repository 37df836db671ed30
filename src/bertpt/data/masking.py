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
from bertpt.data.random import below, bits, extend, uniform

_CHOICE, _KIND, _TOKEN = range(3)
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
        self, ids: NDArray[np.int64], lengths: NDArray[np.int64], row_keys: NDArray[np.uint64], cap: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Mask packed rows.

        Args:
            ids: int64 [T], the tokens of B rows.
            lengths: int64 [B]; row_keys: uint64 [B], one random key for each row.
            cap: most predictions in a row.

        Returns:
            masked ids int64 [T], positions int64 [M] among the T in ascending order, labels int64 [M].
        """
        first = np.cumsum(lengths) - lengths
        row = np.repeat(np.arange(len(lengths)), lengths)
        column = np.arange(len(ids)) - first[row]
        maskable = ~np.isin(ids, self.special)
        chosen = self._choose(ids, row, column, maskable, lengths, row_keys, cap)
        positions = np.flatnonzero(chosen)
        labels = ids[positions]
        of, place = row[positions], column[positions]
        kind = uniform(extend(bits(row_keys, _KIND)[of], place))
        drawn = below(extend(bits(row_keys, _TOKEN)[of], place), self.vocab_size - len(self.special))
        for special in self.special:  # skip over the special ids: uniform over all others
            drawn += drawn >= special
        mask, random = self.settings.mask_share, self.settings.mask_share + self.settings.random_share
        masked = ids.copy()
        masked[positions] = np.where(kind < mask, self.mask_id, np.where(kind < random, drawn, labels))
        return masked, positions, labels

    def _choose(
        self,
        ids: NDArray[np.int64],
        row: NDArray[np.int64],
        column: NDArray[np.int64],
        maskable: NDArray[np.bool_],
        lengths: NDArray[np.int64],
        row_keys: NDArray[np.uint64],
        cap: int,
    ) -> NDArray[np.bool_]:
        """Bool [T]: the tokens with the smallest random numbers of their row, as many as the rate asks."""
        available = np.bincount(row[maskable], minlength=len(lengths))
        wanted = np.clip(np.floor(self.settings.rate * available + 0.5).astype(np.int64), 1, cap)
        number = np.where(maskable, extend(bits(row_keys, _CHOICE)[row], column), _NEVER)
        if self.settings.whole_word:
            return self._choose_words(ids, row, maskable, number, wanted)
        grid = np.full((len(lengths), int(lengths.max(initial=1))), _NEVER)
        grid[row, column] = number
        grid.sort(axis=1)
        limit = grid[np.arange(len(lengths)), np.minimum(wanted, available) - 1]
        chosen: NDArray[np.bool_] = maskable & (number <= limit[row])
        return chosen

    def _choose_words(
        self,
        ids: NDArray[np.int64],
        row: NDArray[np.int64],
        maskable: NDArray[np.bool_],
        number: NDArray[np.uint64],
        wanted: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Bool [T]: all pieces of the words with the smallest numbers of their row.

        A word that would go past ``wanted`` is passed over for the next that fits, as released: long words are
        predicted a little less often. Where none fits, the first word is taken all the same, even past
        the cap: a row has at least one prediction.
        """
        inner = self.continues_word[ids] & maskable & np.concatenate([[False], maskable[:-1]])
        word = np.cumsum(~inner) - 1
        start = np.flatnonzero(~inner)
        size, word_row = np.bincount(word, minlength=len(start)), row[start]
        order = np.lexsort((number[start], word_row))
        waiting = order[maskable[start[order]]]
        chosen = np.zeros(len(start), np.bool_)
        first = waiting[np.diff(word_row[waiting], prepend=-1) > 0]
        left = wanted.copy()
        while len(waiting := waiting[size[waiting] <= left[word_row[waiting]]]):
            of = word_row[waiting]
            before = np.cumsum(size[waiting]) - size[waiting]
            used = before - before[np.searchsorted(of, of)] + size[waiting]
            fits = used <= left[of]
            chosen[waiting[fits]] = True
            left -= np.bincount(of[fits], size[waiting[fits]], len(left)).astype(np.int64)
            waiting = waiting[~fits]
        chosen[first[left[word_row[first]] == wanted[word_row[first]]]] = True
        taken: NDArray[np.bool_] = maskable & chosen[word]
        return taken


def row_keys(seed: int, epoch: NDArray[Any] | int, row: NDArray[Any]) -> NDArray[np.uint64]:
    """uint64 [B]: the key of each row's masks."""
    return bits(seed, 0x6D61736B, epoch, row)  # 'mask': a stream apart from the plan's
