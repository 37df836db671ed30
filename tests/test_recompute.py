"""Layers computed again in the backward pass: the same numbers, with dropout, and less memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_helpers import labels, packed, padded_rows, small
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from train_helpers import Tiny, quiet

from bertpt.batch import Batch
from bertpt.config import load_config
from bertpt.config.schema import Model
from bertpt.model.bert import Layer
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train import plan
from bertpt.train.cost import training_flops
from bertpt.train.plan import plan_run
from bertpt.train.pretrain import pretrain, pretraining_objective
from bertpt.train.updates.step import autocast

VOCAB = 40
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.25}
LENGTHS = [7, 9, 4, 12]


@pytest.fixture(autouse=True)
def _short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SECONDS", 0.0)


def batch(lengths: list[int] = LENGTHS) -> Batch:
    rows = padded_rows(VOCAB, lengths)
    return packed(rows, labels(rows, VOCAB))


def passed(config: Model, *, recompute: bool, precision: str = "fp32") -> tuple[float, dict[str, Tensor], Tensor]:
    """Loss, gradients, and the random state after two micro-batches."""
    torch.manual_seed(0)
    model = BertForPreTraining(config, VOCAB)
    model.bert.encoder.recompute = recompute
    total = 0.0
    for lengths in (LENGTHS, [12, 12]):  # the second without padding
        with autocast(torch.device("cpu"), precision):
            losses = pretraining_objective(model, batch(lengths)).losses
        loss = torch.stack([term.sum for term in losses.values()]).sum()
        loss.backward()
        total += float(loss.detach())
    return total, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, torch.get_rng_state()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])  # row by row with random bytes; on the grid by torch
@pytest.mark.parametrize("rates", [DROPOUT, DROPOUT | {"hidden_dropout_prob": 0.01}], ids=["bytes", "torch"])
def test_gradients_are_equal_with_dropout(rates: dict[str, float], precision: str) -> None:
    config = small(num_hidden_layers=3, **rates)
    loss, gradients, state = passed(config, recompute=False, precision=precision)
    again_loss, again, again_state = passed(config, recompute=True, precision=precision)
    assert again_loss == loss
    assert again.keys() == gradients.keys()
    assert all(torch.equal(again[name], gradients[name]) for name in gradients)
    assert torch.equal(again_state, state)  # so the next update draws the same
    no_dropout = passed(small(num_hidden_layers=3), recompute=True, precision=precision)[0]
    assert no_dropout != loss  # it did drop


def test_each_layer_is_computed_twice_and_without_gradients_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Layer] = []
    forward = Layer.forward

    def counted(layer: Layer, hidden: Tensor, batch: Batch) -> Tensor:
        calls.append(layer)
        return forward(layer, hidden, batch)

    monkeypatch.setattr(Layer, "forward", counted)
    passed(small(num_hidden_layers=3), recompute=True)
    assert len(calls) == 2 * 3 * 2
    calls.clear()
    model = BertForPreTraining(small(num_hidden_layers=3), VOCAB).eval()
    model.bert.encoder.recompute = True
    with torch.no_grad():
        model(batch())
    assert len(calls) == 3


def test_a_run_ends_with_the_same_weights(tiny: Tiny, tmp_path: Path) -> None:
    found = []
    for wanted in (False, True):
        config = tiny.config(tmp_path / str(wanted), train={"activation_checkpointing": wanted})
        run = pretrain(config, say=quiet).directory
        found.append(load_file(run / "checkpoints" / "step-00000020" / "model.safetensors"))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


# --- what it costs --------------------------------------------------------------------------------------------------


def activations(tmp_path: Path, layers: int, recompute: bool) -> float:
    settings = [
        f"data_dir={tmp_path}",
        "train.device=cpu",
        "train.phases=[{steps: 1, length: 64, batch_size: 8}]",
        "tokenizer.vocab_size=300",
        "model.hidden_size=32",
        f"model.num_hidden_layers={layers}",
        f"train.activation_checkpointing={str(recompute).lower()}",
    ]
    found = plan_run(load_config("tiny", settings), say=quiet).phases[0].activation_bytes
    assert found is not None
    return found


def test_the_plan_counts_the_inputs_of_all_layers_and_one_layer_in_full(tmp_path: Path) -> None:
    whole = {layers: activations(tmp_path, layers, False) for layers in (2, 6)}
    part = {layers: activations(tmp_path, layers, True) for layers in (2, 6)}
    tokens = 8 * round(0.93 * 64)
    layer_input = 4 * 32 * tokens
    assert (part[6] - part[2]) / 4 == pytest.approx(layer_input, rel=0.02)
    layer = (whole[6] - whole[2]) / 4
    assert layer > 10 * layer_input
    # With two layers: one in full, of the other its input.
    assert whole[2] - part[2] == pytest.approx(layer - layer_input, rel=0.1)


def test_the_operations_are_those_that_torch_counts() -> None:
    config = small(num_hidden_layers=3)
    model = BertForPreTraining(config, VOCAB)
    rows = batch([12, 12])
    counted = []
    for recompute in (False, True):
        model.bert.encoder.recompute = recompute
        with FlopCounterMode(display=False) as counter, autocast(torch.device("cpu"), "bf16"):
            torch.stack([term.sum for term in pretraining_objective(model, rows).losses.values()]).sum().backward()
        counted.append(counter.get_total_flops())
    size = {"rows": rows.rows, "tokens": rows.tokens, "predictions": rows.predictions, "pairs": True}
    plain, again = (training_flops(config, VOCAB, **size, recompute=recompute) for recompute in (False, True))
    # The counter does not know the fused attention of CPUs, which the difference of both shares with the formula alone.
    attention = 3 * 4 * 24 * rows.tokens**2 / rows.rows
    assert counted[1] - counted[0] == again - plain - attention


def test_a_reckoned_gpu_takes_longer_for_the_same_operations(tmp_path: Path) -> None:
    plans = [
        plan_run(load_config("base", [f"data_dir={tmp_path}", f"train.activation_checkpointing={value}"]), gpu="H200")
        for value in ("false", "true")
    ]
    plain, again = (plan.phases[0] for plan in plans)
    assert again.flops == plain.flops
    assert 1.25 < again.seconds / plain.seconds < 4 / 3  # the heads are not computed again
