"""Scores of a fine-tuned run's best epoch on its dev and test files, beside what needs no text."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertpt.data.wordpiece import load_tokenizer
from bertpt.errors import RequestError
from bertpt.files import sha256_file, write_file, write_json
from bertpt.model.sequence import BertForSequenceClassification
from bertpt.progress import say as say_line
from bertpt.tasks.classification import from_facts, label_tensor, predict_rows, score_logits, texts_of
from bertpt.tasks.encode import encode_rows
from bertpt.tasks.examples import Example, limited, read_examples, refuse, unseen_labels
from bertpt.tasks.metrics import confusion
from bertpt.tasks.rundir import TaskRun, open_task_run
from bertpt.train.checkpoint import Checkpoint, open_weights, restore
from bertpt.train.pretrain import choose_device, choose_precision
from bertpt.train.rundir import BEST


@dataclass(frozen=True, slots=True)
class SplitScores:
    """Scores on one file.

    Attributes:
        rows: how many; cut: those that lost tokens.
        scores: by name.
        baseline: what needs no text: the accuracy of train's most frequent label, or the error of train's mean.
        confusion: rows: the true label, columns: the predicted one; empty in a regression.
    """

    rows: int
    cut: int
    scores: dict[str, float]
    baseline: dict[str, float]
    confusion: list[list[int]]


@dataclass(frozen=True, slots=True)
class TaskEvaluation:
    """What a run's best epoch scores.

    Attributes:
        run: its directory; task: its kind.
        metric: by which the epoch was chosen, on dev alone.
        epoch: from 1; step: updates up to it.
        labels: in the order of their numbers.
        splits: dev, and test where there is one.
    """

    run: str
    task: str
    metric: str
    epoch: int
    step: int
    labels: list[str]
    splits: dict[str, SplitScores]

    def as_dict(self) -> dict[str, Any]:
        """Plain data; NaN becomes ``None``."""
        value = dataclasses.asdict(self)
        for split in value["splits"].values():
            split["scores"] = {name: v if math.isfinite(v) else None for name, v in split["scores"].items()}
        return value

    def table(self) -> str:
        """The figures as lines of text."""
        return "\n".join(_lines(self))


def open_best(run: TaskRun) -> tuple[BertForSequenceClassification, Checkpoint]:
    """The model of the best epoch, on the CPU, and the checkpoint with its facts.

    Raises:
        RequestError: no epoch has been scored yet, or the files are damaged.
    """
    directory = run.directory / BEST
    if not directory.is_dir():
        raise RequestError(f"{run.directory}: no epoch has been scored yet; `bertpt finetune` goes on with it")
    checkpoint = open_weights(directory)
    model = from_facts(checkpoint.state)
    restore(checkpoint, model)
    return model, checkpoint


def evaluate_task_run(
    directory: Path, *, max_rows: int | None = None, say: Callable[[str], None] = say_line
) -> TaskEvaluation:
    """Score the best epoch on dev and test; write ``eval.json`` and ``predictions-<split>.jsonl``.

    Args:
        directory: of the run.
        max_rows: at most so many rows of each file.
        say: gets a line on texts that are cut.

    Raises:
        RequestError: no such run, no scored epoch, or its files are gone, changed or malformed.
    """
    run = open_task_run(directory)
    model, checkpoint = open_best(run)
    device = choose_device(run.config.train.device)
    model.to(device)
    tokenizer, length = load_tokenizer(run.tokenizer), run.config.train.max_length
    splits = {}
    for split, examples in _examples(run, max_rows).items():
        rows = encode_rows(tokenizer, texts_of(examples), length)
        if rows.cut:
            say(f"{split}: {rows.cut:,} of {len(rows):,} texts cut to {length} tokens")
        logits = predict_rows(model, rows, precision=choose_precision(run.config.train.precision, device))
        splits[split] = _scores(run, checkpoint.state, examples, logits, rows.cut)
        write_file(directory / f"predictions-{split}.jsonl", _predictions(checkpoint.state, examples, logits))
    best = checkpoint.state["best"]
    result = TaskEvaluation(
        str(directory),
        run.config.task,
        run.config.metric,
        best["epoch"],
        best["step"],
        checkpoint.state["labels"],
        splits,
    )
    write_json(directory / "eval.json", result.as_dict())
    return result


def _examples(run: TaskRun, max_rows: int | None) -> dict[str, list[Example]]:
    config = run.config
    places = {"dev": config.data.dev} | ({} if config.data.test is None else {"test": config.data.test})
    if not Path(config.data.dev).is_file() or sha256_file(Path(config.data.dev)) != run.inputs["dev"]:
        raise RequestError(f"{config.data.dev}: is gone, or not the file by which {run.directory} chose its epoch")
    found = {}
    for split, place in places.items():
        examples = read_examples(place, config)
        refuse(examples.faults)
        if not config.regression:
            refuse(unseen_labels(examples.rows, run.facts["labels"]))
        if not examples.rows:
            raise RequestError(f"{place}: holds no rows")
        found[split] = limited(examples.rows, config.data.limit.dev)[:max_rows]
    return found


def _scores(
    run: TaskRun, facts: dict[str, Any], examples: Sequence[Example], logits: NDArray[np.float32], cut: int
) -> SplitScores:
    names, regression = facts["labels"], facts["regression"]
    labels = label_tensor(examples, names, regression=regression)
    scores = score_logits(logits, labels, regression=regression)
    usual = run.facts["baseline"]
    if regression:
        baseline = {"mse": float(((labels.double() - usual) ** 2).mean())}
        return SplitScores(len(examples), cut, scores, baseline, [])
    baseline = {"accuracy": sum(example.label == usual for example in examples) / len(examples)}
    matrix = confusion(labels.numpy(), logits.argmax(-1), len(names))
    return SplitScores(len(examples), cut, scores, baseline, matrix)


def describe(facts: dict[str, Any], logits: NDArray[np.float32]) -> list[dict[str, Any]]:
    """What is predicted for each row: ``label`` and ``probabilities`` by label, or ``score``."""
    if facts["regression"]:
        return [{"score": round(float(value), 6)} for value in logits[:, 0]]
    names = facts["labels"]
    shares = torch.from_numpy(logits).double().softmax(-1).tolist()
    return [
        {
            "label": names[int(np.argmax(row))],
            "probabilities": {name: round(share, 6) for name, share in zip(names, row, strict=True)},
        }
        for row in shares
    ]


def _predictions(facts: dict[str, Any], examples: Sequence[Example], logits: NDArray[np.float32]) -> str:
    lines = []
    for example, found in zip(examples, describe(facts, logits), strict=True):
        texts = dict(zip(("text", "pair"), example.texts, strict=False))
        lines.append(json.dumps({**texts, "true": example.label, **found}, ensure_ascii=False) + "\n")
    return "".join(lines)


def _lines(evaluation: TaskEvaluation) -> Iterator[str]:
    chosen = f"epoch {evaluation.epoch}, the best by {evaluation.metric} on dev"
    yield f"{evaluation.run}: {evaluation.task}, {chosen}"
    names = list(dict.fromkeys(name for split in evaluation.splits.values() for name in split.scores))
    width = max(len(name) for name in names)
    header = "".join(f"{f'{split} ({s.rows:,})':>16}" for split, s in evaluation.splits.items())
    yield f"  {'':<{width}}{header}   without text (last column)"
    last = list(evaluation.splits.values())[-1]
    for name in names:
        cells = "".join(f"{split.scores[name]:>16.4f}" for split in evaluation.splits.values())
        beside = f"   {last.baseline[name]:.4f}" if name in last.baseline else ""
        yield f"  {name:<{width}}{cells}{beside}"
    for split, scores in evaluation.splits.items():
        if scores.confusion:
            yield from _matrix(split, evaluation.labels, scores.confusion)


def _matrix(split: str, names: Sequence[str], matrix: Sequence[Sequence[int]]) -> Iterator[str]:
    if len(names) > 20:
        yield f"  {split}: confusion matrix of {len(names)} labels in eval.json"
        return
    width = max(8, *(len(name) + 2 for name in names))
    yield f"  {split}, true label by predicted one:"
    yield f"  {'':<{width}}" + "".join(f"{name:>{width}}" for name in names)
    for name, row in zip(names, matrix, strict=True):
        yield f"  {name:<{width}}" + "".join(f"{count:>{width},}" for count in row)
