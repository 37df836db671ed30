"""Counter-based random numbers: even, independent, pure, and the same in every version."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from numpy.typing import NDArray
from store_helpers import plain_bits

from bertpt.data.random import below, bits, extend, half_of, uniform

N = 200_000


def chi_square(counts: NDArray[np.int64], expected: NDArray[np.float64] | float) -> float:
    """Standard deviations by which the statistic is off its mean (k - 1, variance 2(k - 1))."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    free = len(counts) - 1
    return (statistic - free) / (2 * free) ** 0.5


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ((0,), 0xE220A8397B1DCDAF),  # the published first number of SplitMix64 with seed 0
        ((1,), 0xE4BACEA5C4B9B499),
        ((0, 0), 0xA706DD2F4D197E6F),
        ((1, 2, 3), 0x669B533854D1CFD1),
        ((2**63, 7), 0x4EBBCC978FE32B98),
    ],
)
def test_the_stream_is_what_it_was(counters: tuple[int, ...], expected: int) -> None:
    # Runs are promised to be repeatable: a change of these numbers changes every pair and mask.
    assert bits(*counters).tolist() == [expected]
    assert plain_bits(*counters) == expected


def test_arrays_give_what_single_numbers_give_in_any_order() -> None:
    asked = np.array([5, 3, 9, 0, 3])
    assert bits(7, asked, 2).tolist() == [plain_bits(7, int(i), 2) for i in asked]
    grid = bits(7, np.arange(4)[:, None], np.arange(3)[None])
    assert grid.tolist() == [[plain_bits(7, i, j) for j in range(3)] for i in range(4)]


def test_a_key_extended_is_the_whole_key() -> None:
    document = np.arange(50)
    assert (extend(bits(3, 4), document, 5) == bits(3, 4, document, 5)).all()


@pytest.mark.parametrize("varied", range(4))
@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_numbers_are_even_along_every_counter(varied: int, seed: int) -> None:
    key = [seed, 1, 2, 3]
    key[varied] = np.arange(N) + seed  # type: ignore[call-overload]
    drawn = bits(*key)
    for shift in (0, 24, 56):  # low, middle and high bits
        counts = np.bincount((drawn >> np.uint64(shift)).astype(np.int64) & 0xFF, minlength=256)
        assert abs(chi_square(counts, N / 256)) < 4.5
    shares = uniform(drawn)
    assert shares.min() >= 0
    assert shares.max() < 1
    assert shares.mean() == pytest.approx(0.5, abs=0.003)
    assert len(np.unique(drawn)) == N


@pytest.mark.parametrize(("one", "other"), [((0, 1, 0), (0, 2, 0)), ((0, 0, 1), (0, 0, 2)), ((1, 0, 0), (2, 0, 0))])
def test_streams_that_differ_in_one_counter_are_independent(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    index = np.arange(N)
    a, b = bits(*one, index), bits(*other, index)
    cells = np.bincount(below(a, 16) * 16 + below(b, 16), minlength=256)
    assert abs(chi_square(cells, N / 256)) < 4.5
    assert abs(np.corrcoef(uniform(a), uniform(b))[0, 1]) < 0.01
    assert abs(np.corrcoef(uniform(a[1:]), uniform(a[:-1]))[0, 1]) < 0.01  # neighbours in one stream
    differing = np.bitwise_count(a ^ b).mean()
    assert differing == pytest.approx(32, abs=0.05)


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 1000])
def test_whole_numbers_are_even_and_below_their_bound(bound: int) -> None:
    drawn = below(bits(11, np.arange(N)), bound)
    assert drawn.min() == 0
    assert drawn.max() == bound - 1
    if bound > 1:
        assert abs(chi_square(np.bincount(drawn, minlength=bound), N / bound)) < 4.5


def test_each_number_has_its_own_bound_up_to_the_largest() -> None:
    bounds = np.array([1, 5, 2**31, 2**32 - 1] * 1000)
    drawn = below(bits(5, np.arange(4000)), bounds)
    assert (drawn >= 0).all()
    assert (drawn < bounds).all()
    assert (drawn[::4] == 0).all()
    assert drawn[3::4].max() > 0.99 * 2**32


def test_heads_are_the_bits_of_the_words_counted_one_by_one() -> None:
    count = np.array([0, 1, 2, 63, 64, 65, 127, 128, 129, 500])
    key = bits(9, np.arange(len(count)))
    counted = [
        sum(plain_bits(9, i, coin // 64) >> (coin % 64) & 1 for coin in range(coins))
        for i, coins in enumerate(count.tolist())
    ]
    assert half_of(key, count).tolist() == counted


@pytest.mark.parametrize("coins", [1, 5, 12, 64, 70])
def test_heads_follow_the_binomial_distribution(coins: int) -> None:
    heads = half_of(bits(1, np.arange(N)), np.full(N, coins))
    expected = np.array([float(Fraction(comb(coins, k), 2**coins)) * N for k in range(coins + 1)])
    counts = np.bincount(heads, minlength=coins + 1)
    common = expected >= 20
    assert abs(chi_square(counts[common], expected[common])) < 4.5
    assert counts[~common].sum() < 200


def test_no_coins_no_heads() -> None:
    assert half_of(bits(1, np.arange(3)), np.zeros(3, np.int64)).tolist() == [0, 0, 0]
    assert half_of(bits(1, np.arange(0)), np.zeros(0, np.int64)).tolist() == []
