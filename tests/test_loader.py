"""Batches: the same for any number of workers and after a restart, each row once in an epoch."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from store_helpers import SPECIAL, as_documents, make_store, random_documents

from bertpt.batch import Batch
from bertpt.config.schema import Masking, Pairs
from bertpt.data.rows import loader
from bertpt.data.rows.loader import BatchStream, gather, masker_for
from bertpt.data.rows.masking import row_keys
from bertpt.data.rows.plan import plan_epoch
from bertpt.data.tokens.store import TokenStore

V = 100


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return make_store(tmp_path / "store", random_documents(25), random_documents(9, seed=1), vocab_size=V)


def stream_of(store: TokenStore, *, batch_size: int = 7, length: int = 32, **arguments: Any) -> BatchStream:
    pairs, masking = Pairs(rule=arguments.pop("rule", "next")), arguments.pop("masking", Masking())
    return BatchStream.create(
        store, "train", pairs=pairs, masking=masking, length=length, batch_size=batch_size, seed=3, **arguments
    )


def facts(batch: Batch) -> list[Any]:
    values = [getattr(batch, field.name) for field in fields(batch)]
    return [None if value is None else value.tolist() for value in values]


def restored(batch: Batch) -> list[list[int]]:
    """Each row's ids before masking."""
    ids = batch.input_ids.clone()
    assert batch.masked_positions is not None
    assert batch.masked_labels is not None
    ids[batch.masked_positions] = batch.masked_labels
    return [part.tolist() for part in ids.split(batch.attention_mask.sum(1).tolist())]


# --- rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["next", "none"])
def test_rows_are_gathered_token_by_token(store: TokenStore, rule: str) -> None:
    rows = plan_epoch(store.train, Pairs(rule=rule), length=24, seed=0, epoch=0)
    ids, types, lengths = gather(store.train, rows, store.special_ids)
    text = [token for document in as_documents(store.train) for sentence in document for token in sentence]
    expected_ids, expected_types, expected_lengths = [], [], []
    for a, b, a_length, b_length, _ in rows.tolist():
        first = [SPECIAL["cls"], *text[a : a + a_length], SPECIAL["sep"]]
        second = [*text[b : b + b_length], SPECIAL["sep"]] if rule == "next" else []
        expected_ids += first + second
        expected_types += [0] * len(first) + [1] * len(second)
        expected_lengths.append(len(first + second))
    assert (ids.tolist(), types.tolist(), lengths.tolist()) == (expected_ids, expected_types, expected_lengths)
    assert [array.dtype for array in (ids, types, lengths)] == [np.int64] * 3


def test_a_batch_is_its_planned_rows_masked(store: TokenStore) -> None:
    stream = stream_of(store)
    plan = stream.plans.epoch(0)
    packed = gather(store.train, plan[14:21], SPECIAL)
    batch = stream[2]
    assert [token for row in restored(batch) for token in row] == packed.ids.tolist()
    assert batch.token_type_ids.tolist() == packed.token_types.tolist()
    assert batch.attention_mask.shape == (7, packed.lengths.max())
    assert batch.input_ids[batch.first].tolist() == [SPECIAL["cls"]] * 7
    assert batch.input_ids.max() < V
    assert batch.next_sentence_label is not None
    assert stream_of(store, rule="none")[0].next_sentence_label is None


def test_the_label_is_0_where_b_follows_a_and_1_where_it_is_random(store: TokenStore) -> None:
    # Read from the text alone: does B stand in the document of A, after it?
    documents = [[token for sentence in d for token in sentence] for d in as_documents(store.train)]
    stream = stream_of(store, batch_size=len(stream_of(store).plans.epoch(0)))
    batch = stream[0]
    assert batch.next_sentence_label is not None
    words = {0: "follows", 1: "random"}
    seen = dict.fromkeys(words.values(), 0)
    for row, label in zip(restored(batch), batch.next_sentence_label.tolist(), strict=True):
        cut = row.index(SPECIAL["sep"])
        a, b = row[1:cut], row[cut + 1 : -1]
        if len(a) < 4 or len(b) < 4:
            continue  # too short to be found in one place only

        def places(part: list[int]) -> list[tuple[int, int]]:
            return [(d, at) for d, t in enumerate(documents) for at in range(len(t)) if t[at : at + len(part)] == part]

        (a_document, a_at), (b_document, b_at) = places(a)[0], places(b)[0]
        follows = a_document == b_document and b_at >= a_at + len(a)
        assert words[label] == ("follows" if follows else "random")
        seen[words[label]] += 1
    assert min(seen.values()) > 10


def test_rates_hold_over_planned_rows_short_ones_included(tmp_path: Path) -> None:
    documents = random_documents(60, sentences=(20, 60), tokens=(5, 40))
    stream = stream_of(make_store(tmp_path, documents), length=128, batch_size=64)
    batch = stream.rows(0, 2000)
    maskable = sum(token > 4 for row in restored(batch) for token in row)
    assert maskable > 200_000
    assert batch.predictions / maskable == pytest.approx(0.15, abs=0.003)
    assert batch.masked_positions is not None
    new = batch.input_ids[batch.masked_positions]
    assert float((new == SPECIAL["mask"]).double().mean()) == pytest.approx(0.8, abs=0.01)
    row = torch.bucketize(batch.masked_positions, batch.first, right=True)
    counts = torch.bincount(row)[1:]
    assert counts.min() >= 1
    assert counts.max() <= 20


def test_large_vocabularies_and_scattered_special_ids(tmp_path: Path) -> None:
    special = {"pad": 7, "unk": 69_999, "cls": 100, "sep": 101, "mask": 66_000}
    documents = random_documents(12, vocab_size=69_999, first_id=60_000)
    stream = stream_of(make_store(tmp_path, documents, vocab_size=70_000, special_ids=special), batch_size=16)
    assert stream.plans.tokens.ids.dtype == np.uint32
    batch = stream[0]
    for row in restored(batch):
        assert (row[0], row[-1]) == (100, 101)
        assert row.count(101) == 2
    assert 7 not in batch.input_ids.tolist()
    assert int(batch.input_ids.max()) < 70_000


# --- the sequence of epochs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 500])
def test_every_row_comes_once_in_an_epoch_and_batches_go_on_into_the_next(store: TokenStore, batch_size: int) -> None:
    stream = stream_of(store, batch_size=batch_size)
    expected = [r for epoch in range(3) for r in stream.plans.epoch(epoch).tolist()]
    assert len(expected) > 200
    taken: list[Any] = []
    for index in range(len(expected) // batch_size):
        rows, _, _ = stream.plans.take(index * batch_size, batch_size)
        assert len(rows) == batch_size == stream[index].rows
        taken += rows.tolist()
    assert taken == expected[: len(taken)]


def test_a_batch_over_the_border_of_epochs_is_both_its_parts(store: TokenStore) -> None:
    stream = stream_of(store)
    border = len(stream.plans.epoch(0))
    both = stream.rows(border - 3, 6)
    before, after = stream.rows(border - 3, 3), stream.rows(border, 3)
    assert restored(both) == restored(before) + restored(after)
    assert both.input_ids.tolist() == before.input_ids.tolist() + after.input_ids.tolist()


def test_the_masks_of_a_row_follow_from_seed_epoch_and_place(store: TokenStore) -> None:
    stream = stream_of(store)
    starts = [sum(len(stream.plans.epoch(e)) for e in range(n)) for n in range(3)]
    masked = []
    for epoch, start in enumerate(starts):
        batch = stream.rows(start + 4, 9)
        packed = gather(store.train, stream.plans.epoch(epoch)[4:13], SPECIAL)
        keys = row_keys(3, np.full(9, epoch), np.arange(4, 13))
        ids, positions, _ = masker_for(store, Masking())(packed.ids, packed.lengths, keys, 5)
        assert batch.input_ids.tolist() == ids.tolist()
        assert batch.masked_positions is not None
        assert batch.masked_positions.tolist() == positions.tolist()
        masked.append(positions.tolist())
    assert len({tuple(positions) for positions in masked}) == 3


def test_a_restart_in_the_fourth_epoch_goes_on_with_the_same_batches(store: TokenStore, tmp_path: Path) -> None:
    stream = stream_of(store)
    index = (sum(len(stream.plans.epoch(e)) for e in range(3)) + 20) // 7
    expected = [facts(stream[i]) for i in range(index, index + 6)]
    starts = stream.plans.starts[:4]

    planned: list[int] = []
    again = stream_of(store, starts=list(starts), cache=tmp_path / "plans")
    make = again.plans._plan
    again.plans._plan = lambda epoch: planned.append(epoch) or make(epoch)  # type: ignore[method-assign, func-returns-value]
    assert [facts(again[i]) for i in range(index, index + 6)] == expected
    assert planned == [3]  # with what a checkpoint knows, earlier epochs are not planned again
    from_nothing = stream_of(store, cache=tmp_path / "other")
    assert [facts(from_nothing[i]) for i in range(index, index + 6)] == expected
    assert from_nothing.plans.starts[:4] == starts


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")  # on fewer cores
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_batches_are_the_same_for_any_number_of_workers(store: TokenStore, tmp_path: Path, workers: int) -> None:
    stream = stream_of(store, batch_size=40)
    last = 3 * len(stream.plans.epoch(0)) // 40
    expected = [facts(batch) for batch in stream.batches(range(2, last))]
    assert expected == [facts(stream[i]) for i in range(2, last)]
    torch.manual_seed(workers)
    np.random.seed(workers)
    other = stream_of(store, batch_size=40, cache=tmp_path / "plans")
    assert [facts(batch) for batch in other.batches(range(2, last), workers=workers)] == expected


def test_batches_take_nothing_from_the_generator_of_training(store: TokenStore) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert len(list(stream_of(store).batches(range(3)))) == 3
    assert torch.equal(torch.get_rng_state(), before)


# --- plans on disk and in workers --------------------------------------------------------------------------------


def test_a_plan_that_was_removed_is_made_again(store: TokenStore, tmp_path: Path) -> None:
    cache = tmp_path / "plans"
    stream = stream_of(store, cache=cache)
    expected = [facts(stream[i]) for i in range(4)]
    for path in cache.iterdir():
        path.unlink()
    assert [facts(stream[i]) for i in range(4)] == expected  # the open one stays
    assert [facts(stream_of(store, cache=cache)[i]) for i in range(4)] == expected
    assert list(cache.glob("*-0.bin"))


def test_a_stored_plan_serves_its_own_settings_only(store: TokenStore, tmp_path: Path) -> None:
    for arguments in ({}, {"length": 16}, {"rule": "none"}):
        cached = stream_of(store, cache=tmp_path / "plans", **arguments)
        again = stream_of(store, cache=tmp_path / "plans", **arguments)
        assert facts(again[0]) == facts(cached[0]) == facts(stream_of(store, **arguments)[0])


def test_only_the_last_two_plans_are_kept(store: TokenStore, tmp_path: Path) -> None:
    plans = stream_of(store, cache=tmp_path / "plans").plans
    for epoch in range(5):
        plans.epoch(epoch)
    assert sorted(path.name[-6:] for path in (tmp_path / "plans").glob("*.bin")) == ["-3.bin", "-4.bin"]
    assert sorted(plans._open) == [3, 4]


def test_of_many_that_need_a_plan_one_makes_it(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fcntl")
    made: list[int] = []

    def counted(*arguments: Any, **named: Any) -> Any:
        made.append(1)
        return plan_epoch(*arguments, **named)

    monkeypatch.setattr(loader, "plan_epoch", counted)
    streams = [stream_of(store, cache=tmp_path / "plans") for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        plans = list(pool.map(lambda stream: stream.plans.epoch(0).tolist(), streams))
    assert len(made) == 1
    assert all(plan == plans[0] for plan in plans)


def test_a_worker_gets_the_place_of_the_store_and_not_a_copy_of_it(store: TokenStore, tmp_path: Path) -> None:
    large = make_store(tmp_path / "large", random_documents(400), vocab_size=V)
    sizes = []
    for each in (store, large):
        stream = stream_of(each, cache=tmp_path / "plans")
        stream[0]
        sent = pickle.dumps(stream)
        sizes.append(len(sent))
        assert facts(pickle.loads(sent)[1]) == facts(stream[1])
    assert abs(sizes[0] - sizes[1]) < 100
    assert max(sizes) < 5000
