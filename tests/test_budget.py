"""Runs on a budget of time, by a clock that the test moves."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from train_helpers import Tiny, quiet

from bertpt.config import load_config, validate
from bertpt.config.schema import Schedule
from bertpt.errors import RequestError, Stopped
from bertpt.runs import list_runs
from bertpt.train import loop
from bertpt.train.checkpoints.checkpoint import checkpoints
from bertpt.train.plan import plan_run
from bertpt.train.pretrain import PreTraining, pretrain
from bertpt.train.updates import budget
from bertpt.train.updates.budget import Budget, Clock
from bertpt.train.updates.schedule import learning_rate, rate_at

PEAK = 1e-3
KINDS = ["linear", "cosine", "polynomial", "trapezoid", "inverse_sqrt", "constant"]


class Time:
    """A clock: each update takes 10 seconds, each evaluation 25."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.now, self.count, self.stop = monkeypatch, 1000.0, 0, 0
        made, evaluated = loop.train_step, PreTraining.evaluate

        def update(*arguments: Any, **options: Any) -> Tensor:
            skipped = made(*arguments, **options)
            self.now += 10
            self.count += 1
            if self.count == self.stop:
                os.kill(os.getpid(), signal.SIGUSR1)
            return skipped

        def evaluation(*arguments: Any) -> dict[str, float]:
            self.now += 25
            return evaluated(*arguments)

        monkeypatch.setattr(budget, "now", lambda: self.now)
        monkeypatch.setattr(loop, "train_step", update)
        monkeypatch.setattr(PreTraining, "evaluate", evaluation)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def lines(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [entry for entry in entries if entry["kind"] == kind]


def settings(time: str = "95s", **more: Any) -> dict[str, Any]:
    phases = [{"length": 32, "steps": 1000, "batch_size": 8}]
    return {"phases": phases, "budget": time, "schedule": {"warmup_steps": None, "warmup_ratio": 0.2}} | more


def test_the_rate_falls_to_zero_over_the_time_and_the_update_that_passes_it_is_the_last(
    tiny: Tiny, tmp_path: Path, time: Time
) -> None:
    run = pretrain(tiny.config(tmp_path, train=settings()), say=quiet).directory
    log = lines(run)
    assert [entry["step"] for entry in log] == list(range(1, 11))  # the tenth began at 90 s and ended at 100 s
    assert [entry["budget_share"] for entry in log] == pytest.approx([10 * n / 95 for n in range(1, 11)])
    begun = [10 * n / 95 for n in range(10)]  # share of the time when each update began
    wanted = [PEAK * ((share * 1000 + 1) / 200 if share < 0.2 else (1 - share) / 0.8) for share in begun]
    assert [entry["lr"] for entry in log] == pytest.approx(wanted)
    assert [step for step, _ in checkpoints(run)] == [10]
    assert [entry["step"] for entry in lines(run, "heldout")] == [10]  # evaluated at its end
    assert [row.state for row in list_runs(tmp_path).rows] == ["finished"]
    said: list[str] = []
    again = pretrain(tiny.config(tmp_path, train=settings()), say=said.append).directory
    assert lines(again) == log
    assert "nothing to do" in said[-1]


def test_a_stopped_run_goes_on_where_its_clock_stood(tiny: Tiny, tmp_path: Path, time: Time) -> None:
    whole = pretrain(tiny.config(tmp_path / "whole", train=settings()), say=quiet).directory
    time.count, time.stop = 0, 4
    with pytest.raises(Stopped, match="after update 4"):
        pretrain(tiny.config(tmp_path, train=settings()), say=quiet)
    assert [row.state for row in list_runs(tmp_path).rows if row.name != "whole"] == ["stopped"]
    time.now += 1e6  # nobody trained
    run = pretrain(tiny.config(tmp_path, train=settings()), say=quiet).directory
    assert [entry["lr"] for entry in lines(run)] == [entry["lr"] for entry in lines(whole)]
    assert [entry["mlm_loss"] for entry in lines(run)] == [entry["mlm_loss"] for entry in lines(whole)]


def test_evaluations_take_their_time(tiny: Tiny, tmp_path: Path, time: Time) -> None:
    run = pretrain(tiny.config(tmp_path, train=settings(eval_every=3)), say=quiet).directory
    # 30 s, 25 s, then updates end at 65, 75, 85 and (after an evaluation, to 110) 120 s.
    assert [entry["step"] for entry in lines(run)] == [1, 2, 3, 4, 5, 6, 7]
    assert lines(run)[-1]["lr"] == 0.0  # began after the end


def test_a_longer_budget_goes_on_with_a_finished_run(tiny: Tiny, tmp_path: Path, time: Time) -> None:
    pretrain(tiny.config(tmp_path, train=settings()), say=quiet)
    said: list[str] = []
    run = pretrain(tiny.config(tmp_path, train=settings("200s")), say=said.append).directory
    assert said[0] == "train.budget: '95s' there, '200s' from now on"
    log = lines(run)
    assert log[-1]["step"] > 10
    assert log[10]["lr"] == pytest.approx(PEAK * (1 - 125 / 200) / 0.8)  # ten updates and an evaluation before it
    assert log[-1]["budget_share"] >= 1 > log[-2]["budget_share"]


def test_steps_stay_the_most_and_the_rate_falls_with_them_where_they_end_first(
    tiny: Tiny, tmp_path: Path, time: Time
) -> None:
    train = settings("1h", phases=[{"length": 32, "steps": 6, "batch_size": 8}])
    train["schedule"]["warmup_ratio"] = 0.0
    run = pretrain(tiny.config(tmp_path, train=train), say=quiet).directory
    wanted = [learning_rate(update, 6, Schedule(), PEAK) for update in range(6)]
    assert [entry["lr"] for entry in lines(run)] == pytest.approx(wanted)


# --- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_between_updates_the_rate_lies_between_theirs_and_decays_end_at_zero(kind: str) -> None:
    schedule = Schedule(kind=kind, warmup_ratio=0.1)  # type: ignore[arg-type]
    for update in range(100):
        assert rate_at(update / 100, 100, schedule, PEAK) == pytest.approx(learning_rate(update, 100, schedule, PEAK))
    rates = [rate_at(share / 1000, 100, schedule, PEAK) for share in range(1201)]
    assert max(rates) <= PEAK
    assert all(one >= other for one, other in pairwise(rates[100:]))
    ends = {"inverse_sqrt": PEAK * 0.1**0.5, "constant": PEAK}.get(kind, 0.0)
    assert rates[1000] == rates[1200] == pytest.approx(ends, abs=1e-12)


def test_the_greater_share_counts() -> None:
    budget = Budget(100.0, 10, lambda step: step / 10)
    assert budget.share(3, 20.0) == 0.3
    assert budget.share(3, 50.0) == 0.5


def test_a_clock_goes_on_from_what_was_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "now", lambda: 50.0)
    clock = Clock(7.0)
    monkeypatch.setattr(budget, "now", lambda: 53.5)
    assert clock() == 10.5


@pytest.mark.parametrize("text", ["24", "24 hours", "0s", "", "1h1d"])
def test_what_is_no_time_is_refused(tiny: Tiny, tmp_path: Path, text: str) -> None:
    with pytest.raises(RequestError, match=r"train\.budget: a time such as 3h50m, 90m or 2d12h is expected, not"):
        tiny.config(tmp_path, train=settings(text))


def test_days_and_hours_are_read() -> None:
    assert load_config("base", ["train.budget=1d2h30m"]).train.budget_seconds == 95_400


def test_a_warm_up_in_updates_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"warmup_steps: with train\.budget the warm-up is a share of the time"):
        validate(tiny.plain(tmp_path, train={"budget": "1h"}))


def test_a_plan_knows_the_budget(tmp_path: Path) -> None:
    plans = [
        plan_run(load_config("base", [f"data_dir={tmp_path}", *more]), gpu="H100") for more in ([], ["train.budget=2h"])
    ]
    assert plans[0].hours > 2
    assert plans[1].hours == 2
