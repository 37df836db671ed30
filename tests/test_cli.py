"""The command line: help, exit codes, one-line faults, streams."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import bertpt
import bertpt.config
from bertpt.cli.main import app, run
from bertpt.errors import BertptError, RequestError, Stopped

Capture = pytest.CaptureFixture[str]


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.fixture(autouse=True)
def _no_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTPT_DEBUG", "0")


# --- help -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help_with_an_example(path: tuple[str, ...], option: str, capsys: Capture) -> None:
    assert run([*path, option]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"Usage: {' '.join(('bertpt', *path))} ")
    assert "Example" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_is_explained(path: tuple[str, ...]) -> None:
    for parameter in COMMANDS[path].params:
        assert getattr(parameter, "help", "?"), f"{parameter.name} of {path}"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_example_names_commands_and_options_that_exist(path: tuple[str, ...]) -> None:
    for line in (COMMANDS[path].epilog or "").split("\n"):
        if not line.startswith("  bertpt "):
            continue
        words = line.partition(">")[0].split()[1:]
        called: tuple[str, ...] = ()
        while words and (*called, words[0]) in COMMANDS:
            called += (words.pop(0),)
        assert called[: len(path)] == path or path == ()
        assert called, line
        options = {option for parameter in COMMANDS[called].params for option in parameter.opts}
        assert {word for word in words if re.match("--?[a-z]", word)} <= options, line  # -1 is a value


@pytest.mark.parametrize("arguments", [[], ["config"]])
def test_a_group_without_a_command_prints_its_help(arguments: list[str], capsys: Capture) -> None:
    assert run(arguments) == 0
    assert "Commands:" in capsys.readouterr().out


def test_version_is_that_of_the_package(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"bertpt {bertpt.__version__}\n"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_can_say_more_and_show_its_faults(path: tuple[str, ...]) -> None:
    if not hasattr(COMMANDS[path], "commands"):
        options = {option for parameter in COMMANDS[path].params for option in parameter.opts}
        assert {"--verbose", "-v", "--debug"} <= options


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], "'trian'"),
        (["config", "lst"], "Did you mean 'list'"),
        (["config", "show", "--ste", "a=1"], "--set"),
        (["--nonsense"], "--nonsense"),
        (["config", "show", "a", "b"], "b"),
        (["config", "show", "--set"], "--set"),
        (["config", "show", "bsae"], "did you mean base?"),
        (["config", "show", "--set", "train.sede=1"], "did you mean seed?"),
    ],
)
def test_a_wrong_request_exits_2_with_one_line_on_stderr(arguments: list[str], says: str, capsys: Capture) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err


class PanicException(BaseException):
    """Stands for the panic of a library written in Rust."""


@pytest.mark.parametrize(
    ("fault", "code", "lines"),
    [
        (BertptError("disk full"), 1, ["bertpt: disk full"]),
        (RequestError(["a: wrong", "b: wrong"]), 2, ["bertpt: a: wrong", "bertpt: b: wrong"]),
        (Stopped("saved"), 3, ["bertpt: saved"]),
        (KeyboardInterrupt(), 3, ["bertpt: interrupted; the same command goes on from what was finished"]),
        (typer.Abort(), 1, ["bertpt: aborted"]),
        (ValueError("x\n\ny"), 1, ["bertpt: ValueError: x y (unexpected; the same command with --debug shows where)"]),
        (MemoryError(), 1, ["bertpt: MemoryError: (unexpected; the same command with --debug shows where)"]),
        (
            PanicException("index 3"),
            1,
            ["bertpt: PanicException: index 3 (unexpected; the same command with --debug shows where)"],
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_each_kind_of_fault_has_its_exit_code_and_no_traceback(
    fault: BaseException, code: int, lines: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise fault

    monkeypatch.setattr(bertpt.config, "load_config", broken)
    assert run(["config", "show"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == lines


@pytest.mark.parametrize("arguments", [["--debug", "config", "show"], ["config", "show", "--debug"]])
def test_debug_shows_where(arguments: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ValueError("x")

    monkeypatch.setattr(bertpt.config, "load_config", broken)
    assert run(arguments) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "in broken" in err


# --- streams --------------------------------------------------------------------------------------------------------


def program(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "bertpt", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )


def test_a_reader_that_leaves_early_causes_no_message(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bertpt", "config", "schema"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.wait() == 1
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("command", ["config schema", "config list", "--help"])
def test_the_head_of_any_output_can_be_taken(command: str, tmp_path: Path) -> None:
    line = f"set -o pipefail; {shlex.quote(sys.executable)} -m bertpt {command} | head -n 1"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert done.returncode in (0, 1)  # 1 where it had more to say


def test_a_shell_completes_commands_and_configurations(tmp_path: Path) -> None:
    script = """
    bertpt() { "$PYTHON" -m bertpt "$@"; }
    eval "$(bertpt --show-completion bash)"
    complete -p bertpt
    bertpt_words() { _BERTPT_COMPLETE=complete_bash COMP_WORDS="$1" COMP_CWORD=$2 bertpt; }
    bertpt_words "bertpt conf" 1
    bertpt_words "bertpt config sch" 2
    bertpt_words "bertpt pretrain --config base" 3
    """
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o default -F _bertpt_completion bertpt",
        "config",
        "schema",
        "base-2018",
        "base",
    ]


def test_text_is_utf8_in_a_locale_that_is_not(tmp_path: Path) -> None:
    text = "extends: tiny\ndescription: naïve Größe 語\ncorpus: {sources: [{kind: files, path: Größe}]}\n"
    (tmp_path / "größe.yaml").write_text(text, encoding="utf-8")
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    # The name needs another file system encoding than ASCII only where Python decodes it; bytes go through unharmed.
    (tmp_path / "mine.yaml").write_text("extends: größe.yaml\nname: mine\n", encoding="utf-8")
    done = program("config", "show", "größe.yaml", "--set", "name=x", cwd=tmp_path, **plain)
    assert done.returncode == 0, done.stderr
    assert "naïve Größe 語" in done.stdout.decode("utf-8")
    faulty = program("config", "show", "größe.yaml", "--set", "name=ö", cwd=tmp_path, **plain)
    assert faulty.returncode == 2
    assert faulty.stderr.count(b"\n") == 1
    assert program("config", "list", cwd=tmp_path, **plain).returncode == 0


def test_no_color_is_honoured_even_where_colour_is_forced(tmp_path: Path) -> None:
    for arguments in (["--help"], ["config", "lst"]):
        done = program(*arguments, cwd=tmp_path, NO_COLOR="1", FORCE_COLOR="1")
        assert b"\x1b" not in done.stdout + done.stderr


# --- config ---------------------------------------------------------------------------------------------------------


def test_config_list_names_every_shipped_config_with_size_and_purpose(capsys: Capture) -> None:
    assert run(["config", "list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows.keys() == {"name", *bertpt.config.shipped_configs()}
    assert "12x768" in rows["base"]
    assert "English Wikipedia" in rows["base"]
    assert run(["config", "list", "--json"]) == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == set(rows) - {"name"}


def test_config_show_prints_yaml_that_loads_to_the_same(capsys: Capture, tmp_path: Path) -> None:
    assert run(["config", "show", "tiny", "--set", "train.optimizer.lr=2e-4", "--set", "train.seed=7"]) == 0
    path = tmp_path / "shown.yaml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    expected = bertpt.config.load_config("tiny", ["train.optimizer.lr=2e-4", "train.seed=7"])
    assert bertpt.config.load_config(path) == expected


def test_config_schema_is_a_json_schema_that_knows_the_keys(capsys: Capture) -> None:
    assert run(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["additionalProperties"] is False
    assert "from" in schema["$defs"]["Tokenizer"]["properties"]
    assert schema["$defs"]["Optimizer"]["properties"]["lr"]["exclusiveMinimum"] == 0
