"""scripts/gpu_check.sh, rehearsed without a GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "gpu_check.sh"


def check(*arguments: str | Path, script: Path = SCRIPT, python: str | Path = sys.executable) -> Any:
    return subprocess.run(
        ["bash", script, *arguments],
        env=os.environ | {"PYTHON": str(python), "PYTHONWARNINGS": ""},
        capture_output=True,
        text=True,
        timeout=900,
    )


def rehearse(report: Path, *arguments: str) -> tuple[Any, dict[str, Any]]:
    done = check("--device", "cpu", "--small", "--json", report, *arguments)
    assert report.is_file(), done.stderr
    return done, json.loads(report.read_text(encoding="utf-8"))["sections"]


def test_a_section_on_the_cpu_ends_well(tmp_path: Path) -> None:
    done, sections = rehearse(tmp_path / "report.json", "--sections", "resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sections["resume"]["ok"]
    [record] = sections["resume"]["records"]
    assert record["equal_bits"]  # on a CPU
    assert "all sections are ok" in done.stdout


@pytest.mark.slow
def test_a_rehearsal_ends_well(tmp_path: Path) -> None:
    done, sections = rehearse(tmp_path / "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(sections) == 8
    for name in ("base-128", "base-512", "large-128", "large-512"):
        plain, compiled = sections[name]["records"]
        assert plain["rows_per_s"] > 0
        assert compiled["graphs"] > 0
    assert sections["transformers"]["records"][0]["ratio"] > 0


@pytest.mark.slow
def test_a_section_that_is_ended_takes_no_other_with_it(tmp_path: Path) -> None:
    # Two seconds are enough for no section: both are ended, both are told.
    done, sections = rehearse(tmp_path / "report.json", "--sections", "equality,resume", "--minutes", "0.01")
    assert done.returncode == 1
    assert [section["error"] for section in sections.values()] == ["was ended after 1 s"] * 2
    assert "failed: equality, resume" in done.stdout


# --- the wheels beside it -------------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path) -> tuple[Path, Path]:
    """The script in a folder of its own, with a check that shows what it can import; a Python without pydantic."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    (tmp_path / "scripts" / "gpu_check.py").write_text("import marker, sys\nprint(marker.WORD, sys.argv[1:])\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$2" = "import pydantic" ] && exit 1\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return tmp_path / "scripts" / SCRIPT.name, python


def test_without_pydantic_and_wheels_the_line_that_gets_them_is_said(bare: tuple[Path, Path]) -> None:
    done = check(script=bare[0], python=bare[1])
    assert done.returncode == 2
    assert done.stdout == ""
    pins = dict(re.findall(r"([a-z-]+)==(\S+)", done.stderr))
    assert pins.keys() == {"pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection"}
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(f"{name}=={version}" in constraints for name, version in pins.items())
    assert f"--python-version {sys.version_info[0]}.{sys.version_info[1]} " in done.stderr


def test_wheels_are_used_without_being_installed(bare: tuple[Path, Path]) -> None:
    wheels = bare[0].parent / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "marker-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("marker.py", "WORD = 'found'\n")
    done = check("--small", script=bare[0], python=bare[1])
    assert (done.returncode, done.stdout) == (0, "found ['--small']\n"), done.stderr
    assert sorted(path.name for path in bare[0].parent.iterdir()) == ["gpu_check.py", "gpu_check.sh", "wheels"]
