"""Every configuration that comes with bertpt passes its dry run: the whole path, at its full shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertpt.cli.main import run
from bertpt.config import load_config, shipped_configs

LARGE = {name for name in shipped_configs() if load_config(name).model.hidden_size > 256}


@pytest.mark.parametrize(
    "name",
    # The larger ones take up to minutes and gigabytes.
    [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in shipped_configs()],
)
def test_its_dry_run_passes_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["run", "--config", name, "--dry-run", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: dry run passed")
    assert not list(tmp_path.iterdir())
