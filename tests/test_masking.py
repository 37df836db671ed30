"""Masks: rates, what is never touched, and the same choice beside a plain walk through each row."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from store_helpers import SPECIAL, plain_bits

from bertpt.config.schema import Masking
from bertpt.data.rows import masking
from bertpt.data.rows.masking import Masker, max_predictions, row_keys

V = 300
PIECES = range(200, 300)  # ids of pieces that continue a word
SCATTERED = {"pad": 7, "unk": 299, "cls": 100, "sep": 101, "mask": 250}

I64 = NDArray[np.int64]


def masker(special: dict[str, int] = SPECIAL, vocab_size: int = V, **settings: Any) -> Masker:
    continues = np.zeros(vocab_size, np.bool_)
    continues[[i for i in PIECES if i < vocab_size]] = True
    continues[list(special.values())] = False
    return Masker(Masking(**settings), vocab_size, special["mask"], np.array(sorted(special.values())), continues)


def packed(rows: list[list[int]]) -> tuple[I64, I64]:
    return np.array([i for row in rows for i in row], np.int64), np.array([len(row) for row in rows], np.int64)


def text_rows(
    count: int, maskable: tuple[int, int], special: dict[str, int] = SPECIAL, seed: int = 0
) -> list[list[int]]:
    """[CLS] A [SEP] B [SEP] with that many ordinary ids, some [UNK] among them."""
    draw = random.Random(seed)
    ordinary = [i for i in range(V) if i not in special.values()]
    made = []
    for _ in range(count):
        text = [draw.choice(ordinary) for _ in range(draw.randint(*maskable))]
        text.insert(draw.randint(0, len(text)), special["unk"])
        cut = draw.randint(1, len(text) - 1)
        made.append([special["cls"], *text[:cut], special["sep"], *text[cut:], special["sep"]])
    return made


def split_rows(values: I64, positions: I64, lengths: I64) -> list[list[tuple[int, int]]]:
    """For each row its (place in the row, value) of ``positions``."""
    first = np.cumsum(lengths) - lengths
    row = np.searchsorted(first, positions, side="right") - 1
    found: list[list[tuple[int, int]]] = [[] for _ in lengths]
    for r, p, value in zip(row, positions, values, strict=True):
        found[r].append((int(p - first[r]), int(value)))
    return found


# --- the choice, one row at a time -------------------------------------------------------------------------------


def chosen_places(row: list[int], key: int, rule: Masker, cap: int) -> list[int]:
    """Words (or tokens) in the order of their numbers, each taken if it fits."""
    specials = set(rule.special.tolist())
    words: list[list[int]] = []
    for place, token in enumerate(row):
        if token in specials:
            continue
        begins = rule.settings.unit == "token" or not rule.continues_word[token]
        if begins or not words or words[-1][-1] != place - 1:
            words.append([])
        words[-1].append(place)
    words.sort(key=lambda word: plain_bits(key, masking._CHOICE, word[0]))
    wanted = min(cap, max(1, int(rule.settings.rate * sum(map(len, words)) + 0.5)))
    taken: list[int] = []
    for word in words:
        if len(taken) + len(word) <= wanted:
            taken += word
    if words and not taken:
        taken = words[0]
    return sorted(taken)


@pytest.mark.parametrize("unit", ["token", "whole-word"])
@pytest.mark.parametrize("rate", [0.02, 0.15, 0.5, 0.9])
@pytest.mark.parametrize("special", [SPECIAL, SCATTERED])
def test_the_choice_is_that_of_a_walk_through_each_row(unit: str, rate: float, special: dict[str, int]) -> None:
    rule = masker(special, unit=unit, rate=rate)
    rows = text_rows(150, (1, 60), special)
    rows[5] = [special["cls"], special["sep"]]
    rows[9] = [special["cls"], 298, 297, 296, 295, special["sep"], 294, 293, special["sep"]]  # pieces without a head
    ids, lengths = packed(rows)
    keys = row_keys(3, 1, np.arange(len(rows)))
    cap = max_predictions(rate, 40)
    _, positions, labels = rule(ids, lengths, keys, cap)
    assert (np.diff(positions) > 0).all()
    assert (labels == ids[positions]).all()
    for row, key, found in zip(rows, keys.tolist(), split_rows(labels, positions, lengths), strict=True):
        assert [place for place, _ in found] == chosen_places(row, key, rule, cap)


# --- rates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [128, 512])
@pytest.mark.parametrize("special", [SPECIAL, SCATTERED])
def test_rates_over_two_hundred_thousand_tokens(length: int, special: dict[str, int]) -> None:
    count = 230_000 // (length - 20)
    rows = text_rows(count, (length - 36, length - 4), special)
    ids, lengths = packed(rows)
    rule = masker(special)
    masked, positions, labels = rule(ids, lengths, row_keys(1, 0, np.arange(count)), max_predictions(0.15, length))
    maskable = ~np.isin(ids, list(special.values()))
    assert maskable.sum() > 200_000
    assert len(positions) / maskable.sum() == pytest.approx(0.15, abs=0.003)
    new = masked[positions]
    assert (new == special["mask"]).mean() == pytest.approx(0.8, abs=0.01)
    same = (new == labels).mean()
    assert same == pytest.approx(0.1, abs=0.01)
    drawn = new[(new != special["mask"]) & (new != labels)]
    assert len(drawn) / len(new) == pytest.approx(0.1, abs=0.01)
    # Special tokens are neither predicted nor drawn, and nothing else is touched.
    assert maskable[positions].all()
    assert not np.isin(drawn, list(special.values())).any()
    untouched = np.delete(np.arange(len(ids)), positions)
    assert (masked[untouched] == ids[untouched]).all()
    # Each place of a row is chosen alike.
    place = np.concatenate([np.arange(n) for n in lengths])
    share = np.bincount(place[positions], minlength=length)[1 : length - 36] / count
    assert share.std() < 3 * (0.15 * 0.85 / count) ** 0.5


def test_random_tokens_are_drawn_evenly_from_the_whole_vocabulary_but_specials() -> None:
    rule = masker(SCATTERED, mask_share=0.0, random_share=1.0, rate=0.9)
    ids, lengths = packed(text_rows(800, (100, 100), SCATTERED))
    masked, positions, _ = rule(ids, lengths, row_keys(2, 0, np.arange(800)), 500)
    counts = np.bincount(masked[positions], minlength=V)
    assert len(counts) == V
    assert (counts[list(SCATTERED.values())] == 0).all()
    ordinary = np.delete(counts, list(SCATTERED.values()))
    expected = ordinary.sum() / len(ordinary)
    statistic = ((ordinary - expected) ** 2 / expected).sum()
    assert abs(statistic - (len(ordinary) - 1)) < 4.5 * (2 * len(ordinary)) ** 0.5
    assert ordinary.min() > 0


@pytest.mark.parametrize(("mask", "draw"), [(1.0, 0.0), (0.0, 0.0), (0.5, 0.5), (0.0, 1.0)])
def test_other_shares_are_kept(mask: float, draw: float) -> None:
    rule = masker(mask_share=mask, random_share=draw)
    ids, lengths = packed(text_rows(400, (100, 100)))
    masked, positions, labels = rule(ids, lengths, row_keys(0, 0, np.arange(400)), 99)
    new = masked[positions]
    assert (new == SPECIAL["mask"]).mean() == pytest.approx(mask, abs=0.03)
    assert (new == labels).mean() == pytest.approx(1 - mask - draw, abs=0.03)


@pytest.mark.parametrize(("rate", "length", "cap"), [(0.15, 128, 20), (0.15, 512, 77), (0.4, 128, 52), (0.01, 8, 1)])
def test_the_cap_follows_from_rate_and_length(rate: float, length: int, cap: int) -> None:
    assert max_predictions(rate, length) == cap
    # and never takes anything from the rate
    assert all(max_predictions(rate, n) >= rate * n for n in range(8, 600))


@pytest.mark.parametrize("length", [8, 16, 128])
def test_every_row_has_a_prediction_and_at_most_the_cap(length: int) -> None:
    rows = text_rows(500, (1, length - 4))
    ids, lengths = packed(rows)
    cap = max_predictions(0.15, length)
    _, positions, labels = masker()(ids, lengths, row_keys(0, 0, np.arange(500)), cap)
    counts = [len(found) for found in split_rows(labels, positions, lengths)]
    assert min(counts) == 1
    assert max(counts) <= cap
    _, positions, labels = masker(rate=0.9)(ids, lengths, row_keys(0, 0, np.arange(500)), 3)
    assert max(len(found) for found in split_rows(labels, positions, lengths)) == min(3, length - 4)


# --- small and odd rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["token", "whole-word"])
def test_rows_with_one_maskable_token_or_none(unit: str) -> None:
    cls, sep, unk = SPECIAL["cls"], SPECIAL["sep"], SPECIAL["unk"]
    rows = [[cls, 50, sep], [cls, unk, sep], [cls, unk, 60, sep, unk, sep], [cls, sep], []]
    ids, lengths = packed(rows)
    masked, positions, labels = masker(unit=unit)(ids, lengths, row_keys(0, 0, np.arange(5)), 20)
    assert positions.tolist() == [1, 8]
    assert labels.tolist() == [50, 60]
    assert len(masked) == len(ids)
    nothing = masker(unit=unit)(*packed([[cls, unk, sep]]), row_keys(0, 0, np.arange(1)), 20)
    assert [array.tolist() for array in nothing] == [[cls, unk, sep], [], []]
    empty = masker(unit=unit)(*packed([]), row_keys(0, 0, np.arange(0)), 20)
    assert [array.tolist() for array in empty] == [[], [], []]


# --- whole words -------------------------------------------------------------------------------------------------


def worded_rows(count: int, seed: int = 0) -> list[list[int]]:
    """Words of 1 to 6 pieces, most of one; some rows begin within a word, as cut ones do."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        text: list[int] = [draw.choice(PIECES) for _ in range(draw.choice([0, 0, 0, 2]))]
        size = draw.randint(20, 110)
        while len(text) < size:
            pieces = draw.choice([0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 5])
            text += [draw.randrange(5, 200), *(draw.choice(PIECES) for _ in range(pieces))]
        made.append([SPECIAL["cls"], *text, SPECIAL["sep"]])
    return made


def test_whole_words_are_chosen_with_all_their_pieces_at_the_asked_rate() -> None:
    rows = worded_rows(2500)
    ids, lengths = packed(rows)
    rule = masker(unit="whole-word")
    masked, positions, labels = rule(ids, lengths, row_keys(1, 0, np.arange(len(rows))), 20)
    for row, found in zip(rows, split_rows(labels, positions, lengths), strict=True):
        places = {place for place, _ in found}
        assert places
        for place in range(2, len(row) - 1):
            if row[place] in PIECES:
                assert (place in places) == (place - 1 in places)
    assert len(positions) / (len(ids) - 2 * len(rows)) == pytest.approx(0.15, abs=0.003)
    new = masked[positions]
    assert (new == SPECIAL["mask"]).mean() == pytest.approx(0.8, abs=0.01)
    assert (new == labels).mean() == pytest.approx(0.1, abs=0.01)
    # Long words are passed over at the end of a row only.
    inside = np.isin(ids, PIECES)
    expected = inside.sum() / (len(ids) - 2 * len(rows))
    assert 0.75 * expected < inside[positions].mean() <= expected


def test_a_row_of_one_long_word_predicts_the_whole_word() -> None:
    row = [SPECIAL["cls"], 50, 201, 202, 203, 204, SPECIAL["sep"]]
    _, positions, _ = masker(unit="whole-word")(*packed([row]), row_keys(0, 0, np.arange(1)), 2)
    assert positions.tolist() == [1, 2, 3, 4, 5]


def test_a_row_cut_inside_a_word_does_not_join_the_row_before_it() -> None:
    sep = SPECIAL["sep"]
    rows = [[SPECIAL["cls"], 50, sep, 201, 202, sep]] * 400
    ids, lengths = packed(rows)
    _, positions, labels = masker(unit="whole-word")(ids, lengths, row_keys(0, 0, np.arange(400)), 2)
    seen = {tuple(place for place, _ in found) for found in split_rows(labels, positions, lengths)}
    assert seen == {(1,)}  # of 3 tokens 1 is asked for; were 201 a piece of 50's word, it would come with it


# --- repeatability -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["token", "whole-word"])
def test_a_row_gets_the_same_mask_alone_and_in_any_batch(unit: str) -> None:
    rows = text_rows(60, (1, 80))
    keys = row_keys(5, 2, np.arange(60))
    rule = masker(unit=unit)

    def masks(order: list[int]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        ids, lengths = packed([rows[i] for i in order])
        masked, positions, labels = rule(ids, lengths, keys[order], 20)
        parts = np.split(masked, np.cumsum(lengths)[:-1])
        return [(p.tolist(), f) for p, f in zip(parts, split_rows(labels, positions, lengths), strict=True)]

    together = masks(list(range(60)))
    assert [masks([i])[0] for i in range(60)] == together
    assert masks(list(range(59, -1, -1)))[::-1] == together


def test_epochs_rows_and_seeds_have_masks_of_their_own() -> None:
    row = text_rows(1, (120, 120))[0]
    ids, lengths = packed([row] * 1000)

    def chosen(seed: int, epoch: int) -> NDArray[np.bool_]:
        _, positions, _ = masker()(ids, lengths, row_keys(seed, epoch, np.arange(1000)), 20)
        found = np.zeros(len(ids), np.bool_)
        found[positions] = True
        return found

    first = chosen(0, 0)
    for other in (chosen(0, 1), chosen(1, 0), np.roll(first, len(row))):
        assert other[first].mean() == pytest.approx(0.15, abs=0.015)  # what chance gives
    assert (chosen(0, 0) == first).all()
