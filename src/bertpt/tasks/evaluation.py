"""Scores of a fine-tuned run's best epoch on its dev and test files, beside what needs no text."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from bertpt.data.tokenizer.wordpiece import load_tokenizer
from bertpt.errors import RequestError
from bertpt.files import sha256_file, write_file, write_json
from bertpt.progress import say as say_line
from bertpt.tasks.examples import read_known
from bertpt.tasks.kinds import TASKS, build
from bertpt.tasks.rundir import TaskRun, open_task_run
from bertpt.tasks.task import Facts, Task
from bertpt.train.checkpoints.checkpoint import Checkpoint, open_weights, restore
from bertpt.train.pretrain import choose_device, scoring_precision
from bertpt.train.rundir import BEST

EVALUATION = "eval.json"


@dataclass(frozen=True, slots=True)
class SplitScores:
    """Scores on one file.

    Attributes:
        rows: examples; cut: those that do not fit a row.
        scores: by name.
        baseline: of the same names, what a rule scores that does not look at the text.
        details: of the task, e.g. a ``confusion`` matrix.
    """

    rows: int
    cut: int
    scores: dict[str, float]
    baseline: dict[str, float]
    details: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain data; details stand beside the scores, and NaN becomes ``None``."""
        scores = {name: value if math.isfinite(value) else None for name, value in self.scores.items()}
        return {"rows": self.rows, "cut": self.cut, "scores": scores, "baseline": self.baseline, **self.details}


@dataclass(frozen=True, slots=True)
class TaskEvaluation:
    """What a run's best epoch scores.

    Attributes:
        run: its directory; task: its kind.
        metric: by which the epoch was chosen, on dev alone.
        epoch: from 1; step: updates up to it.
        facts: of the run.
        splits: dev, and test where there is one.
    """

    run: str
    task: str
    metric: str
    epoch: int
    step: int
    facts: Facts
    splits: dict[str, SplitScores]

    def as_dict(self) -> dict[str, Any]:
        """Plain data; of the facts the labels alone."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del own["facts"]
        labels = {"labels": self.facts["labels"]} if "labels" in self.facts else {}
        return own | labels | {"splits": {split: scores.as_dict() for split, scores in self.splits.items()}}

    def table(self) -> str:
        """The figures as lines of text."""
        return "\n".join(_lines(self))


def open_best(run: TaskRun) -> tuple[nn.Module, Checkpoint]:
    """The model of the best epoch, on the CPU, and the checkpoint, whose state holds the run's facts.

    Raises:
        RequestError: no epoch has been scored yet, or the files are damaged.
    """
    directory = run.directory / BEST
    again = "`bertpt finetune` with --overwrite trains it again"
    if not directory.is_dir() and (run.directory / EVALUATION).is_file():
        raise RequestError(f"{directory}: the weights of the best epoch are gone; {again}")
    if not directory.is_dir():
        raise RequestError(f"{run.directory}: no epoch has been scored yet; `bertpt finetune` goes on with it")
    try:
        checkpoint = open_weights(directory)
    except RequestError as error:
        raise RequestError(f"{str(error).partition('; remove')[0]}; {again}") from error
    model = build(checkpoint.state)
    restore(checkpoint, model)
    return model, checkpoint


def evaluate_task_run(
    directory: Path, *, max_rows: int | None = None, say: Callable[[str], None] = say_line
) -> TaskEvaluation:
    """Score the best epoch on dev and test; write ``eval.json`` and ``predictions-<split>.jsonl``.

    Args:
        directory: of the run.
        max_rows: at most so many examples of each file.
        say: gets a line on texts that do not fit a row.

    Raises:
        RequestError: no such run, no scored epoch, or its files are gone, changed or malformed.
    """
    run = open_task_run(directory)
    task, config = TASKS[run.config.task], run.config
    model, checkpoint = open_best(run)
    facts, best = checkpoint.state, checkpoint.state["best"]
    device = choose_device(config.train.device)
    precision = scoring_precision(config.train.precision, device)
    model.to(device)
    tokenizer = load_tokenizer(run.tokenizer)
    splits = {}
    for split, examples in _examples(run, task, max_rows).items():
        encoded = task.encode(examples, tokenizer, facts, known=True)
        if encoded.cut:
            say(f"{split}: {len(examples):,} {task.unit}, {task.fit(encoded, facts)}")
        predictions = task.predict(model, encoded, facts, precision=precision)
        scored = task.score(examples, predictions, facts)
        splits[split] = SplitScores(len(examples), encoded.cut, scored.scores, scored.baseline, scored.details)
        write_file(directory / f"predictions-{split}.jsonl", "".join(_json_lines(task, facts, examples, predictions)))
    result = TaskEvaluation(str(directory), config.task, config.metric, best["epoch"], best["step"], facts, splits)
    write_json(directory / EVALUATION, result.as_dict())
    return result


def _examples(run: TaskRun, task: Task, max_rows: int | None) -> dict[str, list[Any]]:
    config = run.config
    if not Path(config.data.dev).is_file() or sha256_file(Path(config.data.dev)) != run.inputs["dev"]:
        raise RequestError(
            f"{config.data.dev}: is gone, or not the file by which {run.directory} chose its epoch; where it was moved,"
            " `bertpt finetune` with data.dev (and the others) as they are now goes on and scores"
        )
    return {split: rows[:max_rows] for split, rows in read_known(task, config, run.facts).items()}


def _json_lines(task: Task, facts: Facts, examples: Sequence[Any], predictions: Sequence[Any]) -> Iterator[str]:
    for example, found in zip(examples, task.describe(examples, predictions, facts), strict=True):
        yield json.dumps(found | {"true": task.truth(example)}, ensure_ascii=False) + "\n"


def _lines(evaluation: TaskEvaluation) -> Iterator[str]:
    task = TASKS[evaluation.task]
    chosen = f"epoch {evaluation.epoch}, the best by {evaluation.metric} on dev"
    yield f"{evaluation.run}: {evaluation.task}, {chosen}"
    names = list(dict.fromkeys(name for split in evaluation.splits.values() for name in split.scores))
    width = max(len(name) for name in names)
    header = "".join(f"{f'{split} ({s.rows:,})':>16}{'baseline':>10}" for split, s in evaluation.splits.items())
    yield f"  {'':<{width}}{header}"
    for name in names:
        pairs = [(split.scores[name], split.baseline.get(name)) for split in evaluation.splits.values()]
        cells = "".join(f"{score:>16.4f}{'' if base is None else f'{base:.4f}':>10}" for score, base in pairs)
        yield f"  {name:<{width}}{cells}".rstrip()
    yield f"  baseline: {task.baseline}"
    for split, scores in evaluation.splits.items():
        yield from task.detail_lines(split, scores.details, evaluation.facts)
