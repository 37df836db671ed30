"""A tiny corpus and configurations that train on it in a second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bertpt.config import Config, validate
from bertpt.data.corpus.download import download
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokens.prepare import prepare

# What a log line says of this machine, and so never twice the same.
MEASURED = {
    "tokens_per_second",
    "rows_per_second",
    "data_wait_share",
    "tflops_per_second",
    "mfu",
    "peak_memory_gib",
    "budget_share",
}


def quiet(_: str) -> None:
    """Say nothing."""


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Deep merge of mappings."""
    return base | {
        key: merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in over.items()
    }


@dataclass(frozen=True)
class Tiny:
    """The folder of a tiny corpus: ``text/`` and ``data/``."""

    folder: Path

    def plain(self, runs: Path, **sections: Any) -> dict[str, Any]:
        """A configuration as plain data: one layer, 32 wide, two phases of different length, past two epochs."""
        value: dict[str, Any] = {
            "name": "tiny-run",
            "data_dir": str(self.folder / "data"),
            "runs_dir": str(runs),
            "corpus": {
                "name": "c",
                "sources": [{"kind": "files", "path": str(self.folder / "text"), "documents": "file"}],
                "heldout": {"share": 0.25},
            },
            "tokenizer": {"vocab_size": 300},
            "model": {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "max_position_embeddings": 48,
            },
            "train": {
                "phases": [
                    {"length": 32, "steps": 12, "batch_size": 32, "accumulate": 2},
                    {"length": 48, "steps": 8, "batch_size": 32, "accumulate": 2},
                ],
                "optimizer": {"lr": 1e-3},
                "schedule": {"warmup_steps": 4},
                "device": "cpu",
                "log_every": 1,
                "eval_every": 0,
                "save_every": 1000,
            },
            "evaluate": {"max_rows": 40, "batch_size": 16},
        }
        return merged(value, sections)

    def config(self, runs: Path, **sections: Any) -> Config:
        """:meth:`plain`, checked."""
        return validate(self.plain(runs, **sections))

    def prepare(self) -> None:
        """Run the data stages."""
        config = self.config(self.folder / "runs")
        download(config, say=quiet, progress=False)
        train_tokenizer(config, say=quiet, progress=False)
        prepare(config, say=quiet, progress=False)


def write_config(path: Path, value: dict[str, Any]) -> Path:
    """Plain data as a YAML file."""
    path.write_text(yaml.safe_dump(value), encoding="utf-8")
    return path


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """A ``bertpt`` process of its own process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "bertpt", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,
        **options,
    )


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 60) -> None:
    """Wait for ``condition`` while the process runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal as a terminal or a batch system does: to the program and all processes it started."""
    os.killpg(process.pid, number)
