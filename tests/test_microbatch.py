"""``accumulate: auto``: the search for the largest micro-batch, with a memory that the test makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_helpers import small
from safetensors.torch import load_file
from torch import nn
from train_helpers import Tiny, quiet

from bertpt.batch import Batch
from bertpt.config import Config, as_yaml, plain, validate
from bertpt.config.yaml import parse_yaml
from bertpt.errors import BertptError, RequestError
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train.pretrain import pretrain, pretraining_objective
from bertpt.train.ranks import ALONE
from bertpt.train.updates import microbatch
from bertpt.train.updates.microbatch import fewest_parts, passes, random_rows, with_micro_batches
from bertpt.train.updates.step import Terms

AUTO = [{"length": 32, "steps": 5, "batch_size": 24, "accumulate": "auto"}]


@pytest.mark.parametrize(
    ("rows", "room", "wanted", "asked"),
    [
        (24, 24, 1, [24]),
        (24, 9, 4, [24, 12, 6]),
        (24, 1, 24, [24, 12, 6, 3, 1]),
        (24, 0, None, [24, 12, 6, 3, 1]),
        (27, 5, 9, [27, 9, 3]),
        (7, 3, 7, [7, 1]),
        (1, 1, 1, [1]),
    ],
)
def test_parts_are_halved_until_they_fit(rows: int, room: int, wanted: int | None, asked: list[int]) -> None:
    tried: list[int] = []

    def fits(count: int) -> bool:
        tried.append(count)
        return count <= room

    assert fewest_parts(rows, fits) == wanted
    assert tried == asked


def test_a_try_leaves_no_trace() -> None:
    torch.manual_seed(3)
    model = BertForPreTraining(small(hidden_dropout_prob=0.1), 40)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = torch.get_rng_state()
    seen: list[tuple[int, bool]] = []

    def objective(model: nn.Module, batch: Batch) -> Terms:
        seen.append((batch.rows, model.cls.predictions.bias.grad is not None))  # type: ignore[union-attr]
        if batch.rows > 2:
            raise torch.OutOfMemoryError("no room")
        return pretraining_objective(model, batch)  # type: ignore[arg-type]

    assert not passes(model, objective, random_rows(3, 8, 40, rate=0.15, pairs=True), "fp32")
    assert passes(model, objective, random_rows(2, 8, 40, rate=0.15, pairs=True), "fp32")
    assert seen == [(3, False), (2, False), (2, True)]  # of two micro-batches the second needs more
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_rows_of_a_try_are_full() -> None:
    batch = random_rows(3, 8, 40, rate=0.15, pairs=True)
    assert batch.is_full
    assert (batch.rows, batch.tokens, batch.predictions) == (3, 24, 3)
    assert random_rows(3, 8, 40, rate=0.15, pairs=False).next_sentence_label is None


class Gpu:
    """Looks like a device with room for so many rows."""

    type = "cuda"


def chosen(config: Config, monkeypatch: pytest.MonkeyPatch, room: int) -> tuple[Config, list[str]]:
    said: list[str] = []
    monkeypatch.setattr(microbatch, "BertForPreTraining", lambda *_, **__: BertForPreTraining(small(), 300))
    monkeypatch.setattr(microbatch, "passes", lambda model, objective, batch, precision: batch.rows <= room)
    monkeypatch.setattr(torch, "device", lambda device: torch.random.fork_rng(devices=[]))
    monkeypatch.setattr(microbatch.gc, "collect", lambda: 0)  # takes long among so many modules
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    found = with_micro_batches(config, 300, pretraining_objective, Gpu(), "fp32", ALONE, said.append)  # type: ignore[arg-type]
    return found, said


def test_each_phase_gets_its_own(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phases: list[dict[str, Any]] = [*AUTO, {"length": 32, "steps": 4, "batch_size": 8, "accumulate": 2}]
    config = tiny.config(tmp_path, train={"phases": phases})
    found, said = chosen(config, monkeypatch, 7)
    assert [phase.accumulate for phase in found.train.phases] == [4, 2]
    assert said == ["train.phases.0.accumulate: auto: 4 x 6 rows"]
    with pytest.raises(BertptError, match=r"accumulate: auto: the memory of a GPU does not hold one row of 32"):
        chosen(config, monkeypatch, 0)


def test_on_a_cpu_it_is_one_and_the_run_keeps_the_word(tiny: Tiny, tmp_path: Path) -> None:
    runs = []
    for name, accumulate in (("auto", "auto"), ("one", 1)):
        train = {"phases": [AUTO[0] | {"accumulate": accumulate}], "schedule": {"warmup_steps": 0}}
        runs.append(pretrain(tiny.config(tmp_path, name=name, train=train), say=quiet).directory)
    weights = [load_file(run / "checkpoints" / "step-00000005" / "model.safetensors") for run in runs]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    kept = parse_yaml((runs[0] / "config.yaml").read_text(), "config.yaml")
    assert isinstance(kept, dict)
    assert kept["train"]["phases"][0]["accumulate"] == "auto"


def test_the_word_and_numbers_are_read_and_written(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.config(tmp_path, train={"phases": AUTO})
    assert config.train.phases[0].parts == 1
    assert plain(config)["train"]["phases"][0]["accumulate"] == "auto"
    assert validate(parse_yaml(as_yaml(config), "x")) == config  # type: ignore[arg-type]
    json.dumps(plain(config))


@pytest.mark.parametrize("value", [0, True, "some", 1.5, -1])
def test_anything_else_is_refused(tiny: Tiny, tmp_path: Path, value: object) -> None:
    with pytest.raises(RequestError, match=r"train\.phases\.0\.accumulate: "):
        tiny.config(tmp_path, train={"phases": [AUTO[0] | {"accumulate": value}]})
