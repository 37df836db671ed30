"""``bertpt finetune``: one run, or the same with several seeds."""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertpt.config import FinetuneConfig, plain
from bertpt.config.finetune.common import Limits
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.errors import BertptError, RequestError
from bertpt.files import sha256_file, write_json
from bertpt.locks import only_one
from bertpt.progress import say as say_line
from bertpt.tasks.evaluation import TaskEvaluation, evaluate_task_run
from bertpt.tasks.examples import Splits, read_splits
from bertpt.tasks.hub import with_files
from bertpt.tasks.kinds import TASKS, build
from bertpt.tasks.rundir import create_or_resume
from bertpt.tasks.start import Start, shaped, take_encoder
from bertpt.tasks.task import Facts, Task
from bertpt.tasks.work import FineTuning, Parts
from bertpt.train.checkpoints.checkpoint import checkpoints
from bertpt.train.loop import Loop
from bertpt.train.pretrain import choose_device, choose_precision

Say = Callable[[str], None]


def finetune(
    config: FinetuneConfig,
    start: Start,
    *,
    overwrite: bool = False,
    say: Say = say_line,
    progress: bool = True,
) -> TaskEvaluation:
    """Train, or go on with the run of that name, and score its best epoch on dev and test.

    Args:
        config: the configuration.
        start: what ``from`` names (``interop.finetuning`` reads it).
        overwrite: start again where a run of that name is.
        say: gets lines for people.
        progress: show progress on stderr.

    Raises:
        RequestError: files, labels or weights do not fit; nothing was written.
        BertptError: the score that chooses the epoch was never a number.
        Stopped: interrupted after saving.
    """
    config = with_files(config, say)
    device = choose_device(config.train.device)
    precision = choose_precision(config.train.precision, device)
    task = TASKS[config.task]
    network, splits = shaped(start.model, config), read_splits(task, config)
    for split, counts in splits.counts.items():
        if counts:
            say(f"{split}: " + ", ".join(f"{count:,} {task.count_words[name]}" for name, count in counts.items()))
    common = {"task": config.task, "model": plain(network), "vocab_size": len(start.tokens)}
    facts = common | {"max_length": config.train.max_length} | splits.facts
    torch.manual_seed(config.train.seed)
    model = build(facts)
    news = take_encoder(model, start)
    model.to(device)
    parts = _parts(task, config, splits, facts, model, start.open_tokenizer(), precision=precision, say=say)
    directory = Path(config.runs_dir) / config.name
    work = FineTuning(directory, parts, config.train, device)
    if work.total >= 2**31:
        raise RequestError(
            f"train.epochs: {config.train.epochs:,} are {work.total:,} updates; up to {2**31 - 1:,} can be made"
        )
    with contextlib.ExitStack() as held:
        held.enter_context(only_one(directory))
        is_new = overwrite or not directory.exists()
        run = create_or_resume(config, start, _inputs(config, start), facts, overwrite=overwrite)
        if is_new:  # else it is held: opening the lock's file once more would drop it
            held.enter_context(only_one(directory))
        if not checkpoints(run.directory):
            for line in news:
                say(line)
        loop = Loop(run.directory, work, work.loop_settings(), precision=precision, say=say, rate_key="train.lr")
        if loop.finished:
            say(f"{run.directory}: finished ({work.total} updates); nothing to train")
        loop.train(config.task, progress=progress)
        if work.best is None:
            raise BertptError(
                f"{run.directory}: {config.metric} on dev was no number after any epoch, so there is no best one: all"
                f" scores in {config.data.dev} are equal, or all that the model says; a lower train.lr may help"
            )
        return evaluate_task_run(run.directory, say=say)


def _parts(
    task: Task,
    config: FinetuneConfig,
    splits: Splits,
    facts: Facts,
    model: nn.Module,
    tokenizer: WordPieceTokenizer,
    *,
    precision: str,
    say: Say,
) -> Parts:
    examples = splits.examples
    train, dev = (task.encode(examples[split], tokenizer, facts, known=True) for split in ("train", "dev"))
    for split, encoded in (("train", train), ("dev", dev)):
        tokens = f"{len(encoded.rows.ids):,} tokens, {task.fit(encoded, facts)}"
        say(f"{split}: {len(examples[split]):,} {task.unit}, {tokens}")

    def scores(before_batch: Callable[[], None]) -> dict[str, float]:
        predictions = task.predict(model, dev, facts, precision=precision, before_batch=before_batch)
        return task.score(examples["dev"], predictions, facts).scores

    return Parts(
        model=model,
        rows=len(train.rows),
        batch=train.batch,
        objective=task.objective(config, facts, examples["train"]),
        count_terms=task.count_terms,
        loss_weights={"label": 1.0},
        scores=scores,
        metric=config.metric,
        facts=facts,
    )


def _inputs(config: FinetuneConfig, start: Start) -> dict[str, str]:
    return {
        "start": start.fingerprint(),
        "train": sha256_file(Path(config.data.train)),
        "dev": sha256_file(Path(config.data.dev)),
    }


@dataclass(frozen=True, slots=True)
class SeedTable:
    """The scores of runs that differ in their seed alone."""

    name: str
    seeds: list[int]
    evaluations: list[TaskEvaluation]

    def as_dict(self) -> dict[str, Any]:
        """Plain data: for each file and score its ``mean``, ``sd`` (n - 1) and the value of each seed."""
        splits: dict[str, Any] = {}
        for split, first in self.evaluations[0].splits.items():
            splits[split] = {}
            for score in first.scores:
                values = [evaluation.splits[split].scores[score] for evaluation in self.evaluations]
                finite = all(math.isfinite(value) for value in values)
                splits[split][score] = {
                    "mean": statistics.mean(values) if finite else None,
                    "sd": statistics.stdev(values) if finite and len(values) > 1 else None,
                    "values": [value if math.isfinite(value) else None for value in values],
                }
        return {"name": self.name, "seeds": self.seeds, "splits": splits}

    def table(self) -> str:
        """Mean +- standard deviation as lines of text."""
        value = self.as_dict()
        lines = [f"{self.name}: seeds {', '.join(map(str, self.seeds))}; mean +- standard deviation"]
        for split, scores in value["splits"].items():
            for score, found in scores.items():
                mean = "no number" if found["mean"] is None else f"{found['mean']:.4f}"
                spread = "" if found["sd"] is None else f" +- {found['sd']:.4f}"
                each = ", ".join("nan" if each is None else f"{each:.4f}" for each in found["values"])
                lines.append(f"  {split:<5} {score:<9} {mean}{spread}   ({each})")
        return "\n".join(lines)


def finetune_seeds(
    config: FinetuneConfig,
    start: Start,
    seeds: Sequence[int],
    *,
    overwrite: bool = False,
    say: Say = say_line,
    progress: bool = True,
) -> SeedTable:
    """A run ``<name>-seed-<seed>`` for each seed, and ``<name>-seeds.json`` beside them; see :func:`finetune`."""
    found = []
    for seed in seeds:
        changes = {"name": f"{config.name}-seed-{seed}", "train": config.train.model_copy(update={"seed": seed})}
        one = config.model_copy(update=changes)
        say(f"{one.name}:")
        found.append(finetune(one, start, overwrite=overwrite, say=say, progress=progress))
    table = SeedTable(config.name, list(seeds), found)
    write_json(Path(config.runs_dir) / f"{config.name}-seeds.json", table.as_dict())
    return table


def dry_run(config: FinetuneConfig, start: Start, *, say: Say = say_line, progress: bool = True) -> TaskEvaluation:
    """Prove a configuration in seconds: all files are read, one update of eight rows, in a folder that is removed."""
    one = {"epochs": 1, "batch_size": 8, "accumulation": 1, "warmup_ratio": 0.0}
    with tempfile.TemporaryDirectory(prefix="bertpt-dry-run-") as folder:
        changes = {
            "runs_dir": folder,
            "data": config.data.model_copy(update={"limit": Limits(train=8, dev=32)}),
            "train": config.train.model_copy(update=one),
        }
        return finetune(config.model_copy(update=changes), start, say=say, progress=progress)
