"""Whole tiny runs through the real stages: determinism, stop and resume, refusals, logs, evaluation."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from stop_helpers import StopAt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor
from train_helpers import MEASURED, Tiny, quiet, signal_group, start, wait_until, write_config

from bertpt.cli.main import run as bertpt
from bertpt.config import Config
from bertpt.data.locate import finished_store
from bertpt.data.rows.loader import BatchStream
from bertpt.data.rows.plan import plan_epoch
from bertpt.data.tokens.store import TokenStore
from bertpt.errors import RequestError, Stopped
from bertpt.files import MANIFEST
from bertpt.model.pretraining import BertForPreTraining
from bertpt.signals import StopFlag
from bertpt.train import loop
from bertpt.train.checkpoints.checkpoint import checkpoints
from bertpt.train.evaluate import evaluating, heldout_scores, predict_heldout
from bertpt.train.evaluation import evaluate_run
from bertpt.train.pretrain import PreTraining, heldout_stream, pretrain
from bertpt.train.rundir import open_run

TOTAL = 20


def tensors(directory: Path, step: int = TOTAL) -> dict[str, Tensor]:
    """Everything that a checkpoint holds: weights, moments, random state."""
    folder = directory / "checkpoints" / f"step-{step:08d}"
    return {
        f"{path.stem}:{name}": tensor
        for path in folder.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }


def metrics(directory: Path) -> list[dict[str, Any]]:
    """The log of a run, less what measures time."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    return [{key: value for key, value in json.loads(line).items() if key not in MEASURED} for line in lines]


def assert_same_result(one: Path, other: Path) -> None:
    found, wanted = tensors(one), tensors(other)
    assert found.keys() == wanted.keys()
    different = [name for name in wanted if not torch.equal(found[name], wanted[name])]
    assert different == []
    assert metrics(one) == metrics(other)


@pytest.fixture(scope="session")
def uninterrupted(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of 20 updates in two phases, evaluated every 5."""
    runs = tmp_path_factory.mktemp("uninterrupted")
    return pretrain(tiny.config(runs, train={"eval_every": 5}), say=quiet).directory


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> StopAt:
    return StopAt(monkeypatch)


# --- determinism ----------------------------------------------------------------------------------------------------


def test_the_run_is_what_the_tests_below_need(tiny: Tiny, uninterrupted: Path) -> None:
    """Past the second epoch in both phases, dropout on, a cut row here and there."""
    run = open_run(uninterrupted)
    state = json.loads((checkpoints(uninterrupted)[-1][1] / "state.json").read_text(encoding="utf-8"))
    store = TokenStore.open(finished_store(run.config))
    for phase in run.config.train.phases:
        rows = len(plan_epoch(store.train, run.config.pairs, length=phase.length, seed=0, epoch=0))
        assert phase.steps * phase.batch_size > 2.1 * rows, rows
    assert len(state["starts"][-1]) >= 3
    assert run.config.model.hidden_dropout_prob == 0.1
    assert [entry["step"] for entry in metrics(uninterrupted) if entry["kind"] == "train"] == list(range(1, TOTAL + 1))
    assert [entry["step"] for entry in metrics(uninterrupted) if entry["kind"] == "heldout"] == [5, 10, 15, 20]


def test_the_same_configuration_and_seed_give_the_same_run(tiny: Tiny, uninterrupted: Path, tmp_path: Path) -> None:
    again = pretrain(tiny.config(tmp_path, train={"eval_every": 5}), say=quiet).directory
    assert_same_result(again, uninterrupted)


def test_another_seed_gives_another_run_with_the_same_evaluation_rows(
    tiny: Tiny, uninterrupted: Path, tmp_path: Path
) -> None:
    config = tiny.config(tmp_path, train={"seed": 1, "eval_every": 5})
    other = pretrain(config, say=quiet).directory
    assert metrics(other)[0]["mlm_loss"] != metrics(uninterrupted)[0]["mlm_loss"]
    store = TokenStore.open(finished_store(config))
    first, second = (heldout_stream(store, c, 32).rows(0, 8) for c in (config, open_run(uninterrupted).config))
    assert torch.equal(first.input_ids, second.input_ids)


def test_evaluating_more_often_changes_nothing(tiny: Tiny, uninterrupted: Path, tmp_path: Path) -> None:
    rarely = pretrain(tiny.config(tmp_path, train={"eval_every": 1000}), say=quiet).directory
    found, wanted = tensors(rarely), tensors(uninterrupted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert [entry["step"] for entry in metrics(rarely) if entry["kind"] == "heldout"] == [TOTAL]


def test_it_learns(uninterrupted: Path) -> None:
    losses = [entry["mlm_loss"] for entry in metrics(uninterrupted) if entry["kind"] == "heldout"]
    assert losses[-1] < losses[0] < math.log(300) + 0.1


# --- stop and resume ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stops", "workers"),
    [([3, 8], [0, 0, 0]), ([10], [0, 0]), ([12], [0, 0]), ([17], [0, 0]), ([9, 14], [2, 0, 2])],
    ids=["twice", "evaluation due", "end of a phase", "second phase", "two workers"],
)
def test_stop_and_resume_equal_the_uninterrupted_run(
    tiny: Tiny, uninterrupted: Path, tmp_path: Path, stop: StopAt, stops: list[int], workers: list[int]
) -> None:
    done = 0
    for at, number in zip(stops, workers, strict=False):
        stop.after(at - done)
        with pytest.raises(Stopped, match=f"SIGTERM after update {at}; saved .*; the same command goes on"):
            pretrain(tiny.config(tmp_path, train={"eval_every": 5, "workers": number}), say=quiet)
        stop.never()
        assert [step for step, _ in checkpoints(tmp_path / "tiny-run")][-1] == at
        done = at
    config = tiny.config(tmp_path, train={"eval_every": 5, "workers": workers[-1]})
    assert_same_result(pretrain(config, say=quiet).directory, uninterrupted)


@pytest.mark.parametrize(
    ("rule", "masking"),
    [
        ("order", {"unit": "ngram", "dupe_factor": 2}),
        ("none", {"unit": "whole-word", "rate": 0.3, "mask_share": 0.5, "random_share": 0.5}),
    ],
)
def test_every_objective_goes_on_as_if_it_had_not_stopped(
    tiny: Tiny, tmp_path: Path, stop: StopAt, rule: str, masking: dict[str, Any]
) -> None:
    source = {"kind": "files", "path": str(tiny.folder / "text"), "documents": "file", "weight": 1.0}

    def config(runs: str) -> Any:
        return tiny.config(
            tmp_path / runs,
            corpus={"sources": [source]},
            pairs={"rule": rule, "curriculum_epochs": 1},
            masking=masking,
        )

    whole = pretrain(config("whole"), say=quiet).directory
    stop.after(14)
    with pytest.raises(Stopped):
        pretrain(config("parts"), say=quiet)
    stop.never()
    again = pretrain(config("parts"), say=quiet).directory
    assert_same_result(again, whole)
    first = next(line for line in metrics(whole) if "mlm_loss" in line)
    assert ("nsp_loss" in first) == (rule == "order")


@pytest.mark.parametrize("batch", [2, 3 + 2, 3 * 3 + 3], ids=["first", "second", "last"])
def test_a_signal_in_an_evaluation_puts_it_off(
    tiny: Tiny, uninterrupted: Path, tmp_path: Path, stop: StopAt, batch: int
) -> None:
    """40 held-out rows in batches of 16 are three batches an evaluation."""
    step = {2: 5, 5: 10, 12: 20}[batch]
    config = tiny.config(tmp_path, train={"eval_every": 5})
    stop.during_evaluation(batch)
    if batch == 12:  # it came in the last batch of all: nothing is left to put off
        pretrain(config, say=quiet)
    else:
        with pytest.raises(Stopped, match=f"after update {step}; saved"):
            pretrain(config, say=quiet)
        assert [entry["step"] for entry in metrics(tmp_path / "tiny-run")][-1] == step
        assert metrics(tmp_path / "tiny-run")[-1]["kind"] == "train"
    stop.never()
    assert_same_result(pretrain(config, say=quiet).directory, uninterrupted)


def test_an_evaluation_that_was_put_off_and_lost_to_a_kill_stands_once(
    tiny: Tiny, uninterrupted: Path, tmp_path: Path, stop: StopAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start makes it and logs it, and is killed before the checkpoint that would say so."""
    config = tiny.config(tmp_path, train={"eval_every": 5})
    stop.during_evaluation(2)
    with pytest.raises(Stopped):
        pretrain(config, say=quiet)
    stop.never()

    def killed(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_save_and_leave", killed)
        with pytest.raises(MemoryError):
            pretrain(config, say=quiet)
    assert metrics(tmp_path / "tiny-run")[-1]["kind"] == "heldout"
    assert_same_result(pretrain(config, say=quiet).directory, uninterrupted)


def test_a_signal_in_the_last_evaluation_leaves_it_to_the_next_call(
    tiny: Tiny, uninterrupted: Path, tmp_path: Path, stop: StopAt
) -> None:
    config = tiny.config(tmp_path, train={"eval_every": 5})
    stop.during_evaluation(10)
    with pytest.raises(Stopped):
        pretrain(config, say=quiet)
    stop.never()
    assert [step for step, _ in checkpoints(tmp_path / "tiny-run")] == [TOTAL]
    assert_same_result(pretrain(config, say=quiet).directory, uninterrupted)
    half = tmp_path / "tiny-run" / "checkpoints" / ".step-00000003.4194304.tmp"
    half.mkdir()
    said: list[str] = []
    pretrain(config, say=said.append)
    assert "nothing to do" in said[0]
    assert not half.exists()


def test_after_a_kill_it_goes_on_from_the_last_checkpoint_and_logs_no_step_twice(
    tiny: Tiny, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config(tmp_path, train={"eval_every": 5, "save_every": 6})
    made = loop.train_step
    count = 0

    def killed(*arguments: Any, **options: Any) -> Tensor:
        nonlocal count
        count += 1
        if count in (4, 15 + 3):
            raise MemoryError
        return made(*arguments, **options)

    monkeypatch.setattr(loop, "train_step", killed)
    directory = tmp_path / "tiny-run"
    with pytest.raises(MemoryError):
        pretrain(config, say=quiet)
    assert checkpoints(directory) == []
    assert len(metrics(directory)) == 3
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "train", "st')  # cut off while writing
    with pytest.raises(MemoryError):
        pretrain(config, say=quiet)
    assert [step for step, _ in checkpoints(directory)] == [6, 12]
    said: list[str] = []
    pretrain(config, say=said.append)
    assert "going on from" in said[0]
    assert "update 12 of 20" in said[0]
    found, wanted = tensors(directory), tensors(uninterrupted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert metrics(directory) == metrics(uninterrupted)
    for kind in ("train", "heldout"):
        board = EventAccumulator(str(directory / "tb" / kind), size_guidance={"scalars": 0})
        board.Reload()
        entries = [entry for entry in metrics(directory) if entry["kind"] == kind]
        tags = board.Tags()["scalars"]
        lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        logged = next(entry for line in lines if (entry := json.loads(line))["kind"] == kind)
        assert len(tags) == len(logged) - 2  # all but kind and step
        assert {"learning/mlm_loss", "learning/nsp_accuracy"} <= set(tags)
        for found in tags:
            assert [event.step for event in board.Scalars(found)] == [entry["step"] for entry in entries], found
        losses = [event.value for event in board.Scalars("learning/mlm_loss")]
        assert losses == pytest.approx([entry["mlm_loss"] for entry in entries], rel=1e-6)


def test_a_damaged_newest_checkpoint_is_named_and_the_run_goes_on_from_the_one_before(
    tiny: Tiny, uninterrupted: Path, tmp_path: Path, stop: StopAt
) -> None:
    config = tiny.config(tmp_path, train={"eval_every": 5, "save_every": 4})
    stop.after(13)
    with pytest.raises(Stopped):
        pretrain(config, say=quiet)
    stop.never()
    directory = tmp_path / "tiny-run"
    assert [step for step, _ in checkpoints(directory)] == [12, 13]
    broken = checkpoints(directory)[1][1] / "optimizer.safetensors"
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 1
    broken.write_bytes(content)
    said: list[str] = []
    pretrain(config, say=said.append)
    assert str(broken) in said[0]
    assert "update 12 of 20" in said[1]
    assert_same_result(directory, uninterrupted)


@pytest.mark.parametrize(
    ("number", "group", "workers"),
    [
        (signal.SIGTERM, False, 0),
        pytest.param(signal.SIGINT, True, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, True, 2, marks=pytest.mark.slow),
    ],
    ids=["SIGTERM", "SIGINT to the group", "SIGTERM to the group"],
)
def test_a_signalled_process_saves_exits_with_3_and_can_be_resumed(
    tiny: Tiny, tmp_path: Path, number: signal.Signals, group: bool, workers: int
) -> None:
    phases = [{"length": 32, "steps": 100_000, "batch_size": 8, "accumulate": 2}]
    value = tiny.plain(tmp_path, train={"phases": phases, "workers": workers, "save_every": 100_000})
    process = start("pretrain", "--config", write_config(tmp_path / "c.yaml", value))
    log = tmp_path / "tiny-run" / "metrics.jsonl"
    try:
        wait_until(lambda: log.is_file() and log.stat().st_size > 500, process)
        if group:
            signal_group(process, number)
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 3, err
    assert out == ""
    assert "Traceback" not in err
    last = err.rstrip("\n").rpartition("\n")[2]
    assert last.startswith(f"bertpt: stopped by {number.name} after update ")
    step = checkpoints(tmp_path / "tiny-run")[-1][0]
    assert f"after update {step};" in last
    assert metrics(tmp_path / "tiny-run")[-1]["step"] == step

    # What it left is what a run has that was never disturbed up to there.
    quietly = tiny.plain(tmp_path / "quiet", train={"phases": [phases[0]], "save_every": step})
    stopped: list[int] = []

    def stop_there(self: loop.Loop, signal_name: str | None) -> None:
        stopped.append(self.position.step)
        save_and_leave(self, None)
        raise Stopped("enough")

    save_and_leave = loop.Loop._save_and_leave

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "_save_and_leave", stop_there)
        with pytest.raises(Stopped, match="enough"):
            pretrain(Config.model_validate(quietly), say=quiet)
    assert stopped == [step]
    found, wanted = tensors(tmp_path / "tiny-run", step), tensors(tmp_path / "quiet" / "tiny-run", step)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_workers_work_on_through_the_signals_that_ask_the_program_to_stop(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.config(tmp_path)
    store = TokenStore.open(finished_store(config))
    stream = BatchStream.create(
        store, "train", pairs=config.pairs, masking=config.masking, length=32, batch_size=4, seed=0
    )
    before = set(multiprocessing.active_children())
    batches = stream.batches(range(20), workers=1)
    (worker,) = set(multiprocessing.active_children()) - before
    first = next(batches)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        assert worker.pid is not None
        os.kill(worker.pid, number)
    rest = list(batches)
    assert len(rest) == 19
    assert torch.equal(first.input_ids, stream[0].input_ids)
    assert torch.equal(rest[-1].input_ids, stream[19].input_ids)
    worker.join(30)
    assert worker.exitcode == 0


def test_a_second_signal_acts_at_once() -> None:
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(uninterrupted: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, in ``tmp_path``."""
    shutil.copytree(uninterrupted, tmp_path / uninterrupted.name)
    return tmp_path / uninterrupted.name


def states(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(directory.rglob("*"))
    }


def test_a_finished_run_does_no_work(tiny: Tiny, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "train_step", None)
    before = states(finished)
    said: list[str] = []
    pretrain(tiny.config(finished.parent, train={"eval_every": 5}), say=said.append)
    assert said == [f"{finished}: finished (20 updates); nothing to do"]
    assert states(finished) == before


def test_another_configuration_is_refused_listing_each_key_with_both_values(tiny: Tiny, finished: Path) -> None:
    before = states(finished)
    config = tiny.config(
        finished.parent, train={"optimizer": {"lr": 2e-3}, "seed": 3}, masking={"rate": 0.3}, model={"hidden_size": 36}
    )
    with pytest.raises(RequestError) as caught:
        pretrain(config, say=quiet)
    first, *keys = caught.value.faults
    assert "--overwrite" in first
    assert "--set name=" in first
    assert keys == [
        "  masking.rate: 0.15 there, 0.3 now",
        "  model.hidden_size: 32 there, 36 now",
        "  train.optimizer.lr: 0.001 there, 0.002 now",
        "  train.seed: 0 there, 3 now",
    ]
    assert states(finished) == before


def test_what_changes_no_result_may_change_on_a_resume(
    tiny: Tiny, uninterrupted: Path, tmp_path: Path, stop: StopAt
) -> None:
    stop.after(7)
    with pytest.raises(Stopped):
        pretrain(tiny.config(tmp_path, train={"eval_every": 5}), say=quiet)
    stop.never()
    other = {"eval_every": 7, "save_every": 3, "keep": 1, "log_every": 4}
    directory = pretrain(tiny.config(tmp_path, train=other, description="moved"), say=quiet).directory
    found, wanted = tensors(directory), tensors(uninterrupted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert [step for step, _ in checkpoints(directory)] == [TOTAL]


def test_how_updates_are_cut_and_how_many_come_may_change_and_is_said(
    tiny: Tiny, uninterrupted: Path, tmp_path: Path, stop: StopAt
) -> None:
    stop.after(7)
    with pytest.raises(Stopped):
        pretrain(tiny.config(tmp_path), say=quiet)
    stop.never()
    phases = tiny.plain(tmp_path)["train"]["phases"]
    phases = [phases[0] | {"accumulate": 4}, phases[1] | {"accumulate": 1, "steps": 10}]
    said: list[str] = []
    directory = pretrain(tiny.config(tmp_path, train={"phases": phases}), say=said.append).directory
    assert said[:3] == [
        "train.phases.0.accumulate: 2 there, 4 from now on",
        "train.phases.1.accumulate: 2 there, 1 from now on",
        "train.phases.1.steps: 8 there, 10 from now on",
    ]
    assert [step for step, _ in checkpoints(directory)][-1] == 22
    # The same rows: up to the rate, which follows the longer schedule, and dropout.
    there, now = metrics(uninterrupted), metrics(directory)
    there = [entry for entry in there if entry["kind"] == "train"]
    assert [entry["padding_share"] for entry in now if entry["kind"] == "train"][:20] == pytest.approx(
        [entry["padding_share"] for entry in there], abs=0.02
    )
    shorter = [phases[0] | {"steps": 11}, phases[1]]
    with pytest.raises(RequestError) as caught:
        pretrain(tiny.config(tmp_path, train={"phases": shorter}), say=quiet)
    assert caught.value.faults[1:] == ["  train.phases.0.steps: 12 there, 11 now"]


def test_overwrite_starts_again(tiny: Tiny, finished: Path, uninterrupted: Path) -> None:
    (finished / "stale").write_text("x", encoding="utf-8")
    pretrain(tiny.config(finished.parent, train={"eval_every": 5}), overwrite=True, say=quiet)
    assert not (finished / "stale").exists()
    assert_same_result(finished, uninterrupted)


def test_a_directory_that_is_no_run_is_not_touched(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "tiny-run").mkdir()
    (tmp_path / "tiny-run" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(RequestError, match=r"tiny-run: exists and is not a run; set another name"):
        pretrain(tiny.config(tmp_path), say=quiet)
    assert [path.name for path in (tmp_path / "tiny-run").iterdir()] == ["thesis.txt"]


def test_changed_data_under_a_run_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    other = Tiny(tmp_path / "copy")
    shutil.copytree(tiny.folder, other.folder)
    short = {"phases": [{"length": 32, "steps": 2, "batch_size": 4}], "schedule": {"warmup_steps": 0}}
    run = pretrain(other.config(tmp_path, train=short), say=quiet).directory
    (other.folder / "text" / "000.txt").write_text("Entirely new text. And more of it.\n", encoding="utf-8")
    shutil.rmtree(other.folder / "data")
    other.prepare()
    with pytest.raises(RequestError) as caught:
        pretrain(other.config(tmp_path, train=short), say=quiet)
    assert any(line.startswith("  inputs.store: ") for line in caught.value.faults)
    with pytest.raises(RequestError, match="was trained on"):
        evaluate_run(run, say=quiet)


@pytest.mark.parametrize(
    ("missing", "command"),
    [("documents", "download"), ("tokenizer-*", "train-tokenizer"), ("tokens-*", "prepare")],
)
def test_a_missing_stage_names_the_command_that_makes_it(
    tiny: Tiny, tmp_path: Path, missing: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Tiny(tmp_path)
    shutil.copytree(tiny.folder / "data", tmp_path / "data")
    for path in (tmp_path / "data" / "c").glob(missing):
        shutil.rmtree(path)
    config = write_config(tmp_path / "c.yaml", other.plain(tmp_path / "runs"))
    assert bertpt(["pretrain", "--config", str(config)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"`bertpt {command}`" in err
    assert not (tmp_path / "runs").exists()


def test_an_unfinished_store_is_no_store(tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tiny.folder / "data", tmp_path / "data")
    for path in (tmp_path / "data" / "c").glob("tokens-*"):
        (path / MANIFEST).unlink()
    with pytest.raises(RequestError, match="prepare"):
        pretrain(Tiny(tmp_path).config(tmp_path / "runs"), say=quiet)


def test_cuda_without_a_gpu_is_refused_before_anything_is_made(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RequestError, match=r"train\.device: cuda .*; set auto or cpu"):
        pretrain(tiny.config(tmp_path, train={"device": "cuda"}), say=quiet)
    assert list(tmp_path.iterdir()) == []


# --- faults while training ------------------------------------------------------------------------------------------


def test_the_end_of_a_phase_and_of_the_run_are_logged_with_means_over_their_own_updates(
    tiny: Tiny, uninterrupted: Path, tmp_path: Path
) -> None:
    directory = pretrain(tiny.config(tmp_path, train={"log_every": 5}), say=quiet).directory
    entries = [entry for entry in metrics(directory) if entry["kind"] == "train"]
    assert [entry["step"] for entry in entries] == [5, 10, 12, 15, 20]
    each = {entry["step"]: entry for entry in metrics(uninterrupted) if entry["kind"] == "train"}
    begin = 0
    for entry in entries:
        between = [each[step]["nsp_loss"] for step in range(begin + 1, entry["step"] + 1)]  # equally many rows in each
        assert entry["nsp_loss"] == pytest.approx(sum(between) / len(between), abs=1e-6)
        begin = entry["step"]


def test_a_batch_larger_than_the_corpus_still_trains(tiny: Tiny, tmp_path: Path) -> None:
    settings = {"phases": [{"length": 48, "steps": 2, "batch_size": 300}], "schedule": {"warmup_steps": 0}}
    directory = pretrain(tiny.config(tmp_path, train=settings), say=quiet).directory
    assert [step for step, _ in checkpoints(directory)] == [2]


# --- evaluation -----------------------------------------------------------------------------------------------------


def test_eval_takes_the_newest_run_and_writes_strict_json(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    older = finished.parent / "older"
    shutil.copytree(finished, older)
    for path in older.rglob("*"):
        os.utime(path, (1, 1))
    before = states(finished / "checkpoints")
    assert bertpt(["eval", "--runs-dir", str(finished.parent), "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    printed = json.loads(out, parse_constant=refuse)
    written = json.loads((finished / "eval.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert printed == written
    assert written["run"] == str(finished)
    assert written["step"] == TOTAL
    assert states(finished / "checkpoints") == before  # it never trains
    assert not (older / "eval.json").exists()
    last = metrics(finished)[-1]
    for name in ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"):
        assert written["scores"][name] == pytest.approx(last[name], abs=1e-9)

    assert bertpt(["eval", str(older)]) == 0
    table = capsys.readouterr().out
    for word in ("loss (nats)", "corpus unigrams", "counts of the document", "majority label", "source detector"):
        assert word in table


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_eval_without_a_run_says_which_command_makes_one(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert bertpt(["eval", "--runs-dir", str(tmp_path / name)]) == 2
    assert "`bertpt pretrain`" in capsys.readouterr().err
    assert bertpt(["eval", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert str(tmp_path / name) in err


def test_scores_that_cannot_be_said_become_null() -> None:
    from bertpt.train.evaluation import Evaluation

    scores = {"mlm_loss": 800.0, "mlm_perplexity": math.inf, "nsp_balanced_same_source": math.nan}
    value = Evaluation("r", 1, 32, 4, 4, scores, {"unigram_loss": 1.0}).as_dict()
    assert value["scores"] == {"mlm_loss": 800.0, "mlm_perplexity": None, "nsp_balanced_same_source": None}
    json.dumps(value, allow_nan=False)


def test_evaluation_does_not_depend_on_its_batch_size_and_repeats_exactly(tiny: Tiny, uninterrupted: Path) -> None:
    run = open_run(uninterrupted)
    store = TokenStore.open(finished_store(run.config))
    model = BertForPreTraining(run.config.model, store.vocab_size)
    model.load_state_dict(load_file(checkpoints(uninterrupted)[-1][1] / "model.safetensors"))
    model.train()
    found = []
    for size in (1, 7, 64, 64):
        config = run.config.model_copy(update={"evaluate": run.config.evaluate.model_copy(update={"batch_size": size})})
        predictions = predict_heldout(model, heldout_stream(store, config, 48), max_rows=23)
        found.append((heldout_scores(predictions), predictions))
        assert len(predictions.rows) == 23
        assert predictions.predictions_per_row.sum() == len(predictions.labels)
    for scores, predictions in found[1:]:
        assert scores == pytest.approx(found[0][0], abs=1e-6)
        assert (predictions.labels == found[0][1].labels).all()
        assert (predictions.predictions_per_row == found[0][1].predictions_per_row).all()
    assert found[2][0] == found[3][0]
    assert model.training


@pytest.mark.parametrize("mode", [True, False])
def test_an_evaluation_leaves_the_mode_as_it_was_even_when_it_fails(mode: bool) -> None:
    layer = torch.nn.Dropout().train(mode)

    def fail() -> None:
        with evaluating(layer):
            assert not layer.training
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert layer.training == mode


def test_the_training_path_runs_in_a_locale_that_is_not_utf8(tiny: Tiny, tmp_path: Path) -> None:
    settings = {"phases": [{"length": 32, "steps": 1, "batch_size": 4}], "schedule": {"warmup_steps": 0}}
    value = tiny.plain(tmp_path / "runs", train=settings, description="naïve")
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    process = start("pretrain", "--config", write_config(tmp_path / "c.yaml", value), env={**os.environ, **plain})
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "\r" not in err
    assert "naïve" in (tmp_path / "runs" / "tiny-run" / "config.yaml").read_text(encoding="utf-8")
    assert out.rstrip("\n").endswith("tiny-run")


def test_two_phases_of_one_length_see_other_rows_and_masks(tiny: Tiny, tmp_path: Path) -> None:
    phase = {"length": 32, "steps": 2, "batch_size": 16}
    config = tiny.config(tmp_path, train={"phases": [phase, phase], "schedule": {"warmup_steps": 1}})
    run = open_run(pretrain(config, say=quiet).directory)
    store = TokenStore.open(finished_store(config))
    work = PreTraining(run, store, torch.device("cpu"), "fp32")
    first, _, second, _ = (batches[0] for batches in work.updates(0))
    assert not (first.tokens == second.tokens and torch.equal(first.input_ids, second.input_ids))
