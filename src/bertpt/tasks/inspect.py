"""``bertpt inspect task``: what is in the files of a task, before any training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertpt.config import FinetuneConfig
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.errors import RequestError
from bertpt.progress import say as say_line
from bertpt.tasks.examples import SHOWN, places, read_parts
from bertpt.tasks.hub import with_files
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
        sources_in_train: rows that are about a text of train, where there is such a text.
        notes: one line for each row that looks odd or was left out.
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
    sources_in_train: int
    notes: list[str]
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


def inspect_task(
    config: FinetuneConfig, tokenizer: WordPieceTokenizer, *, say: Callable[[str], None] = say_line
) -> TaskReport:
    """Read every file of a configuration and count; malformed rows are listed, never raised.

    Raises:
        RequestError: a file cannot be read at all, or lacks a column.
    """
    config, task = with_files(config, say), TASKS[config.task]
    reports: dict[str, SplitReport] = {}
    facts: Facts | None = None
    seen: dict[tuple[str, ...], str] = {}
    sources: set[str | None] = set()
    read = read_parts(task, config)
    for split, path in places(config).items():
        found = read[split]
        faults = list(found.faults)
        if split == "train":
            facts = _facts(task, config, found.rows, faults)
            seen = {task.key(row): row.place for row in reversed(found.rows)}
            sources = {task.source(row) for row in found.rows} - {None}
        elif facts is not None:
            faults += task.unfit(found.rows, facts)
        shared = [row for row in found.rows if split != "train" and task.key(row) in seen]
        encoded = None if facts is None else task.encode(found.rows, tokenizer, facts, known=False)
        repeats, contradictions = _repeats(task, found.rows)
        reports[split] = SplitReport(
            path=path,
            rows=len(found.rows),
            labels=task.label_counts(found.rows, facts or {}),
            counts=dict(found.counts + (encoded.counts if encoded else Counter())),
            lengths=_lengths(encoded.full if encoded else []),
            cut=encoded.cut if encoded else 0,
            repeats=repeats,
            contradictions=contradictions,
            in_train=len(shared),
            in_train_first=[f"{row.place} = {seen[task.key(row)]}" for row in shared[:3]],
            sources_in_train=0 if split == "train" else sum(task.source(row) in sources for row in found.rows),
            notes=found.notes,
            faults=faults,
        )
    return TaskReport(config.name, config.task, config.train.max_length, reports)


def _facts(task: Task, config: FinetuneConfig, train: Sequence[Any], faults: list[str]) -> Facts | None:
    """Of the task, from train; ``None``, and a fault, where that cannot be learnt from."""
    if not train:
        return None
    try:
        return {"max_length": config.train.max_length} | task.facts(config, train)
    except RequestError as error:
        faults += error.faults
        return None


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
        if found.sources_in_train:
            yield f"  about texts of train: {found.sources_in_train:,} ({found.sources_in_train / found.rows:.1%})"
        yield from (f"    {note}" for note in found.notes[:SHOWN])
        if len(found.notes) > SHOWN:
            yield f"    {len(found.notes) - SHOWN:,} more like these"
        if found.faults:
            yield f"  faults: {len(found.faults):,}"
            yield from (f"    {fault}" for fault in found.faults[:SHOWN])
