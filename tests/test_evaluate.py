"""Held-out evaluation: the same figures for any batch size and on each run, and training is not touched."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_helpers import small
from store_helpers import make_store, random_documents
from torch import nn

from bertpt.batch import Batch
from bertpt.config import validate
from bertpt.data.rows import baselines
from bertpt.data.rows.loader import BatchStream
from bertpt.data.tokens.store import TokenStore
from bertpt.model.pretraining import BertForPreTraining, PreTrainingOutput
from bertpt.train.evaluate import Predictions, evaluating, heldout_scores, predict_heldout
from bertpt.train.evaluation import compare
from bertpt.train.pretrain import heldout_stream

V = 100


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    documents = random_documents(20, seed=1, sentences=(2, 10))
    return make_store(tmp_path, random_documents(30), documents, vocab_size=V, heldout_sources=[0] * 12 + [1] * 8)


def stream_of(store: TokenStore, batch_size: int = 64, **sections: Any) -> BatchStream:
    value: dict[str, Any] = {"name": "t", "corpus": {"sources": [{"kind": "docstrings"}]}}
    value["train"] = {"phases": [{"steps": 1}]}
    config = validate(value | sections | {"evaluate": {"batch_size": batch_size}})
    return heldout_stream(store, config, 32)


def model_of(*, nsp: bool = True, **changes: Any) -> BertForPreTraining:
    torch.manual_seed(0)
    return BertForPreTraining(small(**changes), V, nsp=nsp)


def predictions_of(store: TokenStore, batch_size: int = 64, max_rows: int = 10_000) -> Predictions:
    return predict_heldout(model_of(), stream_of(store, batch_size), max_rows=max_rows)


@pytest.mark.parametrize("batch_size", [7, 64])
def test_scores_do_not_depend_on_the_batch_size(store: TokenStore, batch_size: int) -> None:
    one, other = predictions_of(store, 1), predictions_of(store, batch_size)
    assert len(one.rows) % batch_size  # the last batch is a short one
    for name in ("rows", "predictions_per_row", "in_second", "labels", "mlm_right", "nsp_right"):
        assert (getattr(one, name) == getattr(other, name)).all(), name
    scores = heldout_scores(other)
    assert heldout_scores(one) == pytest.approx(scores, rel=1e-5)
    # Each prediction weighs the same: unlike a mean over batches or rows of unequal counts.
    assert scores["mlm_loss"] == pytest.approx(sum(other.mlm_nll.tolist()) / int(other.predictions_per_row.sum()))
    assert scores["mlm_perplexity"] == pytest.approx(math.exp(scores["mlm_loss"]))


def test_losses_are_those_of_one_row_at_a_time(store: TokenStore) -> None:
    model, stream = model_of(), stream_of(store)
    found = predict_heldout(model, stream, max_rows=40)
    model.eval()
    mlm, nsp, second, per_row = [], [], [], []
    for index in range(40):
        batch = stream.rows(index, 1)
        assert batch.masked_positions is not None
        assert batch.masked_labels is not None
        assert batch.next_sentence_label is not None
        with torch.no_grad():
            output = model(batch)
            shares = output.mlm_logits.double().softmax(-1)
        mlm += [-math.log(shares[i, y]) for i, y in enumerate(batch.masked_labels.tolist())]
        nsp.append(-math.log(output.nsp_logits.double().softmax(-1)[0, int(batch.next_sentence_label)]))
        second += [bool(batch.token_type_ids[p]) for p in batch.masked_positions.tolist()]
        per_row.append(batch.predictions)
    assert found.mlm_nll.tolist() == pytest.approx(mlm, rel=1e-4)
    assert found.nsp_nll.tolist() == pytest.approx(nsp, rel=1e-4)
    assert found.in_second.tolist() == second
    assert found.predictions_per_row.tolist() == per_row


def test_every_run_scores_the_same_rows_and_masks(store: TokenStore) -> None:
    torch.manual_seed(1)
    first = predictions_of(store)
    torch.manual_seed(2)
    again = predictions_of(store)
    for field in dataclasses.fields(Predictions):
        assert (getattr(first, field.name) == getattr(again, field.name)).all()
    # Whatever a run's own seed and masking are.
    theirs = stream_of(store, masking={"rate": 0.4, "unit": "whole-word"}, train={"seed": 9, "phases": [{"steps": 1}]})
    ours = stream_of(store)
    assert theirs.rows(0, 30).input_ids.tolist() == ours.rows(0, 30).input_ids.tolist()


def test_masks_differ_from_row_to_row_and_are_those_of_training(store: TokenStore) -> None:
    found = predictions_of(store)
    assert found.predictions_per_row.min() >= 1
    tokens = (found.rows["a_length"] + found.rows["b_length"]).astype(np.int64)
    assert found.predictions_per_row.sum() / tokens.sum() == pytest.approx(0.15, abs=0.01)
    stream = stream_of(store)
    places = set()
    for index in range(30):
        batch = stream.rows(index, 1)
        assert batch.masked_positions is not None
        places.add(tuple(batch.masked_positions.tolist()))
    assert len(places) > 20


def test_a_limit_takes_the_first_rows(store: TokenStore) -> None:
    few, all_rows = predictions_of(store, max_rows=10), predictions_of(store)
    assert few.rows.tolist() == all_rows.rows[:10].tolist()
    assert len(few.mlm_nll) == few.predictions_per_row.sum() == all_rows.predictions_per_row[:10].sum()
    assert len(all_rows.rows) == len(stream_of(store).plans.epoch(0))


def test_training_is_not_touched(store: TokenStore) -> None:
    model = model_of(hidden_dropout_prob=0.5)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(5)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    for mode in (True, False):
        model.train(mode)
        predict_heldout(model, stream_of(store), max_rows=20)
        assert [module.training for module in model.modules()] == [mode] * len(list(model.modules()))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    model.train()
    model(stream_of(store).rows(0, 4)).mlm_logits.sum().backward()  # gradients work as before


def test_the_mode_is_restored_when_an_evaluation_fails() -> None:
    model = nn.Dropout().train()

    def fail() -> None:
        with evaluating(model):
            assert not model.training
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert model.training
    assert torch.is_grad_enabled()


def test_dropout_is_off(store: TokenStore) -> None:
    model = model_of(hidden_dropout_prob=0.9, attention_probs_dropout_prob=0.9).train()
    first, again = (predict_heldout(model, stream_of(store), max_rows=20) for _ in range(2))
    assert (first.mlm_nll == again.mlm_nll).all()


def test_rows_without_pairs_have_no_pair_scores(store: TokenStore) -> None:
    found = predict_heldout(model_of(nsp=False), stream_of(store, pairs={"rule": "none"}), max_rows=20)
    assert len(found.nsp_nll) == len(found.nsp_right) == 0
    assert set(heldout_scores(found)) == {"mlm_loss", "mlm_perplexity", "mlm_accuracy"}


def with_losses(losses: list[float]) -> Predictions:
    nll = np.array(losses, np.float64)
    return Predictions(
        rows=np.zeros(0),
        predictions_per_row=np.zeros(0, np.int64),
        in_second=np.zeros(len(nll), bool),
        whole_word=np.zeros(len(nll), bool),
        labels=np.zeros(len(nll), np.int64),
        mlm_nll=nll,
        mlm_right=np.zeros(len(nll), bool),
        nsp_nll=np.zeros(0),
        nsp_right=np.zeros(0, bool),
    )


def test_a_huge_loss_has_infinite_perplexity_and_no_loss_has_none() -> None:
    assert heldout_scores(with_losses([800.0]))["mlm_perplexity"] == math.inf
    assert heldout_scores(with_losses([600.0]))["mlm_perplexity"] == pytest.approx(math.exp(600))
    for losses in ([math.nan], []):
        scores = heldout_scores(with_losses(losses))
        assert math.isnan(scores["mlm_loss"])
        assert math.isnan(scores["mlm_perplexity"])


# --- beside the baselines ----------------------------------------------------------------------------------------


class Cheat(nn.Module):
    """Says of each masked token and pair what it was told to."""

    def __init__(self, store: TokenStore, *, knows: bool) -> None:
        super().__init__()
        special = np.array(sorted(store.special_ids.values()))
        shares = baselines.unigram_probabilities(np.asarray(store.unigram), special)
        self.unigram = nn.Parameter(torch.tensor(np.log(np.maximum(shares, 1e-30)), dtype=torch.float32))
        self.knows = knows

    def forward(self, batch: Batch) -> PreTrainingOutput:
        assert batch.masked_labels is not None
        assert batch.next_sentence_label is not None
        logits = self.unigram.expand(batch.predictions, -1)
        pairs = torch.zeros(batch.rows, 2)
        if self.knows:
            logits = 50.0 * nn.functional.one_hot(batch.masked_labels, V)
            pairs = 50.0 * nn.functional.one_hot(batch.next_sentence_label, 2)
        return PreTrainingOutput(logits.float(), torch.eye(V), torch.zeros(V), pairs)


def test_a_model_of_unigrams_scores_what_its_baseline_says(store: TokenStore) -> None:
    found = predict_heldout(Cheat(store, knows=False), stream_of(store), max_rows=1000)  # type: ignore[arg-type]
    scores, beside = compare(store, found, "next")
    assert scores["mlm_loss"] == pytest.approx(beside["unigram_loss"], rel=1e-5)
    assert scores["mlm_accuracy"] == beside["most_frequent_accuracy"]
    assert scores["nsp_loss"] == pytest.approx(math.log(2), rel=1e-5)
    assert scores["nsp_balanced_same_source"] == 0.5
    assert beside["majority_accuracy"] == max(scores["nsp_accuracy"], 1 - scores["nsp_accuracy"])
    assert beside["document_count_loss"] <= beside["unigram_loss"]
    assert beside["source_detector_accuracy"] >= beside["majority_accuracy"]


def test_a_model_that_knows_the_answers_scores_full_marks(store: TokenStore) -> None:
    found = predict_heldout(Cheat(store, knows=True), stream_of(store), max_rows=1000)  # type: ignore[arg-type]
    scores, _ = compare(store, found, "next")
    assert scores["mlm_loss"] == pytest.approx(0, abs=1e-6)
    assert scores["mlm_perplexity"] == pytest.approx(1)
    assert scores["mlm_accuracy"] == scores["nsp_accuracy"] == scores["nsp_balanced_same_source"] == 1
