"""The bare commands in an empty folder: each finds its configuration and names what makes what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertpt.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["pretrain", "--config", "base.yaml"], ["bertpt download", "GB", "train-tokenizer", "bertpt prepare"]),
        (["train-tokenizer"], ["bertpt download", "GB", "bertpt run"]),
        (["prepare", "--config", "demo"], ["bertpt download", "28 MB + 10 MB"]),
        (["eval"], ["bertpt pretrain", "bertpt run"]),
        (["predict", "fill-mask", "a [MASK]"], ["bertpt pretrain", "bertpt run"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_a_missing_stage_names_the_commands_that_make_it(
    arguments: list[str],
    named: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(part in said for part in named), said
    assert not list(tmp_path.iterdir())
