"""Examples of a classification or regression: texts, a label, and the place where they stand."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertpt.config.finetune.classification import SENTIMENTS, ClassificationConfig
from bertpt.errors import RequestError
from bertpt.tasks.examples import few
from bertpt.tasks.tables import read_table
from bertpt.tasks.task import Examples

MAX_SCORE = 1e9  # whose square is still far from the largest fp32


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


def read_examples(path: str, config: ClassificationConfig) -> Examples:
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
                found.faults.append(f"{place}: label {label!r} is not in data.label_map: {few(data.label_map)}")
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


def _label_fault(label: str, config: ClassificationConfig) -> str | None:
    if config.regression:
        try:
            score = float(label)
            if not math.isfinite(score):
                return f"score {label!r} is not finite"
            return (
                None
                if abs(score) <= MAX_SCORE
                else f"score {label!r} is too large; scale all to {MAX_SCORE:.0e} at most"
            )
        except ValueError:
            return f"score {label!r} is not a number"
    if not label:
        return "no label"
    if config.task == "sentiment" and label not in SENTIMENTS:
        return f"label {label!r} is no sentiment ({', '.join(SENTIMENTS)}); set data.label_map"
    if config.data.labels is not None and label not in config.data.labels:
        return f"label {label!r} is not in data.labels: {few(config.data.labels)}"
    return None


def label_names(train: Sequence[Example], config: ClassificationConfig) -> list[str]:
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
            f"{config.data.train}: {len(found)} label ({few(sorted(found))}); two or more are needed"
            " (data.label names their column)"
        )
    return sorted(found, key=lambda name: (0, int(name), name) if re.fullmatch(r"\d{1,18}", name) else (1, 0, name))


def unseen_labels(examples: Sequence[Example], names: Sequence[str]) -> list[str]:
    """A fault for each row whose label is not among ``names``."""
    known = set(names)
    return [
        f"{row.place}: label {row.label!r} does not stand in train: {few(names)}"
        for row in examples
        if row.label not in known
    ]
