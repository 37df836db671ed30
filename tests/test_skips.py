"""Numbers gone bad: updates left out as if they had not been, the run that stops, who is named, losses that jump."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from train_helpers import MEASURED, Tiny, quiet

from bertpt.config.schema import Optimizer, Schedule
from bertpt.errors import BertptError, Stopped
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train import loop
from bertpt.train.blame import name_first
from bertpt.train.checkpoints.checkpoint import checkpoints
from bertpt.train.pretrain import pretrain, pretraining_counts, pretraining_objective
from bertpt.train.updates.optim import build_optimizer
from bertpt.train.updates.schedule import learning_rate
from bertpt.train.updates.skips import Jumps, Rates, Skips, not_finite
from bertpt.train.updates.step import Totals, train_step


def metrics(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    entries = [{key: value for key, value in json.loads(line).items() if key not in MEASURED} for line in lines]
    return [entry for entry in entries if entry["kind"] == kind]


def tensors(run: Path, step: int, file: str = "*") -> dict[str, Tensor]:
    folder = run / "checkpoints" / f"step-{step:08d}"
    return {f"{p.stem}:{n}": t for p in folder.glob(f"{file}.safetensors") for n, t in load_file(p).items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Bad:
    """Makes the gradients of some updates infinite, and stops after others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def at(self, bad: Sequence[int], *, start: int = 0, stop: int | None = None) -> None:
        self.monkeypatch.undo()
        made, step = loop.train_step, start

        def broken(model: BertForPreTraining, *arguments: Any, **options: Any) -> Tensor:
            nonlocal step
            step += 1
            handle: Callable[[], None] = lambda: None  # noqa: E731
            if step in bad:
                handle = model.cls.predictions.bias.register_hook(lambda gradient: gradient * math.inf).remove
            skipped = made(model, *arguments, **options)
            handle()
            if step == stop:
                signal_self()
            return skipped

        self.monkeypatch.setattr(loop, "train_step", broken)


def signal_self() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> Bad:
    return Bad(monkeypatch)


def test_a_bad_update_is_left_out_as_if_it_had_not_been(tiny: Tiny, tmp_path: Path, bad: Bad) -> None:
    good = pretrain(tiny.config(tmp_path / "good"), say=quiet).directory
    bad.at([1, 8])
    settings = {"save_every": 1, "keep": 30}
    run = pretrain(tiny.config(tmp_path, train=settings), say=quiet).directory
    # Weights and moments: those of the update before. The random state and the data have moved.
    assert equal(tensors(run, 7, "model"), tensors(run, 8, "model"))
    assert equal(tensors(run, 7, "optimizer"), tensors(run, 8, "optimizer"))
    assert not equal(tensors(run, 7, "random"), tensors(run, 8, "random"))
    assert not equal(tensors(run, 8, "model"), tensors(run, 9, "model"))
    steps = {name: t for name, t in tensors(run, 20, "optimizer").items() if name.endswith("/step")}
    assert {float(step) for step in steps.values()} == {18.0}
    entries = metrics(run)
    assert [entry["skipped"] for entry in entries] == [1] * 7 + [2] * 13
    for step in (1, 8):
        assert entries[step - 1]["gradient_norm"] is None
        assert entries[step - 1]["mlm_loss"] is None  # no update of this line was made
    # The schedule moved with real updates alone.
    rates = [entry["lr"] for entry in metrics(good)]
    assert [entry["lr"] for entry in entries] == [rates[0], *rates[:7], *rates[6:18]]
    board = EventAccumulator(str(run / "tb" / "train"), size_guidance={"scalars": 0})
    board.Reload()
    assert [event.value for event in board.Scalars("optimizer/skipped")] == [entry["skipped"] for entry in entries]


def test_the_means_of_a_line_are_of_the_updates_that_were_made(tiny: Tiny, tmp_path: Path, bad: Bad) -> None:
    bad.at([3])
    each = metrics(pretrain(tiny.config(tmp_path / "a"), say=quiet).directory)
    bad.at([3])
    [line, *_] = metrics(pretrain(tiny.config(tmp_path / "b", train={"log_every": 5}), say=quiet).directory)
    assert each[2]["nsp_loss"] is None
    wanted = [each[step - 1]["nsp_loss"] for step in (1, 2, 4, 5)]  # equally many rows in each
    assert line["nsp_loss"] == pytest.approx(sum(wanted) / 4, abs=1e-6)
    assert line["skipped"] == 1


@pytest.mark.parametrize("log_every", [1, 6])
@pytest.mark.parametrize("at", [6, 7, 9], ids=["before", "between", "after"])
def test_resume_is_exact_through_skips(tiny: Tiny, tmp_path: Path, bad: Bad, at: int, log_every: int) -> None:
    settings = {"log_every": log_every, "eval_every": 5}
    bad.at([7, 8])
    whole = pretrain(tiny.config(tmp_path / "whole", train=settings), say=quiet).directory
    bad.at([7, 8], stop=at)
    with pytest.raises(Stopped, match=f"SIGUSR1 after update {at}"):
        pretrain(tiny.config(tmp_path, train=settings), say=quiet)
    bad.at([7, 8], start=at)
    run = pretrain(tiny.config(tmp_path, train=settings), say=quiet).directory
    assert equal(tensors(run, 20), tensors(whole, 20))
    assert metrics(run) == metrics(whole)
    assert metrics(run, "heldout") == metrics(whole, "heldout")
    assert metrics(run)[-1]["skipped"] == 2


@pytest.mark.parametrize("log_every", [1, 100], ids=["each logged", "between two log lines"])
def test_after_so_many_in_a_row_the_run_stops_and_the_last_good_checkpoint_stays(
    tiny: Tiny, tmp_path: Path, log_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"save_every": 4, "log_every": log_every, "max_skips": 3}
    made, step = loop.train_step, 0

    def broken(model: BertForPreTraining, *arguments: Any, **options: Any) -> Tensor:
        nonlocal step
        step += 1
        if step == 10:  # and for ever, in the pass that looks for the fault too
            model.cls.predictions.bias.register_hook(lambda gradient: gradient * math.inf)
        return made(model, *arguments, **options)

    monkeypatch.setattr(loop, "train_step", broken)
    with pytest.raises(BertptError) as caught:
        pretrain(tiny.config(tmp_path, train=settings), say=quiet)
    assert caught.value.exit_code == 1
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("update 12: loss or gradient were not finite 3 times in a row (")
    assert "first in the gradient of cls.predictions.bias" in message
    assert "lower train.optimizer.lr" in message
    run = tmp_path / "tiny-run"
    assert [step for step, _ in checkpoints(run)] == [4, 8]
    assert all(bool(torch.isfinite(t).all()) for t in tensors(run, 8).values() if t.is_floating_point())


def break_weight(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    made, step = loop.train_step, 0

    def broken(model: BertForPreTraining, *arguments: Any, **options: Any) -> Tensor:
        nonlocal step
        step += 1
        if step == at:
            with torch.no_grad():
                model.bert.pooler.dense.weight[0, 0] = math.nan  # type: ignore[union-attr]
        return made(model, *arguments, **options)

    monkeypatch.setattr(loop, "train_step", broken)


def test_a_weight_that_is_no_number_is_named(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_weight(monkeypatch, 8)
    with pytest.raises(
        BertptError, match=r"update 17: .*\(first in the output of bert\.pooler\.dense, whose weight is not"
    ):
        pretrain(tiny.config(tmp_path), say=quiet)
    assert checkpoints(tmp_path / "tiny-run") == []


def test_weights_that_are_no_numbers_are_never_saved_nor_best(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_weight(monkeypatch, 8)
    with pytest.raises(BertptError, match=r"step-00000008: not saved: bert\.pooler\.dense\.weight holds numbers"):
        pretrain(tiny.config(tmp_path, train={"save_every": 4}), say=quiet)
    assert [step for step, _ in checkpoints(tmp_path / "tiny-run")] == [4]


def test_a_run_of_nothing_but_skips_does_not_end_as_a_success(tiny: Tiny, tmp_path: Path, bad: Bad) -> None:
    bad.at(range(100))
    short = {"phases": [{"length": 32, "steps": 3, "batch_size": 4}], "schedule": {"warmup_steps": 0}}
    with pytest.raises(BertptError, match="3 times in a row"):
        pretrain(tiny.config(tmp_path, train=short), say=quiet)
    assert checkpoints(tmp_path / "tiny-run") == []


# --- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_either_optimizer_leaves_weights_and_moments_alone(correction: bool, value: float) -> None:
    torch.manual_seed(0)
    model = BertForPreTraining(model_helpers.small(), 40)
    optimizer = build_optimizer(model, Optimizer(bias_correction=correction))

    def update() -> bool:
        rows = model_helpers.padded_rows(40, [7, 9, 4], seed=0)
        batch = model_helpers.packed(rows, model_helpers.labels(rows, 40, seed=0))
        return bool(
            train_step(
                model, optimizer, [batch], pretraining_objective, pretraining_counts, Totals.empty(),
                weights={"mlm": 1.0, "nsp": 1.0}, lr=1e-2, clip=1.0, precision="fp32",
            )
        )  # fmt: skip

    def everything() -> list[Tensor]:
        moments = [value for state in optimizer.state.values() for value in state.values()]
        return [tensor.clone() for tensor in [*model.parameters(), *moments]]

    assert not update()
    before = everything()
    handle = model.bert.embeddings.word_embeddings.weight.register_hook(lambda gradient: gradient * value)
    assert update()
    handle.remove()
    assert all(torch.equal(a, b) for a, b in zip(before, everything(), strict=True))
    assert not update()
    assert not any(torch.equal(a, b) for a, b in zip(before[:1], everything()[:1], strict=True))


def test_the_table_of_rates_is_the_schedule() -> None:
    schedule = Schedule(warmup_steps=5)
    wanted = [learning_rate(update, 30, schedule, 1e-3) for update in range(30)]
    rates = Rates(30, schedule, 1e-3, torch.device("cpu"))
    assert torch.equal(rates.table(), torch.tensor(wanted))
    skips = Skips.of(torch.device("cpu"), total=3)
    assert rates(10, skips) == wanted[7]
    rates._table = rates.table()  # as on a GPU
    assert float(rates(10, skips)) == pytest.approx(wanted[7], rel=1e-6)


def test_skips_are_counted_in_all_and_in_a_row() -> None:
    skips = Skips.of(torch.device("cpu"))
    for skipped, wanted in [(1, 1), (1, 2), (0, 0), (1, 1)]:
        skips.note(torch.tensor(bool(skipped)))
        assert int(skips.in_a_row) == wanted
    assert skips.state() == {"skipped": 3, "skipped_in_a_row": 1}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite(value: float) -> None:
    assert bool(not_finite([torch.tensor(1.0), torch.tensor(value)]))
    assert not bool(not_finite([torch.tensor(1.0), torch.tensor(-3.0)]))


class Chain(nn.Module):
    """Three layers in a row."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)
        self.fault = fault

    def forward(self) -> Tensor:
        value = self.b(self.a(torch.ones(1, 2)))
        if self.fault == "root":  # finite, its derivative at 0 is not
            value = (value * 0).abs().sqrt()
        return self.c(value).sum()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("weight", "first in the output of b, whose weight is not finite"),
        ("unused", "parameter spare itself is not finite"),
        ("root", "first in the gradient of b."),
        ("none", "not again in a second pass"),
    ],
)
def test_the_first_place_is_named(fault: str, says: str) -> None:
    model = Chain(fault)
    model.spare = nn.Parameter(torch.tensor(math.nan if fault == "unused" else 0.0))
    if fault == "weight":
        with torch.no_grad():
            model.b.weight[0, 0] = math.inf
    assert name_first(model, model).startswith(says)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_jump_of_the_loss_is_said_once_until_it_is_back() -> None:
    jumps = Jumps()
    said = [jumps.note(loss) for loss in [9.0, 2.0, 2.1, 2.0, 2.0, 2.0, 3.5, 3.6, 2.0, math.nan, 4.0]]
    assert [line is not None for line in said] == [False] * 6 + [True, False, False, False, True]
    assert said[6] is not None
    assert said[6].startswith("the loss jumped to 3.500, from 2.000 over")
