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
from bertpt.data.random import below, bits, uniform

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
        kind = uniform(bits(row_keys[row[positions]], _KIND, column[positions]))
        drawn = below(bits(row_keys[row[positions]], _TOKEN, column[positions]), self.vocab_size - len(self.special))
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
        """bool [T]: the tokens with the smallest random numbers of their row, as many as the rate asks."""
        place = column
        if self.settings.whole_word:  # all pieces of a word share the number of its first piece
            inner = self.continues_word[ids] & maskable & np.concatenate([[False], maskable[:-1]])
            place = column[np.maximum.accumulate(np.where(inner, 0, np.arange(len(ids))))]
        number = np.where(maskable, bits(row_keys[row], _CHOICE, place), _NEVER)
        grid = np.full((len(lengths), int(lengths.max(initial=1))), _NEVER)
        grid[row, column] = number
        grid.sort(axis=1)
        available = np.bincount(row[maskable], minlength=len(lengths))
        wanted = np.clip(np.floor(self.settings.rate * available + 0.5).astype(np.int64), 1, cap)
        last = np.minimum(wanted, available) - 1
        index = np.arange(len(lengths))
        limit = grid[index, last]
        if self.settings.whole_word:
            # A word that would go past the count is left out (as released), unless it is the only one.
            beyond = grid[index, np.minimum(last + 1, grid.shape[1] - 1)] == limit
            beyond &= (last + 1 < available) & (grid[:, 0] != limit)
            limit = np.where(beyond, limit - np.uint64(1), limit)
        return maskable & (number <= limit[row])


def row_keys(seed: int, epoch: NDArray[Any] | int, row: NDArray[Any]) -> NDArray[np.uint64]:
    """uint64 [B]: the key of each row's masks."""
    return bits(seed, 0x6D61736B, epoch, row)  # 'mask': a stream apart from the plan's
