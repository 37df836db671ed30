"""``bertpt runs``: what runs there are, how far each has come, and what two of them differ in."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertpt.config import Config, FinetuneConfig, plain
from bertpt.errors import RequestError
from bertpt.files import read_manifest
from bertpt.locks import is_worked_in
from bertpt.tasks.rundir import FACTS, is_task_run, open_task_run
from bertpt.train.reports.logs import read_metrics
from bertpt.train.rundir import flat, open_run

PRETRAIN = "pretrain"
RUNNING, FINISHED, STOPPED, DAMAGED = "running", "finished", "stopped", "damaged"
_CURVE_LINES = 12
_NAMES = {"name", "description"}  # of a configuration: they always differ, and change nothing


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run.

    Attributes:
        name: of its directory.
        kind: ``pretrain``, or the task.
        state: ``running`` (a process works in it), ``finished``, ``stopped``, or ``damaged``.
        step: last logged update; total: all of them; ``None`` where not known.
        heldout: the last scores that were logged.
        tokens_per_second: median of the log.
        fault: why it is damaged.
    """

    name: str
    kind: str
    state: str
    step: int
    total: int | None
    heldout: dict[str, float | None]
    tokens_per_second: float | None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class RunTable:
    """The runs of a folder."""

    rows: list[RunRow]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        header = ("name", "kind", "updates", "state", "held-out", "tokens/s")
        return _columns([header, *map(_cells, self.rows)]) + [row.fault for row in self.rows if row.fault]


def list_runs(directory: Path) -> RunTable:
    """All runs right below a folder, by name.

    Not for the process that trains one of them: to look at a run's lock would drop it.

    Raises:
        RequestError: there is no such folder, or no run in it.
    """
    found = sorted({path.parent for name in ("run.json", FACTS) for path in directory.glob(f"*/{name}")})
    if not found:
        raise RequestError(f"{directory}: holds no run; `bertpt pretrain` or `bertpt run` makes one")
    return RunTable([_row(run) for run in found])


def _row(directory: Path) -> RunRow:
    try:
        config, entries = _opened(directory)
        saved = sorted(directory.glob("checkpoints/step-*"))  # their numbers have leading zeros
        if saved and read_manifest(saved[-1]) is None:
            raise RequestError(f"{saved[-1]}: not a finished checkpoint (no manifest.json)")
    except RequestError as error:
        return RunRow(directory.name, "?", DAMAGED, 0, None, {}, None, str(error))
    heldout = [entry for entry in entries if entry["kind"] == "heldout"]
    total = _total(config, heldout)
    speeds = [entry["tokens_per_second"] for entry in entries if entry.get("tokens_per_second")]
    state = STOPPED
    if is_worked_in(directory):
        state = RUNNING
    elif heldout and _is_over(heldout[-1]["step"], total, entries):
        state = FINISHED
    return RunRow(
        directory.name,
        PRETRAIN if isinstance(config, Config) else config.task,
        state,
        max((entry["step"] for entry in entries), default=0),
        total,
        _scores(heldout[-1]) if heldout else {},
        statistics.median(speeds) if speeds else None,
    )


def _opened(directory: Path) -> tuple[Config | FinetuneConfig, list[dict[str, Any]]]:
    config = open_task_run(directory).config if is_task_run(directory) else open_run(directory).config
    log = directory / "metrics.jsonl"
    return config, read_metrics(log) if log.is_file() else []


def _is_over(evaluated: int, total: int | None, entries: Sequence[dict[str, Any]]) -> bool:
    """Whether the evaluation after an update is a run's last: all updates are made, or the budget of time is over."""
    last = next((entry for entry in reversed(entries) if entry["kind"] == "train"), {"step": -1})
    by_time = last["step"] == evaluated and last.get("budget_share", 0.0) >= 1
    return by_time or (total is not None and evaluated >= total)


def _total(config: Config | FinetuneConfig, heldout: Sequence[dict[str, Any]]) -> int | None:
    """Of a task: known after its first epoch, for dev is scored after each."""
    if isinstance(config, Config):
        return sum(phase.steps for phase in config.train.phases)
    return config.train.epochs * int(heldout[0]["step"]) if heldout else None


def _scores(entry: dict[str, Any]) -> dict[str, float | None]:
    return {name: value for name, value in entry.items() if name not in ("kind", "step")}


def _cells(row: RunRow) -> tuple[str, ...]:
    updates = f"{row.step:,}" if row.total is None else f"{row.step:,} of {row.total:,}"
    speed = "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}"
    return row.name, row.kind, updates, row.state, _brief(row), speed


def _brief(row: RunRow) -> str:
    if row.kind != PRETRAIN:
        return ", ".join(f"{name} {_number(value)}" for name, value in list(row.heldout.items())[:3])
    objectives = [name for name in ("mlm", "nsp") if f"{name}_loss" in row.heldout]
    return ", ".join(
        f"{name} {_number(row.heldout[f'{name}_loss'])} ({_number(row.heldout[f'{name}_accuracy'], '.1%')})"
        for name in objectives
    )


def _number(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        names: of the runs.
        settings: keys that differ, with both values (``None``: not set).
        final: the last held-out scores of both, by name.
        curves: held-out scores at the updates after which both were evaluated: score, update, both values.
    """

    names: tuple[str, str]
    settings: dict[str, tuple[Any, Any]]
    final: dict[str, tuple[float | None, float | None]]
    curves: dict[str, dict[int, tuple[float | None, float | None]]]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people; of long curves some points, evenly chosen, always with the last."""
        return list(_compared(self))


def compare_runs(one: Path, other: Path) -> Comparison:
    """What two runs of one kind differ in, and how they learnt.

    Raises:
        RequestError: one is no run, is damaged, or they are of different kinds.
    """
    opened = [_opened(run) for run in (one, other)]
    kinds = [PRETRAIN if isinstance(config, Config) else config.task for config, _ in opened]
    if kinds[0] != kinds[1]:
        raise RequestError(f"{one} is of {kinds[0]}, {other} of {kinds[1]}: they cannot be compared")
    old, new = (flat(plain(config)) for config, _ in opened)
    settings = {
        key: (old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key) and key not in _NAMES
    }
    logged = [{e["step"]: _scores(e) for e in entries if e["kind"] == "heldout"} for _, entries in opened]
    final = [list(scores.values())[-1] if scores else {} for scores in logged]
    common = sorted(logged[0].keys() & logged[1].keys())
    curves = {
        name: {step: (logged[0][step].get(name), logged[1][step].get(name)) for step in common}
        for name in final[0]
        if name in final[1]
    }
    scores = {name: (final[0].get(name), final[1].get(name)) for name in dict.fromkeys([*final[0], *final[1]])}
    return Comparison((str(one), str(other)), settings, scores, curves if common else {})


def _compared(found: Comparison) -> Iterator[str]:
    first, second = found.names
    yield "Settings:" if found.settings else "Settings: none differs"
    if found.settings:
        rows = [(f"  {key}", *map(repr, pair)) for key, pair in found.settings.items()]
        yield from _columns([("", first, second), *rows])
    yield "Last held-out scores:" if found.final else "Last held-out scores: none yet"
    if found.final:
        rows = [(f"  {name}", _number(a, ".4f"), _number(b, ".4f")) for name, (a, b) in found.final.items()]
        yield from _columns([("", first, second), *rows])
    for name in [name for name in found.curves if name.endswith(("mlm_loss", "nsp_accuracy"))] or list(found.curves)[
        :1
    ]:
        yield f"{name} after the same updates:"
        points = list(found.curves[name].items())
        stride = -(-len(points) // _CURVE_LINES)
        shown = points[::-stride][::-1]
        rows = [(f"  {step:,}", _number(a, ".4f"), _number(b, ".4f")) for step, (a, b) in shown]
        yield from _columns([("", first, second), *rows])
