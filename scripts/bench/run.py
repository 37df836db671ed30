"""A whole run beside its plan, and what it spends beside its updates: what `bertpt plan` misses, and what a loop costs.

In turn: `bertpt plan` (its few updates on this machine), and `bertpt pretrain` (by its own log, without evaluations and
saves). "Around the step" is the share of a run's time, evaluations and saves left out, that is not spent in the step:
loader, log, TensorBoard, progress. One line is logged every --log-every updates.
The text is generated and goes through all stages before that. Dropout 0.1, length 128, batches of 32 (Base 8), fp32.

Usage: python scripts/bench/run.py [--sizes tiny mini small] [--seconds 30] [--turns 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from _text import write_text
from prepare import config_of, quiet
from train import SIZES, paired

from bertpt.config import Config, plain, validate
from bertpt.data.corpus.download import download
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokens.prepare import prepare
from bertpt.train import loop
from bertpt.train.plan import plan_run
from bertpt.train.pretrain import pretrain

TEXT_BYTES = 4_000_000


def run_config(base: Config, size: str, steps: int, log_every: int) -> Config:
    """The configuration of a run of this size on the corpus of ``base``."""
    layers, width, heads, batch_size, *_ = SIZES[size]
    return validate(
        plain(base)
        | {
            "name": size,
            "model": {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads},
            "train": {
                "phases": [{"length": 128, "steps": steps, "batch_size": batch_size}],
                "eval_every": 0,
                "log_every": log_every,
            },
            "evaluate": {"max_rows": 32},
        }
    )


def planned(config: Config) -> float:
    """Seconds of an update by ``bertpt plan``."""
    return plan_run(config, say=quiet, progress=False).phases[0].seconds


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Add up the seconds of a loop by what they went to: ``step`` is all of ``train_step`` and nothing else."""

    def counted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - begun

        return counting

    with (
        mock.patch.object(loop, "train_step", counted("step", loop.train_step)),
        mock.patch.object(loop.Loop, "_train", counted("all", loop.Loop._train)),
        mock.patch.object(loop.Loop, "_evaluate", counted("evaluate", loop.Loop._evaluate)),
        mock.patch.object(loop.Loop, "_save_and_leave", counted("save", loop.Loop._save_and_leave)),
    ):
        yield


def logged(config: Config) -> tuple[float, float]:
    """Of a run: seconds of an update by its log; share of loader, log and the rest in what updates take."""
    spent: dict[str, float] = {}
    with timed(spent):
        run = pretrain(config, overwrite=True, say=quiet, progress=True)
    rows = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text("utf-8").splitlines()]
    before, seconds = 0, 0.0
    for row in (row for row in rows if row["kind"] == "train"):
        seconds += (row["step"] - before) * config.train.phases[0].batch_size / row["rows_per_second"]
        before = row["step"]
    shutil.rmtree(run.directory)
    updates = spent["all"] - spent["evaluate"] - spent["save"]
    return seconds / config.train.phases[0].steps, 1 - spent["step"] / updates


def measure(base: Config, size: str, seconds: float, turns: int, log_every: int) -> dict[str, Any]:
    """Medians of one size."""
    steps = max(8, round(seconds / planned(run_config(base, size, 1, log_every))))
    config = run_config(base, size, steps, log_every)
    plans, runs, around = [], [], []
    for _ in range(turns):
        plans.append(planned(config))
        run, share = logged(config)
        runs.append(run)
        around.append(share)
    return {
        "size": size,
        "updates": steps,
        "plan_ms": 1000 * statistics.median(plans),
        "run_ms": 1000 * statistics.median(runs),
        "plan_to_run": statistics.median(paired(plans, runs)),
        "plan_to_run_each": paired(plans, runs),
        "around": statistics.median(around),
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "mini", "small"])
    parser.add_argument("--seconds", type=float, default=30, help="about how long a run is to take")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one record per size")
    arguments = parser.parse_args()
    print(f"{platform.platform()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    records = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_text(folder / "run.txt", TEXT_BYTES)
        base = validate(plain(config_of(folder, "run")) | {"runs_dir": str(folder / "runs")})
        for stage in (download, train_tokenizer, prepare):
            cast(Any, stage)(base, say=quiet, progress=False)
        print(f"{'size':8}{'updates':>9}{'ms: plan':>11}{'run':>9}{'plan/run':>10}{'around the step':>17}")
        for size in arguments.sizes:
            record = measure(base, size, arguments.seconds, arguments.turns, arguments.log_every)
            records.append(record)
            print(
                f"{size:8}{record['updates']:>9}{record['plan_ms']:>11.1f}{record['run_ms']:>9.1f}"
                f"{record['plan_to_run']:>10.2f}{record['around']:>17.1%}",
                flush=True,
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
