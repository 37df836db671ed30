"""``bertpt inspect task``: what is in the files of a task, before any training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertpt.config.finetune import FinetuneConfig
from bertpt.data.wordpiece import WordPieceTokenizer
from bertpt.tasks.classification import texts_of
from bertpt.tasks.encode import encode_rows
from bertpt.tasks.examples import SHOWN, Example, label_names, read_examples, unseen_labels


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What is in one file.

    Attributes:
        path: of the file; rows: that could be read.
        labels: rows by label; in a regression smallest, mean and largest score.
        counts: blank lines, rows left out, rows with an empty text.
        lengths: tokens of a row, specials included: median, 95th percentile, largest.
        cut: rows above ``train.max_length``.
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
    data = config.data
    places = {"train": data.train, "dev": data.dev} | ({} if data.test is None else {"test": data.test})
    reports: dict[str, SplitReport] = {}
    names: list[str] = []
    seen: dict[tuple[str, ...], str] = {}
    for split, path in places.items():
        found = read_examples(path, config)
        faults = list(found.faults)
        if split == "train":
            names = label_names(found.rows, config) if found.rows else []
            seen = {_key(row): row.place for row in reversed(found.rows)}
        elif not config.regression:
            faults += unseen_labels(found.rows, names)
        shared = [row for row in found.rows if split != "train" and _key(row) in seen]
        rows = encode_rows(tokenizer, texts_of(found.rows), config.train.max_length)
        repeats, contradictions = _repeats(found.rows)
        reports[split] = SplitReport(
            path=path,
            rows=len(found.rows),
            labels=_labels(found.rows, names, config),
            counts={name: count for name, count in found.counts.items() if count},
            lengths=_lengths(rows.full),
            cut=rows.cut,
            repeats=repeats,
            contradictions=contradictions,
            in_train=len(shared),
            in_train_first=[f"{row.place} = {seen[_key(row)]}" for row in shared[:3]],
            faults=faults,
        )
    return TaskReport(config.name, config.train.max_length, reports)


def _key(row: Example) -> tuple[str, ...]:
    return tuple(" ".join(text.split()) for text in row.texts)


def _repeats(rows: Sequence[Example]) -> tuple[int, int]:
    first: dict[tuple[str, ...], str] = {}
    repeats = contradictions = 0
    for row in rows:
        label = first.setdefault(_key(row), row.label)
        repeats += 1
        contradictions += label != row.label
    return repeats - len(first), contradictions


def _labels(rows: Sequence[Example], names: Sequence[str], config: FinetuneConfig) -> dict[str, float]:
    if config.regression:
        values = [float(row.label) for row in rows]
        return {"smallest": min(values), "mean": sum(values) / len(values), "largest": max(values)} if values else {}
    counts = Counter(row.label for row in rows)
    return {name: counts[name] for name in [*names, *sorted(counts.keys() - set(names))]}


def _lengths(full: Any) -> dict[str, int]:
    if not len(full):
        return {}
    return {"median": int(np.median(full)), "95%": int(np.percentile(full, 95)), "largest": int(full.max())}


def _lines(report: TaskReport) -> Iterator[str]:
    for split, found in report.splits.items():
        yield f"{split}: {found.path}: {found.rows:,} rows"
        yield "  labels: " + ", ".join(f"{name} {count:,g}" for name, count in found.labels.items())
        lengths = ", ".join(f"{name} {count:,}" for name, count in found.lengths.items())
        yield f"  tokens of a row: {lengths}; {found.cut:,} above train.max_length {report.max_length}"
        for name, count in found.counts.items():
            yield f"  {name.replace('_', ' ')}: {count:,}"
        if found.repeats:
            yield f"  repeated: {found.repeats:,} rows, {found.contradictions:,} of them with another label"
        if found.in_train:
            yield f"  also in train: {found.in_train:,} ({found.in_train / found.rows:.1%}), so scores flatter:"
            yield from (f"    {line}" for line in found.in_train_first)
        if found.faults:
            yield f"  faults: {len(found.faults):,}"
            yield from (f"    {fault}" for fault in found.faults[:SHOWN])
