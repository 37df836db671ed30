"""Counter-based random numbers: pure functions of a seed and counters, whatever the order they are asked in.

A generator with state would make rows depend on who drew before them (workers, ranks, a resume). The
mixing is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), vectorised over numpy arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

_GOLDEN_INT, _A_INT = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
_GOLDEN, _A = np.uint64(_GOLDEN_INT), np.uint64(_A_INT)
_B = np.uint64(0x94D049BB133111EB)


def _mix(x: U64) -> U64:
    """The finaliser, in place: half of the time where memory has to be taken for each step."""
    shifted = x >> np.uint64(30)
    x ^= shifted
    x *= _A
    np.right_shift(x, np.uint64(27), out=shifted)
    x ^= shifted
    x *= _B
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
    return x


def bits(*counters: int | NDArray[Any]) -> U64:
    """64 random bits for each combination of counters (seed first); arrays broadcast against each other."""
    return extend(np.zeros(1, np.uint64), *counters)


def extend(key: U64, *counters: int | NDArray[Any]) -> U64:
    """``extend(bits(*a), *b) == bits(*a, *b)``: what many draws have in common is mixed once."""
    for counter in counters:
        if isinstance(counter, int):
            key = key + np.uint64((_GOLDEN_INT + counter * _A_INT) % 2**64)
        else:
            step = np.atleast_1d(counter).astype(np.uint64)  # a copy
            step *= _A
            step += _GOLDEN
            key = key + step
        key = _mix(key)
    return key


def uniform(random: U64) -> NDArray[np.float64]:
    """Floats in [0, 1) from the upper 53 bits."""
    return (random >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(random: U64, bound: int | NDArray[Any]) -> NDArray[np.int64]:
    """Integers in [0, bound), bound < 2**32, by the upper 32 bits; the bias is under bound / 2**32."""
    scaled = (random >> np.uint64(32)) * np.asarray(bound).astype(np.uint64)
    return (scaled >> np.uint64(32)).astype(np.int64)


def half_of(key: U64, count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Binomial(count, 1/2): the number of heads in ``count`` coins, 64 coins a word drawn from ``key``."""
    heads = np.zeros(count.shape, np.int64)
    for word in range(int(count.max(initial=0) + 63) // 64):
        coins = np.clip(count - 64 * word, 0, 64).astype(np.uint64)
        keep = np.where(coins == 64, ~np.uint64(0), (np.uint64(1) << (coins % np.uint64(64))) - np.uint64(1))
        heads += np.bitwise_count(extend(key, word) & keep)
    return heads
