"""fp16 with a loss scale (on a CPU, where torch computes it as well), and TF32."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from model_helpers import labels, packed, padded_rows, small
from safetensors.torch import load_file
from torch import Tensor
from torch.amp import GradScaler
from train_helpers import MEASURED, Tiny, quiet

from bertpt.batch import Batch
from bertpt.config import validate
from bertpt.errors import BertptError, RequestError, Stopped
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train import loop, pretrain
from bertpt.train.doctor.diagnosis import examine
from bertpt.train.evaluation import evaluate_run
from bertpt.train.pretrain import choose_precision, pretraining_counts, pretraining_objective, scoring_precision
from bertpt.train.updates.step import Totals, train_step

VOCAB = 40
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def batch() -> Batch:
    rows = padded_rows(VOCAB, [7, 9, 4, 12])
    return packed(rows, labels(rows, VOCAB))


def update(
    model: BertForPreTraining, precision: str, scaler: GradScaler | None = None, *, weight: float = 1.0
) -> tuple[bool, Totals]:
    """One update by plain gradient descent at rate 1: weights move by the gradient."""
    totals = Totals.empty()
    skipped = train_step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        [batch(), batch()],
        pretraining_objective,  # type: ignore[arg-type]
        pretraining_counts,
        totals,
        weights={"mlm": weight, "nsp": weight},
        lr=1.0,
        clip=1e9,
        precision=precision,
        scaler=scaler,
    )
    return bool(skipped), totals


def fresh() -> BertForPreTraining:
    torch.manual_seed(0)
    return BertForPreTraining(small(), VOCAB)


def moved(precision: str, scaler: GradScaler | None = None, *, weight: float = 1.0) -> Tensor:
    """The gradient, as one vector."""
    model, start = fresh(), fresh()
    assert not update(model, precision, scaler, weight=weight)[0]
    pairs = zip(start.parameters(), model.parameters(), strict=True)
    return torch.cat([(a - b).detach().flatten() for a, b in pairs])


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


# Rounding of weights that moved by 1e-8 would hide the gradient: fp32 holds 7 digits of them.
@pytest.mark.parametrize("weight", [1.0, 1e-5])
def test_gradients_in_fp16_with_a_scale_are_those_in_fp32(weight: float) -> None:
    wanted = moved("fp32", weight=weight)
    assert apart(moved("fp16", GradScaler("cpu"), weight=weight), wanted) < 0.01
    # Without a scale small ones vanish: this is what it is for.
    assert (apart(moved("fp16", weight=weight), wanted) > 0.02) == (weight < 1)


def test_an_overflow_leaves_the_update_out_and_lowers_the_scale() -> None:
    model, scaler = fresh(), GradScaler("cpu", init_scale=2.0**30)
    before = [parameter.clone() for parameter in model.parameters()]
    skipped, totals = update(model, "fp16", scaler)
    assert skipped
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert scaler.get_scale() == 2.0**29
    assert totals.gradient_norm is not None
    assert not torch.isfinite(totals.gradient_norm)
    made = 0
    while update(model, "fp16", scaler)[0]:
        made += 1
        assert made < 30
    assert scaler.get_scale() == 2.0 ** (29 - made)


def test_clipping_and_the_logged_norm_are_of_the_true_gradient() -> None:
    norms = [update(fresh(), "fp32")[1].gradient_norm, update(fresh(), "fp16", GradScaler("cpu"))[1].gradient_norm]
    assert norms[0] is not None
    assert norms[1] is not None
    assert float(norms[1]) == pytest.approx(float(norms[0]), rel=0.01)


# --- a run ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Runs are in fp16, from a scale that is too high, which tries a higher one after three good updates."""
    monkeypatch.setattr(pretrain, "choose_precision", lambda name, device: "fp16")
    monkeypatch.setattr(loop, "GradScaler", partial(GradScaler, init_scale=2.0**22, growth_interval=3))
    return monkeypatch


def lines(run: Path) -> list[dict[str, Any]]:
    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    entries = [
        {key: value for key, value in json.loads(line).items() if key not in MEASURED} for line in text.split("\n")[:-1]
    ]
    return [entry for entry in entries if entry["kind"] == "train"]


def tensors(run: Path) -> dict[str, Tensor]:
    folder = run / "checkpoints" / "step-00000020"
    return {f"{p.stem}:{n}": t for p in folder.glob("*.safetensors") for n, t in load_file(p).items()}


def test_a_run_goes_on_through_overflows_and_over_a_stop(tiny: Tiny, tmp_path: Path, half: pytest.MonkeyPatch) -> None:
    whole = pretrain.pretrain(tiny.config(tmp_path / "whole"), say=quiet).directory
    log = lines(whole)
    skipped = [entry["skipped"] for entry in log]
    assert 3 <= skipped[-1] <= 14  # at the start, and whenever a higher scale is tried
    assert skipped[5] < skipped[-1]
    # The schedule moves with updates that were made, and with no other.
    by_made: dict[int, float] = {}
    for entry in log:
        made = entry["step"] - entry["skipped"]
        if made and entry["gradient_norm"] is not None:
            assert by_made.setdefault(made, entry["lr"]) == entry["lr"]
    assert list(by_made) == list(range(1, len(by_made) + 1))
    assert list(by_made.values())[:4] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3])  # the warm-up
    scales = [entry["loss_scale"] for entry in log]
    assert set(scales) == {2.0 ** round(torch.tensor(scale).log2().item()) for scale in scales}
    assert max(scales) > scales[-1] or min(scales) < scales[-1]

    made_step, count = loop.train_step, 0

    def stopping(*arguments: Any, **options: Any) -> Tensor:
        nonlocal count
        count += 1
        result = made_step(*arguments, **options)
        if count == 9:
            os.kill(os.getpid(), signal.SIGUSR1)
        return result

    half.setattr(loop, "train_step", stopping)
    with pytest.raises(Stopped, match="after update 9"):
        pretrain.pretrain(tiny.config(tmp_path), say=quiet)
    run = pretrain.pretrain(tiny.config(tmp_path), say=quiet).directory
    assert lines(run) == log
    found, wanted = tensors(run), tensors(whole)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_run_of_nothing_but_overflows_names_the_scale(tiny: Tiny, tmp_path: Path, half: pytest.MonkeyPatch) -> None:
    half.setattr(loop, "GradScaler", partial(GradScaler, init_scale=2.0**60))
    with pytest.raises(BertptError, match=r"10 times in a row \(.*, with losses scaled by 1\.1259e\+15\)"):
        pretrain.pretrain(tiny.config(tmp_path), say=quiet)


# --- where it is allowed --------------------------------------------------------------------------------------------


def test_fp16_on_a_cpu_is_refused_before_anything_is_made(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = tiny.config(tmp_path, train={"precision": "fp16", "device": "auto"})
    with pytest.raises(RequestError, match=r"train\.precision: fp16 needs a CUDA device, this is the CPU; set fp32"):
        pretrain.pretrain(config, say=quiet)
    assert list(tmp_path.iterdir()) == []
    assert choose_precision("fp16", CUDA) == "fp16"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"precision": "fp16"}, "train.precision: fp16 needs a CUDA device, train.device is cpu"),
        ({"tf32": True}, "train.tf32: has no effect with train.device: cpu"),
    ],
)
def test_what_a_cpu_cannot_do_is_an_impossible_combination(
    tiny: Tiny, tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(RequestError, match=says):
        tiny.config(tmp_path, train=settings)
    validate(tiny.plain(tmp_path, train=settings | {"device": "auto"}))


def test_a_model_of_fp16_is_scored_on_a_cpu_in_fp32(tiny: Tiny, tmp_path: Path) -> None:
    assert [scoring_precision(name, CPU) for name in ("fp16", "bf16", "auto")] == ["fp32", "bf16", "fp32"]
    assert scoring_precision("fp16", CUDA) == "fp16"
    one = {"phases": [{"length": 32, "steps": 1, "batch_size": 4}], "schedule": {"warmup_steps": 0}}
    run = pretrain.pretrain(tiny.config(tmp_path, train=one), say=quiet).directory
    scores = evaluate_run(run, say=quiet).scores
    config = (run / "config.yaml").read_text().replace("precision: auto", "precision: fp16")
    (run / "config.yaml").write_text(config.replace("device: cpu", "device: auto"))
    assert "fp16" in config
    assert evaluate_run(run, say=quiet).scores == scores
    assert examine(run).attention.dtype == "float32"  # bertpt doctor looks at it there as well


@pytest.mark.parametrize("wanted", [True, False])
def test_tf32_is_on_while_training_and_as_before_afterwards(
    tiny: Tiny, tmp_path: Path, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    made = loop.train_step

    def looking(*arguments: Any, **options: Any) -> Tensor:
        found.append(torch.backends.cuda.matmul.allow_tf32)
        return made(*arguments, **options)

    monkeypatch.setattr(loop, "train_step", looking)
    one = {"phases": [{"length": 32, "steps": 1, "batch_size": 4}], "schedule": {"warmup_steps": 0}}
    config = tiny.config(tmp_path, train=one | {"tf32": wanted, "device": "auto"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pretrain.pretrain(config, say=quiet)
    assert found == [wanted]
    assert not torch.backends.cuda.matmul.allow_tf32
