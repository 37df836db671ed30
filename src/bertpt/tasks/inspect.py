"""``bertpt inspect task``: what is in the files of a task, before any training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertpt.config import FinetuneConfig
from bertpt.data.wordpiece import WordPieceTokenizer
from bertpt.tasks.examples import SHOWN, places
from bertpt.tasks.kinds import TASKS
from bertpt.tasks.task import Facts, Task


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What is in one file.

    Attributes:
        path: of the file; rows: examples that could be read.
        labels: rows by label; in a regression smallest, mean and largest score.
        counts: blank lines, rows left out, rows with an empty text.
        lengths: tokens of an example, specials included: median, 95th percentile, largest.
        cut: those above ``train.max_length``.
        repeats: rows whose texts stood in the file before; contradictions: those of another label.
        in_train: rows whose texts stand in train too, and the first of them.
        faults: one line for each malformed row or unknown label.
    """

    path: str
    rows: int
    labels: dict[str, float]
    counts: dict[str, int]
    lengths: dict[str, int]
    cut: int
    repeats: int
    contradictions: int
    in_train: int
    in_train_first: list[str]
    faults: list[str]


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What ``bertpt inspect task`` found."""

    name: str
    task: str
    max_length: int
    splits: dict[str, SplitReport]

    @property
    def faults(self) -> list[str]:
        """Of all files."""
        return [fault for split in self.splits.values() for fault in split.faults]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def table(self) -> str:
        """As lines of text."""
        return "\n".join(_lines(self))


def inspect_task(config: FinetuneConfig, tokenizer: WordPieceTokenizer) -> TaskReport:
    """Read every file of a configuration and count; malformed rows are listed, never raised.

    Raises:
        RequestError: a file cannot be read at all, or lacks a column.
    """
    task = TASKS[config.task]
    reports: dict[str, SplitReport] = {}
    facts: Facts = {}
    seen: dict[tuple[str, ...], str] = {}
    for split, path in places(config).items():
        found = task.read(path, config)
        faults = list(found.faults)
        if split == "train":
            facts = {"max_length": config.train.max_length} | (task.facts(config, found.rows) if found.rows else {})
            seen = {task.key(row): row.place for row in reversed(found.rows)}
        elif found.rows:
            faults += task.unfit(found.rows, facts)
        shared = [row for row in found.rows if split != "train" and task.key(row) in seen]
        encoded = task.encode(found.rows, tokenizer, facts, known=False)
        repeats, contradictions = _repeats(task, found.rows)
        reports[split] = SplitReport(
            path=path,
            rows=len(found.rows),
            labels=task.label_counts(found.rows, facts),
            counts={name: count for name, count in found.counts.items() if count},
            lengths=_lengths(encoded.full),
            cut=encoded.cut,
            repeats=repeats,
            contradictions=contradictions,
            in_train=len(shared),
            in_train_first=[f"{row.place} = {seen[task.key(row)]}" for row in shared[:3]],
            faults=faults,
        )
    return TaskReport(config.name, config.task, config.train.max_length, reports)


def _repeats(task: Task, rows: Sequence[Any]) -> tuple[int, int]:
    first: dict[tuple[str, ...], Any] = {}
    repeats = contradictions = 0
    for row in rows:
        truth = task.truth(row)
        repeats += 1
        contradictions += truth != first.setdefault(task.key(row), truth)
    return repeats - len(first), contradictions


def _lengths(full: Any) -> dict[str, int]:
    if not len(full):
        return {}
    return {"median": int(np.median(full)), "95%": int(np.percentile(full, 95)), "largest": int(full.max())}


def _lines(report: TaskReport) -> Iterator[str]:
    for split, found in report.splits.items():
        task = TASKS[report.task]
        yield f"{split}: {found.path}: {found.rows:,} {task.unit}"
        yield "  labels: " + ", ".join(f"{name} {count:,g}" for name, count in found.labels.items())
        lengths = ", ".join(f"{name} {count:,}" for name, count in found.lengths.items())
        yield f"  tokens of one: {lengths}; {found.cut:,} above train.max_length {report.max_length}"
        for name, count in found.counts.items():
            yield f"  {count:,} {task.count_words[name]}"
        if found.repeats:
            yield f"  repeated: {found.repeats:,} {task.unit}, {found.contradictions:,} of them with another label"
        if found.in_train:
            yield f"  also in train: {found.in_train:,} ({found.in_train / found.rows:.1%}), so scores flatter:"
            yield from (f"    {line}" for line in found.in_train_first)
        if found.faults:
            yield f"  faults: {len(found.faults):,}"
            yield from (f"    {fault}" for fault in found.faults[:SHOWN])
