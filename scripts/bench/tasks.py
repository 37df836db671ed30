"""Fine-tuned tasks beside the same head of transformers and beside a random encoder; and the speed of both loops.

Usage:
    python scripts/bench/tasks.py                                     the speed; needs no files
    python scripts/bench/tasks.py --encoder DIR --data DIR            the table; finished runs are not done again
        [--tasks sst2,cola] [--variants ours,transformers,random] [--seeds 0,1,2] [--out FILE.json]
    python scripts/bench/tasks.py --table [--out FILE.json]           the table of the runs that are finished

DIR of --encoder is a directory of transformers, of `bertpt import`, or a run. Which examples, how many epochs and what
learning rate each task has stands in _task_budgets.py. One thread, fp32.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _task_budgets import ENTRIES, Entry, Splits
from _task_speed import print_speed
from _transformers_heads import REFERENCES
from _transformers_heads import train as train_reference

from bertpt.config import FinetuneConfig, validate_finetune
from bertpt.errors import BertptError, Stopped
from bertpt.files import read_json, write_json
from bertpt.interop.export_hf import export_hf
from bertpt.interop.finetuning import read_start
from bertpt.tasks.examples import read_splits
from bertpt.tasks.finetune import finetune
from bertpt.tasks.kinds import TASKS

VARIANTS = ("ours", "transformers", "random")
Record = dict[str, Any]


def quiet(_: str) -> None:
    """Say nothing."""


def run_ours(entry: Entry, config: FinetuneConfig) -> Record:
    """One run of bertpt."""
    done = finetune(config, read_start(config, say=quiet), overwrite=True, say=quiet, progress=False)
    shutil.rmtree(Path(config.runs_dir) / config.name)  # weights and checkpoints: 360 MB
    dev, test = (done.splits[split] for split in ("dev", "test"))
    return {
        "epoch": done.epoch,
        "dev": dev.scores,
        "test": test.scores,
        "baseline": test.baseline,
        "oracle": test.details.get("oracle", {}),
        "rows": {split: scores.rows for split, scores in done.splits.items()},
    }


def run_transformers(entry: Entry, config: FinetuneConfig, folder: Path) -> Record:
    """One run of the matching head of transformers."""
    task = TASKS[config.task]
    splits = read_splits(task, config)
    common = {"task": config.task, "max_length": config.train.max_length}

    def score(examples: Sequence[Any], predictions: Any) -> dict[str, float]:
        return task.score(examples, predictions, common | splits.facts).scores

    return train_reference(REFERENCES[config.task], folder, config, common | splits.facts, splits.examples, score)


def as_transformers(encoder: Path, work: Path) -> Path:
    """The encoder as transformers loads it."""
    if (encoder / "config.json").is_file() and "architectures" in read_json(encoder / "config.json"):
        return encoder
    folder = work / f"{encoder.name}-transformers"
    return folder if folder.is_dir() else export_hf(encoder, folder, say=quiet, progress=False).directory


def run(name: str, variant: str, seed: int, encoder: Path, data: Path, work: Path) -> Record:
    """One record: task, variant, seed, its scores, and what it took."""
    entry = ENTRIES[name]
    splits: Splits = entry.split(data, work / "data" / name)
    place = {"from": "random", "like": str(encoder)} if variant == "random" else {"from": str(encoder)}
    config = validate_finetune(entry.plain(splits, f"{name}-{variant}-{seed}", work / "runs", place, seed))
    torch.set_flush_denormal(True)  # a run of bertpt switches it off when it ends
    begun, cpu = time.perf_counter(), time.process_time()
    if variant == "transformers":
        found = run_transformers(entry, config, as_transformers(encoder, work))
    else:
        found = run_ours(entry, config)
    return {
        **key_of(name, variant, seed, encoder),
        "metric": entry.metric,
        **{name: finite(value) for name, value in found.items()},
        "seconds": round(time.perf_counter() - begun, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "torch": torch.__version__,
        "settings": ENTRIES[name].stated(),
    }


def finite(value: Any) -> Any:
    """Scores that are no number (a correlation with a constant) as ``None``, which JSON knows."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def key_of(name: str, variant: str, seed: int, encoder: Path) -> Record:
    """What tells one record from another."""
    return {"encoder": encoder.name, "task": name, "variant": variant, "seed": seed}


def is_of(record: Record, key: Record) -> bool:
    """Whether a record is of this key and of the settings as they are now."""
    stated = json.loads(json.dumps(ENTRIES[key["task"]].stated()))
    return all(record[name] == value for name, value in key.items()) and record["settings"] == stated


def fill(out: Path, names: list[str], variants: list[str], seeds: list[int], encoder: Path, data: Path) -> None:
    """Do what is not done yet; a record is written as soon as it is there."""
    work = out.with_name(f"{out.stem}-work")
    records: list[Record] = read_json(out) if out.is_file() else []
    for seed in seeds:  # seed by seed: what is there when it is stopped is a table of fewer seeds
        for name in names:
            for variant in variants:
                key = key_of(name, variant, seed, encoder)
                if variant == "transformers" and ENTRIES[name].like is not None:
                    continue
                if any(is_of(record, key) for record in records):
                    continue
                try:
                    record = run(name, variant, seed, encoder, data, work)
                except Stopped:
                    raise
                except BertptError as error:  # the others can still be done
                    print(f"{name} {variant} seed {seed}: {error}", flush=True)
                    continue
                kept = [other for other in records if any(other[part] != value for part, value in key.items())]
                records = [*kept, record]
                write_json(out, records)
                score = record["test"][record["metric"]]
                scored = f"{record['metric']} {'no number' if score is None else f'{score:.4f}'}"
                print(f"{name} {variant} seed {seed}: {scored}, epoch {record['epoch']}, {record['seconds']:.0f} s")
                sys.stdout.flush()


# --- the table ------------------------------------------------------------------------------------------------


def mean_sd(values: list[float]) -> str:
    """Mean +- standard deviation (n - 1), in percent."""
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def pooled_error(one: list[float], other: list[float]) -> float | None:
    """Standard error of the difference of two means, of the pooled variance; ``None``: too few values."""
    n, m = len(one), len(other)
    if min(n, m) < 2:
        return None
    variance = ((n - 1) * statistics.variance(one) + (m - 1) * statistics.variance(other)) / (n + m - 2)
    return float((variance * (1 / n + 1 / m)) ** 0.5)


def table(records: list[Record]) -> str:
    """As Markdown, a table for each encoder."""
    return "\n\n".join(
        _table(encoder, [record for record in records if record["encoder"] == encoder])
        for encoder in dict.fromkeys(record["encoder"] for record in records)
    )


def _table(encoder: str, records: list[Record]) -> str:
    lines = [
        f"Encoder: {encoder}",
        "",
        "| task | score | bertpt | transformers | pooled SE | holds | random encoder | without text |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in ENTRIES.items():
        for metric in (entry.metric, *entry.also):
            values = {
                variant: [
                    r["test"][metric]
                    for r in records
                    if r["variant"] == variant and r["task"] == task and r["test"][metric] is not None
                ]
                for variant, task in (("ours", name), ("random", name), ("transformers", entry.like or name))
            }
            if values["ours"]:
                lines.append(_line(entry, metric, values, [r for r in records if r["task"] == name]))
    return "\n".join(lines)


def _line(entry: Entry, metric: str, values: dict[str, list[float]], records: list[Record]) -> str:
    ours, theirs, chance = values["ours"], values["transformers"], values["random"]
    error = pooled_error(ours, theirs) if theirs else None
    baseline, oracle = (
        next((r[part][metric] for r in records if metric in r.get(part, {})), None) for part in ("baseline", "oracle")
    )
    least = baseline if entry.like == "" else None if error is None else statistics.mean(theirs) - error
    beside = mean_sd(theirs) if theirs else "" if oracle is None else f"(oracle {100 * oracle:.1f})"
    cells = [
        entry.what,
        f"{metric} x 100",
        mean_sd(ours),
        beside,
        "" if error is None else f"{100 * error:.1f}",
        "" if least is None else "yes" if statistics.mean(ours) >= least else "NO",
        mean_sd(chance) if chance else "",
        "" if baseline is None else f"{100 * baseline:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tasks", default=",".join(name for name in ENTRIES if not name.endswith("-long")))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-tasks.json"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if arguments.table:
        print(table(read_json(arguments.out)))
        return
    print(f"{platform.platform()}, torch {torch.__version__}, one thread", flush=True)
    if arguments.encoder is None:
        print_speed(arguments.turns)
        return
    names, variants = arguments.tasks.split(","), arguments.variants.split(",")
    if unknown := [n for n in names if n not in ENTRIES] + [v for v in variants if v not in VARIANTS]:
        parser.error(f"unknown: {', '.join(unknown)}; tasks: {', '.join(ENTRIES)}; variants: {', '.join(VARIANTS)}")
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    fill(arguments.out, names, variants, seeds, arguments.encoder, arguments.data)
    print(table(read_json(arguments.out)))


if __name__ == "__main__":
    main()
