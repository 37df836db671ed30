"""Metrics of a run: ``metrics.jsonl`` (one object a line), and the same in TensorBoard."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bertpt.errors import BertptError, RequestError
from bertpt.files import named_write_faults, write_file
from bertpt.train.reports.board import HELDOUT, Board, faults


class MetricsLog:
    """Appends metrics of a run; after a resume no step stands twice.

    A NaN is written as ``null`` in the JSON (which knows none) and as NaN in TensorBoard.

    Args:
        run: its directory.
        start: the update that it goes on from; total: updates of the whole run.
        again: the evaluation after ``start`` is still to be made: one that was logged before a kill comes again.
    """

    def __init__(self, run: Path, start: int, total: int, *, again: bool = False) -> None:
        self.path = run / "metrics.jsonl"
        self._drop_from(start, again)
        with named_write_faults(self.path):
            self._file = self.path.open("a", encoding="utf-8")
        self.board = Board(run / "tb", start, total, again=again)

    def _drop_from(self, start: int, again: bool) -> None:
        if not self.path.is_file():
            return
        last = {HELDOUT: start - again}
        kept = [entry for entry in read_metrics(self.path) if entry["step"] <= last.get(entry["kind"], start)]
        write_file(self.path, "".join(json.dumps(entry) + "\n" for entry in kept))

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Log ``values`` of update ``step``; ``kind`` (train, heldout) groups them."""
        entry: dict[str, Any] = {"kind": kind, "step": step}
        entry |= {
            name: value if value == value and abs(value) != float("inf") else None for name, value in values.items()
        }
        with faults(self.path):
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
        self.board.scalars(kind, step, values)

    def close(self) -> None:
        """Flush and close both."""
        with contextlib.closing(self.board), faults(self.path):
            self._file.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BertptError) if error is not None else contextlib.nullcontext():
            self.close()  # what came before it is the one to tell


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The entries of a ``metrics.jsonl``; an unfinished last line (a kill while writing) is left out.

    Raises:
        RequestError: another line is damaged; names it.
    """
    lines = path.read_bytes().split(b"\n")
    return [_entry(f"{path}:{number}", line) for number, line in enumerate(lines[:-1], 1)]


def _entry(where: str, line: bytes) -> dict[str, Any]:
    advice = "the line is damaged; take it out, and what is left can be read"
    try:
        entry = json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise RequestError(f"{where}: not a JSON object ({error}): {advice}") from error
    if not (isinstance(entry, dict) and isinstance(entry.get("kind"), str) and type(entry.get("step")) is int):
        raise RequestError(f"{where}: not an object with a kind (text) and a step (a whole number): {advice}")
    return entry
