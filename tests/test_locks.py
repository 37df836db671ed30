"""Two processes at once, and what a killed one leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertpt.errors import BertptError
from bertpt.files import staged_directory
from bertpt.locks import only_one

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs locks of POSIX")

STAGING = """
import pathlib, sys, time
from bertpt.files import staged_directory
with staged_directory(pathlib.Path("final")) as aside:
    (aside / "a").write_text("theirs")
    print("ready", flush=True)
    time.sleep(60)
"""
WORKING = """
import os, pathlib, time
from bertpt.locks import only_one
with only_one(pathlib.Path("run")):
    if os.fork() == 0:
        time.sleep(5)  # a worker that outlives its parent
        os._exit(0)
    print("ready", flush=True)
    time.sleep(60)
"""
HALF = """
import os, pathlib
from bertpt.files import staged_directory
replace = pathlib.Path.replace
def die(self, target):
    if self.name.endswith(".tmp"):
        os._exit(9)
    return replace(self, target)
pathlib.Path.replace = die
with staged_directory(pathlib.Path("final")) as aside:
    (aside / "a").write_text("new")
"""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@contextmanager
def other(code: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has said it is ready, and is killed in the end."""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=cwd, stdout=subprocess.PIPE, encoding="utf-8")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_folder_that_another_process_makes_is_left_to_it_and_what_it_leaves_when_killed_is_removed(
    tmp_path: Path,
) -> None:
    with other(STAGING, tmp_path) as process:
        says = rf"final: another process \({process.pid}\) is making it"
        with pytest.raises(BertptError, match=says), staged_directory(tmp_path / "final"):
            pass
        assert names(tmp_path) == {f".final.{process.pid}.tmp"}
    assert names(tmp_path) == {f".final.{process.pid}.tmp"}
    with staged_directory(tmp_path / "final") as aside:
        (aside / "a").write_text("ours", encoding="utf-8")
    assert names(tmp_path) == {"final"}
    assert (tmp_path / "final" / "a").read_text(encoding="utf-8") == "ours"


def test_leftovers_of_other_names_and_files_of_others_stay(tmp_path: Path) -> None:
    kept = {".final.tmp", ".final.x.tmp", ".final2.1.tmp", "final.1.tmp", ".final.1.tmp.txt"}
    for name in kept:
        (tmp_path / name).mkdir()
    with staged_directory(tmp_path / "final"):
        pass
    assert names(tmp_path) == kept | {"final"}


def test_a_kill_between_the_old_and_the_new_folder_does_not_cost_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "a").write_text("old", encoding="utf-8")
    assert subprocess.run([sys.executable, "-c", HALF], cwd=tmp_path, check=False).returncode == 9
    assert not (tmp_path / "final").exists()

    def fail() -> None:
        with staged_directory(tmp_path / "final"):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert names(tmp_path) == {"final"}
    assert (tmp_path / "final" / "a").read_text(encoding="utf-8") == "old"


def test_one_process_works_in_a_directory_and_a_killed_one_does_not_keep_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with (
        other(WORKING, tmp_path),
        pytest.raises(BertptError, match="run: another process works here"),
        only_one(run),
    ):
        pass
    with only_one(run):
        pass
