"""Accidents of other kinds: two at once, a loader process that dies, a small disk, a clock that jumps."""

from __future__ import annotations

import io
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from train_helpers import Tiny, quiet, start, wait_until, write_config

from bertpt.cli.main import run as program
from bertpt.data.locate import finished_store
from bertpt.data.tokens.prepare import prepare
from bertpt.progress import Progress
from bertpt.train import loop
from bertpt.train.checkpoints.checkpoint import checkpoints
from bertpt.train.pretrain import pretrain

Many = Callable[[int, int], int]
Count = Callable[[str, int], None]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoints(run)[-1][1] / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module")
def undisturbed(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain(tiny.config(tmp_path_factory.mktemp("runs")), say=quiet).directory


# --- two at once ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="needs locks of POSIX")
def test_of_two_first_starts_at_once_one_trains(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, many: Many, count: Count
) -> None:
    for number in range(many(4, 1)):
        runs = tmp_path / str(number)
        config = write_config(tmp_path / "c.yaml", tiny.plain(runs))
        both = [start("pretrain", "--config", config) for _ in range(2)]
        ended = [(process.communicate(timeout=240)[1], process.returncode) for process in both]
        codes = sorted(code for _, code in ended)
        assert codes in ([0, 1], [0, 0]), ended
        for said, code in ended:
            assert "Traceback" not in said
            if code == 1:
                assert "another process" in said
        assert program(["pretrain", "--config", str(config), "--quiet"]) == 0
        assert same(runs / "tiny-run", undisturbed)
        assert [path.name for path in runs.iterdir()] == ["tiny-run"]
        count("pairs of first starts at once", 1)


@pytest.mark.skipif(os.name != "posix", reason="needs locks of POSIX")
def test_two_stages_at_once_do_not_disturb_each_other(tiny: Tiny, tmp_path: Path) -> None:
    """Two preparations of different settings side by side; of the same, one gives way or both agree."""
    shutil.copytree(tiny.folder / "text", tmp_path / "text")
    shutil.copytree(tiny.folder / "data", tmp_path / "data")
    plain = Tiny(tmp_path).plain(tmp_path / "runs")
    config = write_config(tmp_path / "c.yaml", plain)
    one, two, three = (
        start("prepare", "--config", config, "--overwrite", *more)
        for more in ([], [], ["--set", "corpus.sentences=lines"])
    )
    ended = [process.communicate(timeout=240)[1] for process in (one, two, three)]
    assert three.returncode == 0, ended
    assert sorted([one.returncode, two.returncode]) in ([0, 0], [0, 1]), ended
    made = finished_store(Tiny(tmp_path).config(tmp_path / "runs"))
    undisturbed = tiny.folder / "data" / "c" / made.name
    assert (made / "manifest.json").read_bytes() == (undisturbed / "manifest.json").read_bytes()
    assert len(list((tmp_path / "data" / "c").glob("tokens-*"))) == 2
    assert not [path for path in (tmp_path / "data" / "c").iterdir() if path.suffix in (".tmp", ".old")]


# --- processes that die ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_loader_process_that_is_killed_is_one_line_and_the_run_comes_to_the_same_end(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, many: Many, count: Count
) -> None:
    draw = random.Random(0)
    for number in range(many(3, 1)):
        runs = tmp_path / str(number)
        train = {"workers": 1, "save_every": 1, "keep": 2}
        config = write_config(tmp_path / "c.yaml", tiny.plain(runs, train=train))
        process = start("pretrain", "--config", config)
        try:
            wait_until(lambda: bool(checkpoints(runs / "tiny-run")), process, 240)  # noqa: B023
            time.sleep(draw.random() / 2)
            workers = loaders(process.pid)
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            _, said = process.communicate(timeout=240)
        finally:
            process.kill()
        if process.returncode == 0:  # it had all that it needed
            continue
        assert process.returncode == 1, said
        assert "Traceback" not in said
        last = said.rstrip("\n").rpartition("\n")[2]
        assert last.startswith("bertpt: a loader process has died"), said
        # The advice that the line gives.
        assert program(["pretrain", "--config", str(config), "--quiet", "--set", "train.workers=0"]) == 0
        assert same(runs / "tiny-run", undisturbed)
        count("loader processes killed", len(workers))


def loaders(parent: int) -> list[int]:
    """Processes that torch's loader has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                line = (entry / "cmdline").read_text(encoding="utf-8")
            except OSError:
                continue
            if int(stat[1]) == parent and "spawn_main" in line:
                found.append(int(entry.name))
    return found


# --- disks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of 3 MiB, where one may be made."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system")
def test_a_disk_that_fills_while_training_is_one_line_that_says_what_is_needed(
    tiny: Tiny, undisturbed: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = tiny.plain(small_disk, train={"save_every": 2, "keep": 50})
    config = str(write_config(small_disk.parent / "c.yaml", value))
    assert program(["pretrain", "--config", config, "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "MiB" in line
    assert "a checkpoint needs" in line or "cannot write" in line
    kept = checkpoints(small_disk / "tiny-run")
    assert kept
    for _, path in kept[:-1]:  # make room
        shutil.rmtree(path)
    assert program(["pretrain", "--config", config, "--quiet", "--set", "train.keep=1"]) == 0
    assert same(small_disk / "tiny-run", undisturbed)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system")
def test_a_read_only_disk_is_one_line(tiny: Tiny, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(tiny.folder / "text", small_disk / "text")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    config = str(write_config(small_disk.parent / "c.yaml", Tiny(small_disk).plain(small_disk / "runs")))
    assert program(["download", "--config", config, "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "Read-only file system" in line
    config = str(write_config(small_disk.parent / "c.yaml", tiny.plain(small_disk / "runs")))
    assert program(["pretrain", "--config", config, "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "tiny-run: cannot write: Read-only file system" in line


# --- a clock that jumps ---------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_nothing(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, days = time.time, itertools.cycle([0, 86400, -86400 * 400, 3])
    monkeypatch.setattr(time, "time", lambda: now() + next(days))
    made = loop.train_step
    count = 0

    def stopped(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return made(*arguments, **options)

    monkeypatch.setattr(loop, "train_step", stopped)
    with pytest.raises(Exception, match="stopped by SIGTERM after update 7"):
        pretrain(tiny.config(tmp_path), say=quiet)
    run = pretrain(tiny.config(tmp_path), say=quiet).directory
    assert same(run, undisturbed)
    stream = io.StringIO()
    with Progress("x", total=10, stream=stream) as progress:
        for _ in range(10):
            progress.add()
    assert "-" not in stream.getvalue()
    assert prepare(tiny.config(tmp_path), say=quiet, progress=False).skipped
