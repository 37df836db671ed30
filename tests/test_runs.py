"""The table of runs and the comparison of two, over runs that were really trained."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from task_helpers import fit, task_config
from train_helpers import Tiny, quiet

from bertpt.cli.main import run as bertpt
from bertpt.errors import RequestError
from bertpt.locks import is_worked_in
from bertpt.runs import compare_runs, list_runs
from bertpt.train import loop
from bertpt.train.pretrain import pretrain
from bertpt.train.reports.logs import read_metrics

Capture = pytest.CaptureFixture[str]
SHORT = {
    "phases": [{"length": 32, "steps": 6, "batch_size": 8}],
    "schedule": {"warmup_steps": 1},
    "eval_every": 2,
    "save_every": 2,
}


@pytest.fixture(scope="module")
def runs(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, one that was killed after update 3, one with a broken configuration, and one of a task."""
    folder = tmp_path_factory.mktemp("runs")
    fit(task_config(folder))
    runs = folder / "runs"
    pretrain(tiny.config(runs, name="one", train=SHORT), say=quiet)
    pretrain(tiny.config(runs, name="two", train=SHORT | {"optimizer": {"lr": 1e-2}, "eval_every": 3}), say=quiet)
    made, count = loop.train_step, 0

    def killed(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 4:
            raise MemoryError
        return made(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", killed)
        with pytest.raises(MemoryError):
            pretrain(tiny.config(runs, name="cut", train=SHORT), say=quiet)
    shutil.copytree(runs / "cut", runs / "broken")
    (runs / "broken" / "config.yaml").write_text("name: [", encoding="utf-8")
    return runs


def test_a_score_that_one_of_two_runs_lacks_is_a_dash(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    shutil.copytree(runs / "one", tmp_path / "whole")
    shutil.copytree(runs / "one", tmp_path / "part")
    log = tmp_path / "part" / "metrics.jsonl"
    entries = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    for entry in entries:
        entry.pop("nsp_loss", None)
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert bertpt(["runs", "compare", "whole", "part"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  nsp_loss"))
    assert line.split()[2] == "-"


def test_a_run_that_has_more_updates_than_its_configuration_asks_for_is_finished(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "one", tmp_path / "one")
    config = tmp_path / "one" / "config.yaml"
    text = config.read_text(encoding="utf-8")
    assert text.count("steps: 6") == 1
    config.write_text(text.replace("steps: 6", "steps: 4"), encoding="utf-8")
    [row] = list_runs(tmp_path).rows
    assert (row.state, row.step, row.total) == ("finished", 6, 4)


def test_the_table_says_how_far_each_run_has_come(runs: Path) -> None:
    rows = {row.name: row for row in list_runs(runs).rows}
    assert list(rows) == ["broken", "cut", "one", "t", "two"]
    entries = read_metrics(runs / "one" / "metrics.jsonl")
    one = rows["one"]
    assert (one.kind, one.state, one.step, one.total) == ("pretrain", "finished", 6, 6)
    assert one.heldout["mlm_loss"] == [e for e in entries if e["kind"] == "heldout"][-1]["mlm_loss"]
    speeds = [e["tokens_per_second"] for e in entries if e["kind"] == "train"]
    assert one.tokens_per_second == statistics.median(speeds)
    assert (rows["cut"].state, rows["cut"].step, rows["cut"].total) == ("stopped", 3, 6)
    assert (rows["t"].kind, rows["t"].state) == ("classification", "finished")
    assert rows["t"].step == rows["t"].total
    assert "accuracy" in rows["t"].heldout
    assert rows["broken"].state == "damaged"
    assert "config.yaml" in str(rows["broken"].fault)


def test_a_run_is_running_as_long_as_a_process_holds_it(runs: Path) -> None:
    code = "import sys; from pathlib import Path; from bertpt.locks import only_one\n"
    code += "with only_one(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()"
    command = [sys.executable, "-c", code, str(runs / "cut")]
    assert not is_worked_in(runs / "cut")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        states = {row.name: row.state for row in list_runs(runs).rows}
        holder.communicate()
    assert states["cut"] == "running"
    assert states["one"] == "finished"
    assert {row.name: row.state for row in list_runs(runs).rows}["cut"] == "stopped"


def test_what_is_not_whole_is_damaged_and_named(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "one", tmp_path / "r" / "log")
    (tmp_path / "r" / "log" / "metrics.jsonl").write_text("{\n", encoding="utf-8")
    shutil.copytree(runs / "one", tmp_path / "r" / "saved")
    newest = max((tmp_path / "r" / "saved" / "checkpoints").iterdir())
    (newest / "manifest.json").write_text("{", encoding="utf-8")
    rows = {row.name: row for row in list_runs(tmp_path / "r").rows}
    assert rows["log"].state == rows["saved"].state == "damaged"
    assert "metrics.jsonl:1" in str(rows["log"].fault)
    assert newest.name in str(rows["saved"].fault)


def test_a_comparison_shows_what_differs_and_scores_at_common_updates(runs: Path) -> None:
    found = compare_runs(runs / "one", runs / "two")
    assert found.settings == {"train.optimizer.lr": (1e-3, 1e-2), "train.eval_every": (2, 3)}
    scores = [
        {e["step"]: e["mlm_loss"] for e in read_metrics(runs / name / "metrics.jsonl") if e["kind"] == "heldout"}
        for name in ("one", "two")
    ]
    assert (list(scores[0]), list(scores[1])) == ([2, 4, 6], [3, 6])
    assert found.curves["mlm_loss"] == {6: (scores[0][6], scores[1][6])}
    assert found.final["mlm_loss"] == (scores[0][6], scores[1][6])
    with pytest.raises(RequestError, match=r"one is of pretrain, .*t of classification"):
        compare_runs(runs / "one", runs / "t")
    assert compare_runs(runs / "one", runs / "cut").final["mlm_loss"][1] is not None


def test_the_commands_print_tables_and_json(runs: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    assert bertpt(["runs"]) == 0
    plain = capsys.readouterr().out
    assert bertpt(["runs", "list", "runs"]) == bertpt(["runs", "runs"]) == 0
    assert capsys.readouterr().out == plain * 2
    assert plain.splitlines()[0].split() == ["name", "kind", "updates", "state", "held-out", "tokens/s"]
    assert "6 of 6" in plain
    assert bertpt(["runs", "runs", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["broken", "cut", "one", "t", "two"]
    assert bertpt(["runs", "compare", "runs/one", "runs/two"]) == 0
    assert "train.optimizer.lr" in capsys.readouterr().out
    assert bertpt(["runs", "compare", "runs/one", "runs/two", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["train.optimizer.lr"] == [1e-3, 1e-2]
    assert bertpt(["runs", "nowhere"]) == bertpt(["runs", "compare", "runs/one", "nowhere"]) == 2


def test_a_table_of_runs_needs_no_torch(runs: Path) -> None:
    code = f"import sys; from bertpt.cli.main import run; run(['runs', {str(runs)!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
