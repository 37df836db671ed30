"""Examples of a classification or regression: texts, a label, and the place where they stand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertpt.config.finetune import SENTIMENTS, FinetuneConfig
from bertpt.data.random import bits
from bertpt.errors import RequestError
from bertpt.tasks.tables import read_table

SHOWN = 10  # faults that are named one by one
_LIMIT_SEED = 20181011  # which rows a limit keeps


@dataclass(frozen=True, slots=True)
class Example:
    """One row.

    Attributes:
        place: file and line, for people.
        texts: one text, or two of a pair.
        label: by name; in a regression the score as text.
    """

    place: str
    texts: tuple[str, ...]
    label: str


@dataclass(slots=True)
class Examples:
    """The rows of one file, and what was found in reading.

    Attributes:
        rows: in the order of the file.
        faults: one line for each malformed row.
        counts: ``blank`` lines, rows ``left_out`` by ``label_map``, rows with an ``empty`` text.
    """

    rows: list[Example]
    faults: list[str]
    counts: Counter[str] = field(default_factory=Counter)

    def scores(self) -> NDArray[np.float32]:
        """The labels as numbers, float32 [N]."""
        return np.array([float(row.label) for row in self.rows], np.float32)


def read_examples(path: str, config: FinetuneConfig) -> Examples:
    """The examples of a file; malformed rows are collected in ``faults``.

    Raises:
        RequestError: no such file, not text, or a column is not there.
    """
    data = config.data
    columns = [data.label, data.text, *([] if data.pair is None else [data.pair])]
    table = read_table(Path(path), data, columns)
    found = Examples([], table.faults, Counter(blank=table.blank))
    for place, cells in table.rows:
        label: str | None = cells[0].strip()
        if data.label_map:
            if label not in data.label_map:
                found.faults.append(f"{place}: label {label!r} is not in data.label_map: {_few(data.label_map)}")
                continue
            label = data.label_map[str(label)]
        if label is None:
            found.counts["left_out"] += 1
        elif fault := _label_fault(label, config):
            found.faults.append(f"{place}: {fault}")
        else:
            found.counts["empty"] += not all(text.strip() for text in cells[1:])
            found.rows.append(Example(place, cells[1:], label))
    return found


def _label_fault(label: str, config: FinetuneConfig) -> str | None:
    if config.regression:
        try:
            return None if math.isfinite(float(label)) else f"score {label!r} is not finite"
        except ValueError:
            return f"score {label!r} is not a number"
    if not label:
        return "no label"
    if config.task == "sentiment" and label not in SENTIMENTS:
        return f"label {label!r} is no sentiment ({', '.join(SENTIMENTS)}); set data.label_map"
    if config.data.labels is not None and label not in config.data.labels:
        return f"label {label!r} is not in data.labels: {_few(config.data.labels)}"
    return None


def refuse(faults: Sequence[str]) -> None:
    """Raise the faults together, when there are any; many are counted.

    Raises:
        RequestError: there are.
    """
    if faults:
        more = [f"{len(faults) - SHOWN:,} more rows like these"] if len(faults) > SHOWN else []
        raise RequestError([*faults[:SHOWN], *more])


def label_names(train: Sequence[Example], config: FinetuneConfig) -> list[str]:
    """All labels in the order of their numbers: as given, else those of train, sorted (whole numbers by value).

    Raises:
        RequestError: there are fewer than two.
    """
    if config.regression:
        return []
    if config.task == "sentiment":
        return list(SENTIMENTS)
    if config.data.labels is not None:
        return config.data.labels
    found = {row.label for row in train}
    if len(found) < 2:
        raise RequestError(
            f"{config.data.train}: {len(found)} label ({_few(sorted(found))}); two or more are needed"
            " (data.label names their column)"
        )
    return sorted(found, key=lambda label: (0, int(label), label) if label.isdecimal() else (1, 0, label))


def unseen_labels(examples: Sequence[Example], names: Sequence[str]) -> list[str]:
    """A fault for each row whose label is not among ``names``."""
    known = set(names)
    return [
        f"{row.place}: label {row.label!r} does not stand in train: {_few(names)}"
        for row in examples
        if row.label not in known
    ]


def limited(examples: Sequence[Example], count: int | None) -> list[Example]:
    """At most ``count`` rows, the same ones in every run, in the order of the file."""
    if count is None or count >= len(examples):
        return list(examples)
    keep = np.sort(np.argsort(bits(_LIMIT_SEED, np.arange(len(examples))), kind="stable")[:count])
    return [examples[index] for index in keep]


@dataclass(frozen=True, slots=True)
class Splits:
    """Checked and limited examples of each file; ``names`` are the labels by number."""

    names: list[str]
    train: list[Example]
    dev: list[Example]
    test: list[Example] | None
    counts: dict[str, dict[str, int]]


def read_splits(config: FinetuneConfig) -> Splits:
    """Read train, dev and test, and check all of it before any work.

    Raises:
        RequestError: malformed rows, labels that train lacks, an empty file: each with file and line, together.
    """
    data = config.data
    places = {"train": data.train, "dev": data.dev} | ({} if data.test is None else {"test": data.test})
    found = {split: read_examples(place, config) for split, place in places.items()}
    faults = [fault for examples in found.values() for fault in examples.faults]
    if not faults:
        faults = [f"{places[split]}: holds no rows" for split, examples in found.items() if not examples.rows]
    refuse(faults)
    names = label_names(found["train"].rows, config)
    if not config.regression:
        refuse([line for split in found if split != "train" for line in unseen_labels(found[split].rows, names)])
    test = found.get("test")
    return Splits(
        names,
        limited(found["train"].rows, data.limit.train),
        limited(found["dev"].rows, data.limit.dev),
        None if test is None else limited(test.rows, data.limit.dev),
        {split: {k: v for k, v in examples.counts.items() if v} for split, examples in found.items()},
    )


def _few(names: Sequence[str] | dict[str, str | None], count: int = 12) -> str:
    listed = list(names)
    return ", ".join(listed[:count]) + (f" and {len(listed) - count} more" if len(listed) > count else "")
