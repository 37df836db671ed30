"""Runs of whole words, and static masks: beside a walk through each row, and what every mask must keep to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from store_helpers import SPECIAL, make_store, plain_bits, random_documents
from test_masking import PIECES, SCATTERED, masker, packed, split_rows, text_rows, worded_rows

from bertpt.config.schema import Masking, Pairs
from bertpt.data.random import bits, extend, uniform
from bertpt.data.rows import masking
from bertpt.data.rows.loader import BatchStream, gather, store_places
from bertpt.data.rows.masking import Masker, max_predictions, row_keys, run_lengths
from bertpt.data.rows.plan import plan_epoch

UNITS = ["token", "whole-word", "ngram"]


def segments_of_words(row: list[int], rule: Masker) -> list[list[list[int]]]:
    """The places of each word of each segment."""
    specials, segments, joining = set(rule.special.tolist()), [[]], False
    for place, token in enumerate(row):
        if token in specials:
            segments.append([])
            joining = False
        elif joining and rule.continues_word[token]:
            segments[-1][-1].append(place)
        else:
            segments[-1].append([place])
            joining = True
    return [words for words in segments if words]


def share(key: int, *counters: int) -> float:
    return (plain_bits(*counters, state=plain_bits(key)) >> 11) / 2**53


def drawn_length(key: int, place: int, room: int) -> int:
    """1 to ``room``, n with a chance in proportion to 1/n."""
    weights = [1 / n for n in range(1, room + 1)]
    point, n = share(key, masking._SPAN, place) * sum(weights), 1
    while n < room and point >= sum(weights[:n]):
        n += 1
    return n


def chosen_in_runs(row: list[int], key: int, rule: Masker, cap: int) -> list[int]:
    """Runs in the order of their first words' numbers, the first that does not fit in part, then single words."""
    segments = segments_of_words(row, rule)
    words = [word for segment in segments for word in segment]
    wanted = min(cap, max(1, int(rule.settings.rate * sum(map(len, words)) + 0.5)))

    def number(word: list[int]) -> int:
        return plain_bits(masking._CHOICE, word[0], state=plain_bits(key))

    runs = []
    for segment in segments:
        for at, word in enumerate(segment):
            room = min(len(segment) - at, rule.settings.max_ngram)
            runs.append((number(word), segment[at : at + drawn_length(key, word[0], room)]))
    touched: set[int] = set()
    taken: list[int] = []
    full = False
    for _, run in sorted(runs):
        if touched & {word[0] for word in run}:
            continue
        touched |= {word[0] for word in run}
        for word in run:
            full = full or len(taken) + len(word) > wanted
            taken += [] if full else word
    for word in sorted(words, key=number):
        if word[0] not in taken and len(taken) + len(word) <= wanted:
            taken += word
    if words and not taken:
        taken = min(words, key=number)
    return sorted(taken)


@pytest.mark.parametrize("max_ngram", [2, 3, 7])
@pytest.mark.parametrize("rate", [0.02, 0.15, 0.5, 0.9])
@pytest.mark.parametrize("special", [SPECIAL, SCATTERED])
def test_runs_are_those_of_a_walk_through_each_row(max_ngram: int, rate: float, special: dict[str, int]) -> None:
    rule = masker(special, unit="ngram", max_ngram=max_ngram, rate=rate)
    rows = text_rows(120, (1, 60), special)
    rows[5] = [special["cls"], special["sep"]]
    rows[9] = [special["cls"], 298, 297, 296, 295, special["sep"], 294, 293, special["sep"]]  # pieces without a head
    ids, lengths = packed(rows)
    keys = row_keys(3, 1, np.arange(len(rows)))
    cap = max_predictions(rate, 40)
    _, positions, labels = rule(ids, lengths, keys, cap)
    for row, key, found in zip(rows, keys.tolist(), split_rows(labels, positions, lengths), strict=True):
        assert [place for place, _ in found] == chosen_in_runs(row, key, rule, cap)


@pytest.mark.parametrize("room", [1, 2, 3, 5])
def test_the_length_of_a_run_is_drawn_in_proportion_to_its_inverse(room: int) -> None:
    draw = uniform(extend(bits(row_keys(11, 0, np.arange(2000)), masking._SPAN)[:, None], np.arange(20))).ravel()
    counts = np.bincount(run_lengths(draw, np.full(40_000, room), 5), minlength=room + 1)
    assert counts[0] == 0
    expected = np.array([1 / n for n in range(1, room + 1)])
    expected *= 40_000 / expected.sum()
    statistic = ((counts[1:] - expected) ** 2 / expected).sum()
    assert statistic < 16  # chi-square, at most 4 degrees of freedom: p < 0.004
    assert run_lengths(draw, np.zeros(40_000, np.int64), 5).max() == 0


def test_runs_keep_rate_shares_whole_words_and_segments() -> None:
    rows = worded_rows(2500)
    for row in rows:
        row.insert(len(row) // 2, SPECIAL["sep"])
    ids, lengths = packed(rows)
    rule = masker(unit="ngram")
    masked, positions, labels = rule(ids, lengths, row_keys(1, 0, np.arange(len(rows))), 20)
    maskable = ~np.isin(ids, list(SPECIAL.values()))
    assert maskable[positions].all()
    assert len(positions) / maskable.sum() == pytest.approx(0.15, abs=0.003)
    counts = np.array([len(found) for found in split_rows(labels, positions, lengths)])
    wanted = np.floor(0.15 * np.array([sum(t not in SPECIAL.values() for t in row) for row in rows]) + 0.5)
    assert (counts <= np.maximum(np.minimum(wanted, 20), 6)).all()
    assert (counts >= 1).all()
    for row, found in zip(rows, split_rows(labels, positions, lengths), strict=True):
        places = {place for place, _ in found}
        for place in range(2, len(row) - 1):
            if row[place] in PIECES and row[place - 1] not in SPECIAL.values():
                assert (place in places) == (place - 1 in places)
    new = masked[positions]
    assert (new == SPECIAL["mask"]).mean() == pytest.approx(0.8, abs=0.01)
    assert (new == labels).mean() == pytest.approx(0.1, abs=0.01)
    assert (np.delete(masked, positions) == np.delete(ids, positions)).all()


def test_runs_are_longer_than_words_and_words_than_tokens() -> None:
    rows = worded_rows(1500)
    ids, lengths = packed(rows)

    def mean_run(unit: str) -> float:
        _, positions, _ = masker(unit=unit)(ids, lengths, row_keys(0, 0, np.arange(len(rows))), 20)
        return len(positions) / (1 + int((np.diff(positions) > 1).sum()))

    token, word, ngram = map(mean_run, UNITS)
    assert 1.15 < token < 1.25  # 1 / (1 - 0.15), by chance alone
    assert word > 1.1 * token
    assert ngram > 1.25 * word


# --- static masks ------------------------------------------------------------------------------------------------


def stream_of(store: Any, **settings: Any) -> BatchStream:
    pairs = Pairs(rule=settings.pop("rule", "none"), short_share=0.0)
    return BatchStream.create(store, "train", pairs=pairs, masking=Masking(**settings), length=48, batch_size=8, seed=3)


def epoch_masks(stream: BatchStream, epoch: int) -> dict[tuple[Any, ...], list[tuple[int, int]]]:
    """For each row of an epoch (where its halves begin and end) its positions and what stands there."""
    rows = stream.plans.epoch(epoch)
    start = sum(len(stream.plans.epoch(e)) for e in range(epoch))
    batch = stream.rows(start, len(rows))
    assert batch.masked_positions is not None
    lengths = batch.attention_mask.sum(1).numpy()
    found = split_rows(batch.input_ids[batch.masked_positions].numpy(), batch.masked_positions.numpy(), lengths)
    return {tuple(row): masks for row, masks in zip(rows.tolist(), found, strict=True)}


@pytest.mark.parametrize("unit", UNITS)
def test_static_masks_come_again_with_their_row_and_dynamic_ones_do_not(tmp_path: Path, unit: str) -> None:
    store = make_store(tmp_path, random_documents(25, tokens=(3, 20)), continues=range(80, 100))
    static = stream_of(store, unit=unit, dupe_factor=2)
    epochs = [epoch_masks(static, epoch) for epoch in range(5)]
    assert epochs[0].keys() == epochs[1].keys()  # without pairs the rows are the same, in another order
    assert list(epochs[0]) != list(epochs[2])
    assert epochs[0] == epochs[2] == epochs[4]
    assert epochs[1] == epochs[3] != epochs[0]
    always = stream_of(store, unit=unit, dupe_factor=1)
    assert epoch_masks(always, 0) == epoch_masks(always, 1)
    dynamic = stream_of(store, unit=unit)
    assert epoch_masks(dynamic, 0) != epoch_masks(dynamic, 1)


def test_with_pairs_a_token_keeps_its_draws_in_other_rows(tmp_path: Path) -> None:
    store = make_store(tmp_path, random_documents(60, sentences=(5, 20), tokens=(3, 20)))
    fate: list[dict[int, int]] = []
    seen: list[set[int]] = []
    stream = stream_of(store, rule="next", dupe_factor=1)
    for epoch in range(2):
        rows = stream.plans.epoch(epoch)
        start = sum(len(stream.plans.epoch(e)) for e in range(epoch))
        batch = stream.rows(start, len(rows))
        assert batch.masked_positions is not None
        places = store_places(rows)
        ordinary = gather(store.train, rows, SPECIAL).ids > 4
        seen.append(set(places[ordinary].tolist()))
        at = batch.masked_positions.numpy()
        fate.append(dict(zip(places[at].tolist(), batch.input_ids.numpy()[at].tolist(), strict=True)))
    both = seen[0] & seen[1]
    first, second = ({place: now for place, now in each.items() if place in both} for each in fate)
    common = first.keys() & second.keys()
    assert len(common) > 0.75 * max(len(first), len(second))  # by chance 0.15
    assert all(first[place] == second[place] for place in common)


def test_static_masks_keep_the_rate_and_the_shares(tmp_path: Path) -> None:
    store = make_store(tmp_path, random_documents(200, sentences=(10, 30)))
    stream = stream_of(store, dupe_factor=1, rule="next")
    rows = stream.plans.epoch(0)
    batch = stream.rows(0, len(rows))
    assert batch.masked_positions is not None
    assert batch.masked_labels is not None
    budget = np.floor(0.15 * (rows["a_length"] + rows["b_length"]) + 0.5).astype(int)
    assert batch.predictions == np.maximum(budget, 1).sum()
    now = batch.input_ids[batch.masked_positions].numpy()
    assert (now == SPECIAL["mask"]).mean() == pytest.approx(0.8, abs=0.015)
    assert (now == batch.masked_labels.numpy()).mean() == pytest.approx(0.1, abs=0.015)


def test_the_place_of_a_token_is_its_offset_in_the_store(tmp_path: Path) -> None:
    store = make_store(tmp_path, random_documents(20))
    for rule in ("next", "order", "none"):
        rows = plan_epoch(store.train, Pairs(rule=rule), length=32, seed=0, epoch=0)
        ids = gather(store.train, rows, SPECIAL).ids
        places: NDArray[np.int64] = store_places(rows)
        assert len(places) == len(ids)
        ordinary = ids > 4
        assert (np.asarray(store.train.ids)[places[ordinary]] == ids[ordinary]).all()
