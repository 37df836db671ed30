"""Batches that grow, and a schedule that goes by tokens."""

from __future__ import annotations

import json
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from stop_helpers import StopAt
from train_helpers import Tiny, quiet

from bertpt.config.schema import Phase, Ramp, Schedule
from bertpt.errors import RequestError, Stopped
from bertpt.train import plan
from bertpt.train.checkpoints.checkpoint import checkpoints
from bertpt.train.plan import plan_run
from bertpt.train.pretrain import pretrain
from bertpt.train.updates.cuts import Cuts, check_shares, micro_batches
from bertpt.train.updates.schedule import learning_rate
from bertpt.train.updates.skips import Rates, Skips

UNDROPPED = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
RAMPED = [
    {"length": 32, "steps": 12, "batch_size": 32, "ramp": {"batch_size": 8, "steps": 7}},
    {"length": 48, "steps": 8, "batch_size": 32},
]


def phase(batch_size: int, first: int, steps: int, accumulate: int = 1, total: int = 40) -> Phase:
    ramp = Ramp(batch_size=first, steps=steps)
    return Phase(length=32, steps=total, batch_size=batch_size, accumulate=accumulate, ramp=ramp)


@pytest.mark.parametrize(("batch_size", "first", "steps"), [(32, 8, 7), (32, 8, 30), (32, 8, 1), (8, 4, 3), (64, 2, 5)])
def test_a_batch_grows_in_stages_of_one_length_from_the_first_size_to_the_last(
    batch_size: int, first: int, steps: int
) -> None:
    grown = phase(batch_size, first, steps)
    rows = [grown.rows(step) for step in range(40)]
    assert rows[0] == first
    assert set(rows[steps:]) == {batch_size}
    assert rows[steps - 1] < batch_size
    assert all(a <= b and (b - a) % first == 0 for a, b in pairwise(rows))
    if steps % (batch_size // first - 1) == 0:
        assert {rows[:steps].count(size) for size in set(rows[:steps])} == {steps // (batch_size // first - 1)}
    assert [grown.rows_before(step) for step in range(41)] == [0, *accumulate(rows)]
    plain = Phase(length=32, steps=40, batch_size=batch_size)
    assert [plain.rows_before(step) for step in (0, 1, 40)] == [0, batch_size, 40 * batch_size]


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_row_is_in_one_share_whoever_takes_part(parts: int, size: int) -> None:
    grown = phase(48, 12, 10, parts)
    wanted = list(range(grown.rows_before(40)))
    check_shares("p", grown, size)
    micro = [cut for step in range(40) for cut in micro_batches(grown, step)]
    assert [row for start, count in micro for row in range(start, start + count)] == wanted
    assert max(count for _, count in micro) == 48 // parts
    shares = [list(Cuts(grown, 0, rank, size)) for rank in range(size)]
    dealt = chain.from_iterable(zip(*shares, strict=True))
    assert [row for start, count in dealt for row in range(start, start + count)] == wanted
    later = [list(Cuts(grown, 7, rank, size)) for rank in range(size)]
    assert all(whole[len(whole) - len(part) :] == part for whole, part in zip(shares, later, strict=True))
    assert later[0][0][0] == grown.rows_before(7)


def test_a_ramp_that_cannot_be_dealt_out_is_refused() -> None:
    with pytest.raises(RequestError, match=r"p.ramp.batch_size: 6 rows .* to 4 processes; the nearest that can is 4"):
        check_shares("p", phase(24, 6, 3), 4)


def lines(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    found = (json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines())
    return [line for line in found if line["kind"] == kind]


def test_a_run_with_a_ramp_is_the_same_however_it_is_cut_and_goes_on_within_it(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(name: str, parts: int) -> Any:
        phases = [part | {"accumulate": parts} for part in RAMPED]
        return tiny.config(tmp_path, name=name, model=UNDROPPED, train={"phases": phases})

    whole = pretrain(config("whole", 1), say=quiet).directory
    cut = pretrain(config("cut", 2), say=quiet).directory
    for line, other in zip(lines(whole), lines(cut), strict=True):
        assert line["mlm_loss"] == pytest.approx(other["mlm_loss"], rel=1e-5)
    stop = StopAt(monkeypatch)
    stop.after(4)
    with pytest.raises(Stopped):
        pretrain(config("parts", 1), say=quiet)
    stop.never()
    again = pretrain(config("parts", 1), say=quiet).directory
    weights = [load_file(checkpoints(run)[-1][1] / "model.safetensors") for run in (whole, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert [line["mlm_loss"] for line in lines(whole)] == [line["mlm_loss"] for line in lines(again)]


# --- by tokens ------------------------------------------------------------------------------------------------------


def test_by_tokens_the_rate_falls_with_the_room_that_is_left(tiny: Tiny, tmp_path: Path) -> None:
    schedule = {"over": "tokens", "warmup_steps": None}
    config = tiny.config(tmp_path, train={"phases": RAMPED, "schedule": schedule})
    run = pretrain(config, say=quiet).directory
    room = [phase.length * phase.rows(step) for phase in config.train.phases for step in range(phase.steps)]
    spent = [0, *accumulate(room)]
    wanted = [1e-3 * (1 - before / spent[-1]) for before in spent[:-1]]
    assert [line["lr"] for line in lines(run)] == pytest.approx(wanted)
    assert wanted[1] > 1e-3 * (1 - 1 / 20), "a first update of a quarter of the rows moves the schedule less"


@pytest.mark.parametrize("kind", ["linear", "cosine", "trapezoid", "inverse_sqrt"])
def test_where_all_updates_are_alike_tokens_and_updates_say_the_same(kind: Any) -> None:
    schedule = Schedule(kind=kind, warmup_ratio=0.1, over="tokens")
    rates = Rates(50, schedule, 0.5, torch.device("cpu"), lambda step: step / 50)
    none = Skips.of(torch.device("cpu"))
    assert [rates(step, none) for step in range(50)] == pytest.approx(
        [learning_rate(step, 50, schedule, 0.5) for step in range(50)]
    )
    assert rates.table().tolist() == pytest.approx([float(rates(step, none)) for step in range(50)])


# --- the plan -------------------------------------------------------------------------------------------------------


def test_a_plan_counts_the_rows_of_a_ramp_and_shares_them_among_devices(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SECONDS", 0.0)
    config = tiny.config(tmp_path, train={"phases": RAMPED})
    found = plan_run(config, say=quiet, progress=False)
    first = config.train.phases[0]
    assert found.phases[0].rows == first.rows_before(12) < 12 * 32
    assert "12 updates of up to 32 rows of 32" in found.table()
    one = plan_run(config, gpu="A100", say=quiet)
    assert one.phases[0].hours == pytest.approx(one.phases[0].seconds * first.rows_before(12) / 32 / 3600)
    assert one.sent == 0
    four = plan_run(config, gpu="A100", devices=4, say=quiet)
    assert four.phases[1].micro_batch == 8
    assert four.hours == pytest.approx(one.hours / 4, rel=0.05)  # by the fill of the rows that are looked at
    assert four.sent == 2 * 3 * sum(one.memory.values()) // (4 * 4)
    sharded = tiny.config(tmp_path, train={"phases": RAMPED, "shard_optimizer": True})
    assert plan_run(sharded, gpu="A100", devices=4, say=quiet).memory["optimizer"] == one.memory["optimizer"] // 4
    assert "on 4 x A100" in four.table()
    with pytest.raises(RequestError, match="cannot be dealt out"):
        plan_run(config, gpu="A100", devices=3, say=quiet)
    assert plan_run(sharded, gpu="A100", devices=4, say=quiet).sent == 3 * four.sent // 2
