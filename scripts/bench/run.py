"""A whole run beside its plan, and beside its updates alone: what `bertpt plan` misses, and what a loop costs.

In turn: `bertpt plan` (its few updates on this machine), `bertpt pretrain` (loader, log, TensorBoard, progress; by its
own log, which leaves evaluations and saves out), and the updates of that run alone, on the same rows, made before.
The text is generated and goes through all stages before that. Dropout 0.1, length 128, batches of 32 (Base 8), fp32.

Usage: python scripts/bench/run.py [--sizes tiny,mini,small] [--seconds 30] [--turns 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch
from _text import write_text
from prepare import config_of, quiet
from train import SIZES, ours, paired, sizes

from bertpt.batch import Batch
from bertpt.config import Config, plain, validate
from bertpt.data.download import download
from bertpt.data.loader import BatchStream
from bertpt.data.locate import store_dir
from bertpt.data.prepare import prepare
from bertpt.data.store import TokenStore
from bertpt.data.tokenizer import train_tokenizer
from bertpt.train.plan import plan_run
from bertpt.train.pretrain import pretrain

TEXT_BYTES = 4_000_000


def run_config(base: Config, size: str, steps: int) -> Config:
    """The configuration of a run of this size on the corpus of ``base``."""
    layers, width, heads, batch_size, *_ = SIZES[size]
    return validate(
        plain(base)
        | {
            "name": size,
            "model": {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads},
            "train": {"phases": [{"length": 128, "steps": steps, "batch_size": batch_size}], "eval_every": 0},
            "evaluate": {"max_rows": 32},
        }
    )


def batches_of(config: Config) -> list[Batch]:
    """The rows of the run."""
    [phase] = config.train.phases
    stream = BatchStream.create(
        TokenStore.open(store_dir(config)),
        "train",
        pairs=config.pairs,
        masking=config.masking,
        length=phase.length,
        batch_size=phase.batch_size,
        seed=config.train.seed,
    )
    return list(stream.batches(0, phase.steps, 1))


def planned(config: Config) -> float:
    """Seconds of an update by ``bertpt plan``."""
    return plan_run(config, say=quiet, progress=False).phases[0].seconds


def logged(config: Config) -> float:
    """Seconds of an update by the log of a run."""
    run = pretrain(config, overwrite=True, say=quiet, progress=True)
    rows = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text("utf-8").splitlines()]
    before, seconds = 0, 0.0
    for row in (row for row in rows if row["split"] == "train"):
        seconds += (row["step"] - before) * config.train.phases[0].batch_size / row["rows_per_second"]
        before = row["step"]
    shutil.rmtree(run.directory)
    return seconds / config.train.phases[0].steps


def alone(config: Config, batches: list[Batch]) -> float:
    """Seconds of an update with nothing around it."""
    step = ours(config.model, TokenStore.open(store_dir(config)).vocab_size)[1]
    step(batches[0])
    begun = time.perf_counter()
    for batch in batches:
        step(batch)
    return (time.perf_counter() - begun) / len(batches)


def measure(base: Config, size: str, seconds: float, turns: int) -> dict[str, Any]:
    """Medians of one size."""
    steps = max(8, round(seconds / planned(run_config(base, size, 1))))
    config = run_config(base, size, steps)
    batches = batches_of(config)
    found: dict[str, list[float]] = {"plan": [], "run": [], "alone": []}
    for _ in range(turns):
        found["plan"].append(planned(config))
        found["run"].append(logged(config))
        torch.set_flush_denormal(True)  # as in a run
        found["alone"].append(alone(config, batches))
    return {
        "size": size,
        "updates": steps,
        **{f"{name}_ms": 1000 * statistics.median(values) for name, values in found.items()},
        "plan_to_run": statistics.median(paired(found["plan"], found["run"])),
        "plan_to_run_all": paired(found["plan"], found["run"]),
        "around": 1 - statistics.median(paired(found["alone"], found["run"])),
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=sizes, default=["tiny", "mini", "small"], metavar="NAMES")
    parser.add_argument("--seconds", type=float, default=30, help="about how long a run is to take")
    parser.add_argument("--turns", type=int, default=3)
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
        print(f"{'size':8}{'updates':>9}{'ms: plan':>11}{'run':>9}{'alone':>9}{'plan/run':>10}{'around the step':>17}")
        for size in arguments.sizes:
            record = measure(base, size, arguments.seconds, arguments.turns)
            records.append(record)
            print(
                f"{size:8}{record['updates']:>9}{record['plan_ms']:>11.1f}{record['run_ms']:>9.1f}"
                f"{record['alone_ms']:>9.1f}{record['plan_to_run']:>10.2f}{record['around']:>17.1%}",
                flush=True,
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
