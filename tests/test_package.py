"""The package as it is installed: what the wheel holds, where configs are found, what importing costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ["torch", "datasets", "transformers", "tokenizers", "pyarrow", "numpy", "pydantic", "rich", "tensorboard"]


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_every_module_and_config(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    configs = {f"bertpt/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "configs").rglob("*.yaml")}
    assert "bertpt/data/tokens/store.py" in modules
    assert "bertpt/configs/corpora/wikipedia.yaml" in configs
    assert modules | configs | {"bertpt/py.typed"} <= inside
    assert not [
        name for name in inside if name.split("/")[0] not in ("bertpt", wheel.name.split("-py3")[0] + ".dist-info")
    ]


def test_the_installed_wheel_finds_its_configs_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    python(*pip, "--target", str(site), str(wheel), cwd=tmp_path)
    code = "import bertpt, bertpt.config as c; print(bertpt.__file__); print(c.find_config('base.yaml'))"
    for line in python("-c", code, cwd=empty, PYTHONPATH=str(site)).stdout.splitlines():
        assert Path(line).is_relative_to(site)
    shown = python("-m", "bertpt", "config", "show", "base.yaml", cwd=empty, PYTHONPATH=str(site)).stdout
    assert "hidden_size: 768" in shown
    assert list(empty.iterdir()) == []


def test_an_editable_install_finds_the_configs_of_the_checkout(tmp_path: Path) -> None:
    code = "import bertpt.config as c, json; print(json.dumps([str(p) for p in c.shipped_configs().values()]))"
    found = json.loads(python("-c", code, cwd=tmp_path).stdout)
    assert sorted(found) == sorted(str(path) for path in (ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize(
    "code", ["import bertpt", "import bertpt.cli.main", "from bertpt.cli.main import run; run(['--help'])"]
)
def test_importing_bertpt_and_help_load_nothing_heavy(code: str, tmp_path: Path) -> None:
    loaded = f"{code}; import sys; print('LOADED', *(set({HEAVY}) & set(sys.modules)))"
    assert python("-c", loaded, cwd=tmp_path).stdout.splitlines()[-1] == "LOADED"


def test_help_answers_within_half_a_second(tmp_path: Path) -> None:
    def once() -> float:
        before = os.times()
        python("-m", "bertpt", "--help", cwd=tmp_path)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    # Processor time, the best of several: how long it takes where nothing else runs, whatever else runs here.
    assert min(once() for _ in range(3)) < 0.5


def test_every_dependency_is_pinned_within_the_stated_bounds() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text("utf-8").split("\n")]
    pins = dict(line.split("==") for line in lines if line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        requirement = Requirement(text)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier
    assert pins["torch"] == "2.13.0"


def test_the_tests_run_with_the_pinned_versions() -> None:
    from importlib.metadata import version

    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text("utf-8").split("\n")]
    pins = dict(line.split("==") for line in lines if line)
    for name in ("torch", "tokenizers", "datasets", "pydantic", "typer", "pyarrow"):
        assert version(name).partition("+")[0] == pins[name]
