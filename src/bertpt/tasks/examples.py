"""The files of a task: read, checked together before any work, and limited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertpt.config.finetune import FinetuneConfig
from bertpt.data.random import bits
from bertpt.errors import RequestError
from bertpt.tasks.task import Examples, Facts, Task

SHOWN = 10  # faults that are named one by one
_LIMIT_SEED = 20181011  # which examples a limit keeps


@dataclass(frozen=True, slots=True)
class Splits:
    """Checked and limited examples of each file (``train``, ``dev``, perhaps ``test``).

    Attributes:
        examples: by split.
        facts: of the task, from all of train.
        counts: what was passed over, by split.
    """

    examples: dict[str, list[Any]]
    facts: Facts
    counts: dict[str, dict[str, int]]


def places(config: FinetuneConfig) -> dict[str, str]:
    """The file of each split."""
    data = config.data
    return {"train": data.train, "dev": data.dev} | ({} if data.test is None else {"test": data.test})


def refuse(faults: Sequence[str]) -> None:
    """Raise the faults together, when there are any; many are counted.

    Raises:
        RequestError: there are.
    """
    if faults:
        more = [f"{len(faults) - SHOWN:,} more like these"] if len(faults) > SHOWN else []
        raise RequestError([*faults[:SHOWN], *more])


def read_parts(task: Task, config: FinetuneConfig, *, without: str | None = None) -> Mapping[str, Examples]:
    """What each split holds; a file that several name is read once. Malformed examples are in ``faults``.

    Raises:
        RequestError: a file cannot be read at all, or lacks a column.
    """
    wanted = {split: place for split, place in places(config).items() if split != without}
    files = {place: task.read(place, config) for place in dict.fromkeys(wanted.values())}
    return task.part({split: files[place] for split, place in wanted.items()}, config)


def read_splits(task: Task, config: FinetuneConfig) -> Splits:
    """Read train, dev and test, and check all of it before any work.

    Raises:
        RequestError: malformed examples, labels that train lacks, an empty file: with file and line, together.
    """
    found = read_parts(task, config)
    # A file that several splits name has its faults once.
    faults = list(dict.fromkeys(fault for examples in found.values() for fault in examples.faults))
    refuse(faults or [_empty(task, config, split, found[split]) for split in found if not found[split].rows])
    facts = task.facts(config, found["train"].rows)
    refuse([line for split in found if split != "train" for line in task.unfit(found[split].rows, facts)])
    limits = config.data.limit
    return Splits(
        {
            split: limited(task.trainable(e.rows), limits.train) if split == "train" else limited(e.rows, limits.dev)
            for split, e in found.items()
        },
        facts,
        {split: {name: count for name, count in e.counts.items() if count} for split, e in found.items()},
    )


def read_known(task: Task, config: FinetuneConfig, facts: Facts) -> dict[str, list[Any]]:
    """The examples of dev and test, for a run that has its facts.

    Raises:
        RequestError: malformed or unfit examples, or none.
    """
    found = read_parts(task, config, without="train")
    for split, examples in found.items():
        refuse(examples.faults or task.unfit(examples.rows, facts))
        if not examples.rows:
            raise RequestError(_empty(task, config, split, examples))
    return {split: limited(examples.rows, config.data.limit.dev) for split, examples in found.items()}


def _empty(task: Task, config: FinetuneConfig, split: str, examples: Examples) -> str:
    gone = ", ".join(f"{count:,} {task.count_words[name]}" for name, count in examples.counts.items() if count)
    return f"{places(config)[split]}: holds no {task.unit} for {split}" + (f" ({gone})" if gone else "")


def limited(examples: Sequence[Any], count: int | None) -> list[Any]:
    """At most ``count`` examples, the same ones in every run, in the order of the file."""
    if count is None or count >= len(examples):
        return list(examples)
    keep = np.sort(np.argsort(bits(_LIMIT_SEED, np.arange(len(examples))), kind="stable")[:count])
    return [examples[index] for index in keep]


def few(names: Iterable[str], count: int = 12) -> str:
    """The first names between commas, and how many more there are."""
    listed = list(names)
    return ", ".join(listed[:count]) + (f" and {len(listed) - count} more" if len(listed) > count else "")
