"""Sentence order, mixed sources, curriculum: beside a walk in plain Python, and what must hold whatever is drawn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stage_helpers import make_config
from store_helpers import Document, make_store, make_tokens, random_documents
from test_plan import Draws, Row, document_of, joined, numbered, truncate

from bertpt.config.schema import Masking, Pairs
from bertpt.data.rows import plan
from bertpt.data.rows.baselines import length_detector_accuracy
from bertpt.data.rows.loader import BatchStream
from bertpt.data.rows.mixture import Mixture, documents_of_epoch, mixture_of, repeats
from bertpt.data.rows.plan import pair_labels, plan_epoch
from bertpt.data.tokens.paircheck import pair_faults
from bertpt.errors import RequestError
from bertpt.train.pretrain import heldout_stream

# --- sentence order ----------------------------------------------------------------------------------------------


def walk_in_order(documents: list[Document], pairs: Pairs, length: int, seed: int, epoch: int) -> list[Row]:
    """All rows of ``rule: order``, one document and one sentence at a time."""
    room = length - 3
    made: list[tuple[int, int, Row]] = []
    for index, document in enumerate(numbered(documents, room)):
        turn, i = 0, 0
        while i < len(document) and len(document) > 1:
            draws = Draws(seed, epoch, index, turn)
            target = room
            if draws.share(plan._SHORT) < pairs.short_share:
                target = 2 + draws.below(room - 1, plan._TARGET)
            chunk: list[list[int]] = []
            begin = i
            while i < len(document) and len(joined(chunk)) < target:
                chunk.append(document[i])
                i += 1
            if len(chunk) == 1 and i < len(document):
                chunk.append(document[i])
                i += 1
            if len(chunk) == 1:
                chunk.insert(0, document[begin - 1])
            cut = 1 + draws.below(len(chunk) - 1, plan._SPLIT)
            halves = [joined(chunk[:cut]), joined(chunk[cut:])]
            if draws.share(plan._RANDOM) < 0.5:
                halves.reverse()
            truncate(*halves, room, draws)
            made.append((turn, index, (halves[0][0], halves[1][0], len(halves[0]), len(halves[1]), False)))
            turn += 1
    rows = [row for _, _, row in sorted(made)]
    order = sorted(range(len(rows)), key=lambda i: Draws(seed, epoch).bits(plan._ORDER, i))
    return [rows[i] for i in order]


@pytest.mark.parametrize("length", [8, 9, 33, 64, 128])
@pytest.mark.parametrize("seed", [0, 99, 2**63])
def test_rows_in_order_are_those_of_a_walk_over_sentences(length: int, seed: int) -> None:
    documents = random_documents(13, seed=seed, sentences=(1, 25), tokens=(1, 40))
    documents[3] = [*documents[3][:2], list(range(5, 100)) * 7, *documents[3][2:]]  # longer than a row
    pairs = Pairs(rule="order", short_share=0.3)
    rows = plan_epoch(make_tokens(documents), pairs, length=length, seed=seed, epoch=seed % 3)
    assert rows.tolist() == walk_in_order(documents, pairs, length, seed, seed % 3)


def test_halves_are_neighbours_of_one_document_and_half_of_them_are_swapped() -> None:
    tokens = make_tokens(random_documents(400, sentences=(2, 20), tokens=(1, 20)))
    rows = plan_epoch(tokens, Pairs(rule="order"), length=64, seed=1, epoch=0)
    swapped = pair_labels(rows, "order")
    a, b, a_length, b_length = (rows[name].astype(np.int64) for name in ("a_start", "b_start", "a_length", "b_length"))
    assert (document_of(tokens, a) == document_of(tokens, b)).all()
    gap = np.where(swapped, a - b - b_length, b - a - a_length)
    assert (gap >= 0).all()
    full = a_length + b_length + 3 == 64
    assert (gap[~full] == 0).all()  # they touch, unless they were cut
    assert not rows["is_random"].any()
    # 0.5 within 4 standard deviations, and the length of either half says nothing of the label.
    assert abs(swapped.mean() - 0.5) < 2 / len(rows) ** 0.5
    assert length_detector_accuracy(rows, swapped) < 0.5 + 2.5 / len(rows) ** 0.5


def test_every_sentence_of_a_document_of_two_or_more_is_in_a_row() -> None:
    documents = random_documents(200, sentences=(1, 30), tokens=(1, 1))  # of one token: nothing is cut
    tokens = make_tokens(documents)
    rows = plan_epoch(tokens, Pairs(rule="order"), length=16, seed=0, epoch=0)
    seen = np.zeros(len(tokens.ids), np.int64)
    for row in rows:
        for side in "ab":
            seen[row[f"{side}_start"] : row[f"{side}_start"] + row[f"{side}_length"]] += 1
    alone = np.repeat(np.diff(tokens.documents) == 1, np.diff(tokens.document_starts))
    assert (seen[alone] == 0).all()
    assert set(seen[~alone].tolist()) == {1, 2}
    assert (seen[~alone] == 2).sum() < len(documents)  # the sentence before a last one that was left alone
    assert Counter(pair_labels(rows, "order").tolist()).keys() == {False, True}


def test_one_document_will_do_and_single_sentences_will_not() -> None:
    order = Pairs(rule="order")
    assert len(plan_epoch(make_tokens([[[5, 6], [7]]]), order, length=8, seed=0, epoch=0)) == 1
    with pytest.raises(RequestError, match=r"pairs\.rule: order gives no row: each document is one sentence"):
        plan_epoch(make_tokens([[[5, 6]], [[7]]]), order, length=8, seed=0, epoch=0)
    one = {"documents": 1, "documents_of_two_sentences_or_more": 1}
    assert pair_faults({"counts": {"train": one, "heldout": one}}, "order") == []
    assert len(pair_faults({"counts": {"train": one, "heldout": one}}, "next")) == 2
    single = {"documents": 9, "documents_of_two_sentences_or_more": 0}
    assert "each of one sentence" in pair_faults({"counts": {"train": one, "heldout": single}}, "order")[0]


def test_the_label_of_a_batch_is_1_where_the_halves_are_swapped(tmp_path: Path) -> None:
    # Ids grow through each document, so the text itself says which half was first.
    documents = [[[5 + 4 * s + t for t in range(4)] for s in range(20)] for _ in range(10)]
    stream = BatchStream.create(
        make_store(tmp_path, documents),
        "train",
        pairs=Pairs(rule="order"),
        masking=Masking(),
        length=32,
        batch_size=40,
        seed=0,
    )
    batch = stream[0]
    assert batch.next_sentence_label is not None
    assert batch.masked_positions is not None
    assert batch.masked_labels is not None
    ids = batch.input_ids.clone()
    ids[batch.masked_positions] = batch.masked_labels
    for row, label in zip(
        ids.split(batch.attention_mask.sum(1).tolist()), batch.next_sentence_label.tolist(), strict=True
    ):
        assert label == int(row[1] > row[-2])
    assert set(batch.next_sentence_label.tolist()) == {0, 1}


# --- mixed sources -----------------------------------------------------------------------------------------------


def three_sources() -> Any:
    documents = random_documents(300, sentences=(3, 9), tokens=(5, 9))
    return make_tokens(documents, [0] * 200 + [1] * 80 + [2] * 20)


def sizes_of(tokens: Any) -> Any:
    return np.bincount(tokens.sources, np.diff(tokens.document_starts))


def test_weights_are_shares_of_the_tokens_of_an_epoch() -> None:
    tokens = three_sources()
    sizes = sizes_of(tokens)
    rate = repeats(tokens, Mixture((2.0, 1.0, 1.0), (100.0,) * 3))
    assert rate * sizes == pytest.approx(sizes.sum() * np.array([0.5, 0.25, 0.25]))
    given = sum(
        np.bincount(tokens.sources[d], np.diff(tokens.document_starts)[d], 3)
        for d, _ in (
            documents_of_epoch(tokens, Mixture((2.0, 1.0, 1.0), (100.0,) * 3), seed=0, epoch=e) for e in range(40)
        )
    )
    assert given / given.sum() == pytest.approx([0.5, 0.25, 0.25], abs=0.01)


def test_a_source_at_its_limit_leaves_the_rest_to_the_others_by_weight() -> None:
    tokens = three_sources()
    sizes = sizes_of(tokens)
    rate = repeats(tokens, Mixture((2.0, 1.0, 1.0), (100.0, 100.0, 1.5)))
    assert rate[2] == pytest.approx(1.5)
    left = sizes.sum() - 1.5 * sizes[2]
    assert rate[:2] * sizes[:2] == pytest.approx(left * np.array([2, 1]) / 3)
    # One after the other at its limit, and all of them: then the epoch is smaller.
    rest = (sizes[0] - sizes[2]) / sizes[0]
    assert repeats(tokens, Mixture((1.0, 1.0, 50.0), (1.0, 1.0, 2.0))) == pytest.approx([rest, 1.0, 2.0])
    assert repeats(tokens, Mixture((1.0, 1.0, 1.0), (0.5, 0.5, 0.5))) == pytest.approx([0.5] * 3)


def test_a_source_without_text_takes_no_share() -> None:
    tokens = make_tokens(random_documents(10), [0] * 10)
    assert repeats(tokens, Mixture((1.0, 3.0), (4.0, 4.0))).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("weight", [0.05, 0.3, 1.0, 2.6])
def test_documents_of_a_source_come_alike_often_over_the_epochs(weight: float) -> None:
    tokens = three_sources()
    mixture = Mixture((1.0, weight, 1.0), (9.0,) * 3)
    rate = repeats(tokens, mixture)[tokens.sources]
    counts = np.zeros(300)
    for epoch in range(11):
        document, copy = documents_of_epoch(tokens, mixture, seed=5, epoch=epoch)
        now = np.bincount(document, minlength=300)
        assert ((now == np.floor(rate)) | (now == np.ceil(rate))).all()
        assert (np.diff(document) >= 0).all()
        assert (copy == np.concatenate([np.arange(n) for n in now])).all()
        counts += now
    assert (np.abs(counts - rate * 11) < 1).all()


@pytest.mark.parametrize("rule", ["next", "order", "none"])
def test_a_copy_has_draws_of_its_own_and_no_b_from_its_own_document(rule: str) -> None:
    tokens = three_sources()
    mixture = Mixture((0.1, 0.1, 1.0), (0.5, 0.5, 5.0))
    rows = plan_epoch(tokens, Pairs(rule=rule), length=48, seed=0, epoch=2, mixture=mixture)
    source = tokens.sources[document_of(tokens, rows["a_start"])]
    text = np.bincount(source, rows["a_length"], 3) / rows["a_length"].sum()
    rate = repeats(tokens, mixture)
    assert rate[2] == pytest.approx(5)
    assert text == pytest.approx(rate * sizes_of(tokens) / (rate * sizes_of(tokens)).sum(), abs=0.04)
    if rule == "next":
        same = document_of(tokens, rows["a_start"]) == document_of(tokens, rows["b_start"])
        assert (same == ~rows["is_random"]).all()
        # B is drawn from the same mixed text: where it comes from does not tell that it is random.
        b = tokens.sources[document_of(tokens, rows["b_start"])][rows["is_random"]]
        documents, _ = documents_of_epoch(tokens, mixture, seed=0, epoch=2)
        expected = np.bincount(tokens.sources[documents], minlength=3) / len(documents)
        assert np.bincount(b, minlength=3) / len(b) == pytest.approx(expected, abs=0.07)
    if rule != "none":
        assert len(np.unique(rows)) > 0.9 * len(rows)


def test_without_weights_and_with_those_of_the_sizes_an_epoch_is_every_document_once() -> None:
    tokens = three_sources()
    sizes = tuple(sizes_of(tokens).tolist())
    plain = plan_epoch(tokens, Pairs(), length=48, seed=0, epoch=1)
    mixed = plan_epoch(tokens, Pairs(), length=48, seed=0, epoch=1, mixture=Mixture(sizes, (4.0,) * 3))
    assert plain.tolist() == mixed.tolist()


def test_one_document_in_an_epoch_takes_its_random_b_from_the_others() -> None:
    tokens = make_tokens(random_documents(6, sentences=(4, 6)), [0, 0, 0, 1, 1, 1])
    mixture = Mixture((1.0, 1.0), (0.1, 0.1))
    for epoch in range(30):
        rows = plan_epoch(tokens, Pairs(), length=16, seed=0, epoch=epoch, mixture=mixture)
        assert len(rows)
        for random_from in ("corpus", "source"):
            plan_epoch(tokens, Pairs(random_from=random_from), length=16, seed=0, epoch=epoch, mixture=mixture)


def test_weights_are_found_by_the_names_of_the_sources(tmp_path: Path) -> None:
    sources = [{"kind": "files", "path": "a", "weight": 3}, {"kind": "files", "path": "b", "weight": 1.5}]
    corpus = make_config(tmp_path, corpus={"sources": sources}).corpus
    assert mixture_of(corpus, ["b", "a"]) == Mixture((1.5, 3.0), (4.0, 4.0))
    assert mixture_of(make_config(tmp_path).corpus, ["whatever"]) is None
    with pytest.raises(RequestError, match="weights are set, and the token store has the sources c, d"):
        mixture_of(corpus, ["c", "d"])
    fallback = {"sources": [{"kind": "docstrings"}], "fallback": sources}
    assert mixture_of(make_config(tmp_path, corpus=fallback).corpus, ["a", "b"]) == Mixture((3.0, 1.5), (4.0, 4.0))


def test_a_plan_of_other_weights_is_another_plan(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", random_documents(30, sentences=(3, 9)), train_sources=[0] * 15 + [1] * 15)

    def rows(weights: tuple[float, ...] | None) -> int:
        mixture = None if weights is None else Mixture(weights, (4.0, 4.0))
        stream = BatchStream.create(
            store,
            "train",
            pairs=Pairs(),
            masking=Masking(),
            length=32,
            batch_size=8,
            seed=0,
            cache=tmp_path / "plans",
            mixture=mixture,
        )
        plan = stream.plans.epoch(0)
        return int((store.train.sources[document_of(store.train, plan["a_start"])] == 0).sum())

    assert len({rows(None), rows((3.0, 1.0)), rows((1.0, 3.0))}) == 3


# --- curriculum --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["next", "order", "none"])
def test_the_first_epochs_come_shortest_first_and_hold_the_same_rows(rule: str) -> None:
    tokens = make_tokens(random_documents(200))
    for epoch in range(3):
        plain = plan_epoch(tokens, Pairs(rule=rule), length=48, seed=0, epoch=epoch)
        rows = plan_epoch(tokens, Pairs(rule=rule, curriculum_epochs=2), length=48, seed=0, epoch=epoch)
        assert sorted(rows.tolist()) == sorted(plain.tolist())
        size = rows["a_length"] + rows["b_length"]
        assert (rows.tolist() == plain.tolist()) == (epoch == 2)
        assert (np.diff(size) >= 0).all() == (epoch < 2)
        if epoch < 2:  # equal ones shuffled
            most = rows[size == np.bincount(size).argmax()]["a_start"]
            assert abs(np.corrcoef(np.arange(len(most)), most)[0, 1]) < 0.3


def test_an_evaluation_takes_neither_weights_nor_curriculum(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", random_documents(60), random_documents(60, seed=1))
    config = make_config(tmp_path, pairs={"curriculum_epochs": 3}, masking={"unit": "ngram", "dupe_factor": 1})
    plain = make_config(tmp_path)
    theirs, ours = heldout_stream(store, config, 32), heldout_stream(store, plain, 32)
    assert theirs.plans.epoch(0).tolist() == ours.plans.epoch(0).tolist()
    assert theirs[0].input_ids.tolist() == ours[0].input_ids.tolist()
