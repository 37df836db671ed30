"""The numbers of speed and memory that a run logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_helpers import Tiny, quiet

from bertpt.data.locate import finished_store
from bertpt.data.tokens.store import TokenStore
from bertpt.train.cost import training_flops
from bertpt.train.pretrain import PreTraining, pretrain
from bertpt.train.reports import speed
from bertpt.train.reports.speed import Waits, peak_speed, speed_numbers
from bertpt.train.rundir import opened_alone
from bertpt.train.updates.step import Totals

CPU = torch.device("cpu")


class Clock:
    """Seconds that pass only when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_the_time_until_an_item_comes_is_waiting() -> None:
    clock = Clock()

    def items() -> Iterator[str]:
        for name, seconds in (("a", 2.0), ("b", 3.0)):
            clock.now += seconds
            yield name
        clock.now += 0.5  # until it is known that no more come

    waits = Waits(seconds=10.0)  # of a checkpoint
    found = []
    for item in waits.over(items(), clock):
        found.append((item, waits.seconds))
        clock.now += 100.0  # the update
    assert found == [("a", 12.0), ("b", 15.0)]
    assert waits.seconds == 15.5


def test_a_fault_of_the_loader_comes_through() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(Waits().over(items()))


def test_the_numbers_are_those_of_a_computation_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = Totals({}, {}, {}, rows=30, tokens=3000, grid=4000)
    monkeypatch.setattr(speed, "peak_speed", lambda _: 100e12)
    monkeypatch.setattr(speed, "peak_memory", lambda: 3 << 29)
    assert speed_numbers(totals, 6e14, 3.0, 0.75, CPU, devices=4) == {
        "tokens_per_second": 1000.0,
        "rows_per_second": 10.0,
        "padding_share": 0.25,
        "data_wait_share": 0.25,
        "tflops_per_second": 200.0,
        "mfu": 0.5,
        "peak_memory_gib": 1.5,
    }
    monkeypatch.undo()
    monkeypatch.setattr(speed, "peak_memory", lambda: None)  # a system that does not tell
    assert not {"mfu", "peak_memory_gib"} & speed_numbers(totals, 6e14, 3.0, 0.75, CPU).keys()


@pytest.mark.parametrize(("name", "wanted"), [("NVIDIA H200", 989e12), ("NVIDIA Quadro P400", None)])
def test_a_share_of_the_speed_is_said_of_known_gpus_alone(
    name: str, wanted: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_speed(torch.device("cuda")) == wanted
    assert peak_speed(CPU) is None


@pytest.mark.parametrize("cut", [1, 2])
def test_a_run_logs_them(tiny: Tiny, tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertpt.train.reports.speed.peak_speed", lambda _: 1e15)
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("bertpt.train.loop.Progress.add", lambda bar, count=1, **values: shown.append(values))
    phases = [{"length": 32, "steps": 4, "batch_size": 8, "accumulate": cut}]
    config = tiny.config(tmp_path, train={"phases": phases, "log_every": 2, "schedule": {"warmup_steps": 0}})
    run = pretrain(config, say=quiet).directory
    first, second, _ = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in (first, second):
        assert 0 < line["data_wait_share"] < 1
        assert line["peak_memory_gib"] > 0.1  # torch alone takes as much
        assert line["mfu"] == pytest.approx(line["tflops_per_second"] / 1e3)
    board = EventAccumulator(str(run / "tb" / "train"), size_guidance={"scalars": 0})
    board.Reload()
    for name in ("data_wait_share", "tflops_per_second", "mfu", "peak_memory_gib"):
        found = [event.value for event in board.Scalars(f"speed/{name}")]
        assert found == pytest.approx([first[name], second[name]], rel=1e-6)
    assert [line["MFU"] for line in shown if line] == [f"{line['mfu']:.1%}" for line in (first, second)]


def test_operations_are_those_of_the_batches_of_the_updates(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.config(tmp_path, train={"log_every": 100})
    store = TokenStore.open(finished_store(config))
    with opened_alone(config, {}, finished_store(config), overwrite=False, say=quiet) as run:
        work = PreTraining(run, store, CPU, "fp32")
        totals, wanted = Totals({}, {}, {"mlm": 0, "nsp": 0}), 0.0
        for _, batches in zip(range(3), work.updates(0), strict=False):
            for batch in batches:
                totals.counts["mlm"] += batch.predictions
                totals.rows += batch.rows
                totals.tokens += batch.tokens
                wanted += training_flops(
                    config.model,
                    store.vocab_size,
                    rows=batch.rows,
                    tokens=batch.tokens,
                    predictions=batch.predictions,
                    pairs=True,
                )
    # Attention is reckoned at the mean length of all rows together: a little less.
    assert work.flops(totals) == pytest.approx(wanted, rel=0.01)
