"""Signals and the time limit in every phase: exit 3 with one line, nothing half-made, and the same command goes on."""

from __future__ import annotations

import gc
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from task_helpers import encoder, plain_task
from train_helpers import Tiny, start, wait_until, write_config

from bertpt import signals
from bertpt.cli import main
from bertpt.cli.main import run as program
from bertpt.data.tokenizer import training as tokenizer
from bertpt.errors import BertptError, RequestError
from bertpt.progress import Progress
from bertpt.train.checkpoints.checkpoint import checkpoints

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
Capture = pytest.CaptureFixture[str]

SHORT = {"phases": [{"length": 32, "steps": 3, "batch_size": 8}], "schedule": {"warmup_steps": 1}}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """No handler stays behind."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM]
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def leftovers(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob(".*") if path.suffix in (".tmp", ".old")]


def strike(monkeypatch: pytest.MonkeyPatch, place: str, number: int, call: int = 1) -> None:
    """Send a signal to this process in the ``call``-th call of a function, named by module and path."""
    owner, _, name = place.rpartition(".")
    found: Any = pkgutil.resolve_name(owner)
    made, count = getattr(found, name), 0

    def struck(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            os.kill(os.getpid(), number)
        return made(*arguments, **options)

    monkeypatch.setattr(found, name, struck)


# --- every stage ----------------------------------------------------------------------------------------------------

STAGES = {
    "download": "bertpt.data.corpus.documents.DocumentWriter.add",
    "train-tokenizer": "bertpt.data.tokenizer.training.learn_vocabulary",
    "prepare": "bertpt.data.tokens.parts.Encoder.encode",
}


@pytest.fixture
def corpus(tiny: Tiny, tmp_path: Path) -> Tiny:
    shutil.copytree(tiny.folder / "text", tmp_path / "text")
    return Tiny(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda n: n.name)
@pytest.mark.parametrize("command", ["download", "train-tokenizer", "prepare", "run"])
def test_a_signal_in_a_data_stage_leaves_nothing_half_made(
    tiny: Tiny, corpus: Tiny, command: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    config = str(write_config(corpus.folder / "c.yaml", corpus.plain(corpus.folder / "runs", train=SHORT)))
    data = corpus.folder / "data" / "c"
    stage = "prepare" if command == "run" else command
    for before in list(STAGES)[: 0 if command == "run" else list(STAGES).index(stage)]:
        assert program([before, "--config", config]) == 0
    capsys.readouterr()
    there = {path.name for path in data.glob("*")}
    with monkeypatch.context() as patch:
        strike(patch, STAGES[stage], number)
        assert program([command, "--config", config, "--quiet"]) == 3
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"bertpt: stopped by {number.name}; the same command goes on from what was finished\n")
    assert leftovers(corpus.folder) == []
    if command != "run":
        assert {path.name for path in data.glob("*")} == there
    assert program([command, "--config", config, "--quiet"]) == 0
    for made in data.iterdir():  # the same as where nothing came between
        assert (made / "manifest.json").read_bytes() == (
            tiny.folder / "data" / "c" / made.name / "manifest.json"
        ).read_bytes()


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("eval", "bertpt.data.rows.loader.gather"),
        ("export", "bertpt.interop.export_hf.write_tensors"),
        ("run", "bertpt.train.evaluation.compare"),
        ("fill-mask", "bertpt.predict.fill_mask.Predictor.open"),
    ],
)
def test_a_signal_after_the_training_loses_nothing(
    corpus: Tiny, tiny: Tiny, command: str, place: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    shutil.copytree(tiny.folder / "data", corpus.folder / "data")
    config = str(write_config(corpus.folder / "c.yaml", corpus.plain(corpus.folder / "runs", train=SHORT)))
    run = str(corpus.folder / "runs" / "tiny-run")
    assert program(["pretrain", "--config", config, "--quiet"]) == 0
    arguments = {
        "eval": ["eval", run, "--quiet"],
        "export": ["export", "hf", run, str(corpus.folder / "out"), "--quiet"],
        "run": ["run", "--config", config, "--quiet"],
        "fill-mask": ["predict", "fill-mask", "the [MASK]", "--model", run],
    }[command]
    capsys.readouterr()
    with monkeypatch.context() as patch:
        strike(patch, place, signal.SIGTERM)
        assert program(arguments) == 3
    assert "stopped by SIGTERM; the same command goes on" in capsys.readouterr().err
    assert leftovers(corpus.folder) == []
    assert not (corpus.folder / "out").exists()
    assert program(arguments) == 0


def test_a_signal_while_fine_tuning_saves_and_in_its_scores_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    encoder(tmp_path)
    config = str(write_config(tmp_path / "c.yaml", plain_task(tmp_path)))
    with monkeypatch.context() as patch:
        strike(patch, "bertpt.train.loop.train_step", signal.SIGUSR1, call=7)
        assert program(["finetune", "classification", "--config", config, "--quiet"]) == 3
    assert "stopped by SIGUSR1 after update 7; saved" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        strike(patch, "bertpt.tasks.evaluation.open_best", signal.SIGTERM)
        assert program(["finetune", "classification", "--config", config, "--quiet"]) == 3
    assert leftovers(tmp_path) == []
    assert program(["finetune", "classification", "--config", config, "--quiet"]) == 0


# --- the parts ------------------------------------------------------------------------------------------------------


def hold_and_go_on(done: list[str]) -> None:
    with signals.answered():
        with signals.held():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("held")
        done.append("gone on")


def test_what_is_held_ends_first() -> None:
    done: list[str] = []
    with pytest.raises(signals.Interrupted, match="SIGTERM"):
        hold_and_go_on(done)
    assert done == ["held"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_is_lost_in_a_finaliser_is_raised_by_the_next_unit() -> None:
    class Fragile:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)

    with signals.answered(), Progress("x", shown=False) as progress:
        one = Fragile()
        del one
        gc.collect()
        with pytest.raises(signals.Interrupted, match="SIGTERM"):
            progress.add()


@pytest.mark.parametrize("error", [ValueError("no shape"), RequestError("weights.bin: damaged"), None], ids=repr)
def test_a_signal_that_a_library_makes_another_fault_of_is_a_wish_to_stop(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``torch.tensor`` of a storage passes over what is raised while it asks for the shape, and raises its own."""

    def work(**_: Any) -> None:
        try:
            if error is not None:
                signal.raise_signal(signal.SIGTERM)
        finally:
            raise error or ValueError("of its own")

    monkeypatch.setattr("bertpt.cli.main.app", work)
    assert program(["import"]) == (3 if error else 1)
    said = capsys.readouterr().err
    assert ("stopped by SIGTERM; the same command goes on" in said) == (error is not None)


def test_a_signal_that_comes_when_a_fault_has_been_said_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A launcher asks all processes of a training to stop when one has died, which the others have met already."""

    def fail(**_: Any) -> None:
        raise BertptError("another process has ended")

    def report(error: BaseException) -> int:
        code = real(error)
        signal.raise_signal(signal.SIGTERM)
        return code

    real = main._report
    monkeypatch.setattr(main, "app", fail)
    monkeypatch.setattr(main, "_report", report)
    assert program(["pretrain"]) == 1
    assert capsys.readouterr().err == "bertpt: another process has ended\n"


def test_later_signals_are_passed_over_but_another_ctrl_c_is_not() -> None:
    with signals.StopFlag() as stop:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        assert stop.requested == "SIGUSR1"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_who_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.requested is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.requested == "SIGTERM"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


AT_ONCE = """
import hashlib, sys
from bertpt import signals
with signals.second_at_once(), signals.answered():
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 10**9)  # minutes, in which no Python code runs
"""
FORKED = """
import os, signal, sys, time
from bertpt import signals
with signals.second_at_once(), signals.answered(), signals.StopFlag() as stop:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, lambda *a: None)
        os.kill(os.getpid(), signal.SIGINT)
        os._exit(0)
    os.waitpid(child, 0)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    print(stop.requested)
"""


def test_a_second_ctrl_c_ends_the_process_while_a_library_works() -> None:
    with subprocess.Popen([sys.executable, "-c", AT_ONCE], stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # it is in the library by now
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT


def test_what_a_forked_process_gets_is_not_counted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, encoding="utf-8", check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "SIGINT\n"), done.stderr


# --- the time limit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("3h50m", 13800), ("90m", 5400), ("2d12h", 216000), ("45s", 45), ("1d2h3m4s", 93784)]
)
def test_a_duration_is_read(text: str, seconds: int) -> None:
    assert signals.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "3", "h", "0m", "3.5h", "50m3h", "-1h", "3h 50m x", "9999999999s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestError, match=r"--stop-after: .*a time such as 3h50m"):
        signals.seconds_of(text)


@pytest.mark.parametrize("command", ["pretrain", "run", "finetune classification"])
def test_a_wrong_time_limit_is_one_line_before_any_work(command: str, tmp_path: Path, capsys: Capture) -> None:
    encoder(tmp_path)
    value = plain_task(tmp_path) if "finetune" in command else Tiny(tmp_path).plain(tmp_path / "runs")
    config = str(write_config(tmp_path / "c.yaml", value))
    capsys.readouterr()
    assert program([*command.split(), "--config", config, "--stop-after", "soon"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert not (tmp_path / "runs").exists()


def test_the_time_limit_saves_and_ends_with_3(tiny: Tiny, tmp_path: Path, capsys: Capture) -> None:
    phases = [{"length": 32, "steps": 100_000, "batch_size": 8}]
    value = tiny.plain(tmp_path, train={"phases": phases, "save_every": 100_000})
    config = str(write_config(tmp_path / "c.yaml", value))
    begun = time.monotonic()
    assert program(["pretrain", "--config", config, "--stop-after", "3s", "--quiet"]) == 3
    assert time.monotonic() - begun >= 3
    ((step, path),) = checkpoints(tmp_path / "tiny-run")
    wanted = f"bertpt: stopped by --stop-after after update {step}; saved {path}; the same command goes on\n"
    assert capsys.readouterr().err == wanted


def test_the_time_limit_in_a_data_stage_of_run(corpus: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    config = str(write_config(corpus.folder / "c.yaml", corpus.plain(corpus.folder / "runs", train=SHORT)))
    monkeypatch.setattr(tokenizer, "learn_vocabulary", lambda *arguments: time.sleep(30))
    assert program(["run", "--config", config, "--quiet", "--stop-after", "2s"]) == 3
    assert capsys.readouterr().err == (
        "bertpt: stopped by --stop-after; the same command goes on from what was finished\n"
    )
    assert [path.name for path in (corpus.folder / "data" / "c").iterdir()] == ["documents"]


def test_a_run_that_is_asked_to_stop_does_not_wait_for_the_next_update_longer_than_it_takes(
    tiny: Tiny, tmp_path: Path
) -> None:
    """From the signal to the end of the process: one update, the copy, the write."""
    phases = [{"length": 32, "steps": 100_000, "batch_size": 8}]
    config = write_config(tmp_path / "c.yaml", tiny.plain(tmp_path, train={"phases": phases, "save_every": 100_000}))
    process = start("pretrain", "--config", config)
    log = tmp_path / "tiny-run" / "metrics.jsonl"
    try:
        wait_until(lambda: log.is_file() and log.stat().st_size > 500, process)
        for _ in range(3):  # as wrappers and batch systems do
            process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 3, err
    assert checkpoints(tmp_path / "tiny-run")
