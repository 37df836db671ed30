"""Progress on stderr: a bar on a terminal, else a plain line at an interval, never a carriage return."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, TextIO

from tqdm import tqdm

from bertpt import signals

INTERVAL = 10.0  # seconds between plain lines


def say(message: str) -> None:
    """Print a line for people on stderr; the results alone go to stdout."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


class _Details(logging.Handler):
    """Prints lines of the log on stderr, above a bar that may stand there."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


def tell_details(wanted: bool) -> None:
    """Whether the debug lines of this package's loggers go to stderr, each with its time and module."""
    package = logging.getLogger("bertpt")
    for handler in [handler for handler in package.handlers if isinstance(handler, _Details)]:
        package.removeHandler(handler)
    package.setLevel(logging.DEBUG if wanted else logging.NOTSET)
    if wanted:
        details = _Details()
        details.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
        package.addHandler(details)


def peak_memory() -> int | None:
    """Most bytes that this process has held in memory so far; ``None`` where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


_SINGULAR = {
    "copies": "copy", "entries": "entry", "bytes": "byte", "files": "file", "lines": "line", "texts": "text",
    "documents": "document", "near-duplicates": "near-duplicate", "characters": "character", "marks": "mark",
    "surrogates": "surrogate", "words": "word", "vectors": "vector", "rows": "row", "sentences": "sentence",
    "processes": "process", "GPUs": "GPU", "cells": "cell",
}  # fmt: skip
_VERBS = {
    "are": "is",
    "stand": "stands",
    "hold": "holds",
    "have": "has",
    "repeat": "repeats",
    "give": "gives",
    "differ": "differs",
}


def counted(number: int, things: str) -> str:
    """``2 files``, ``1 file``: a number and what is counted, given in the plural.

    Of ``lines that stand in 3 documents`` one is ``1 line that stands in 3 documents``: the first noun, and the verb
    right after it or after its ``that``.
    """
    if number != 1:
        return f"{number:,} {things}"
    words = things.split(" ")
    noun = next((index for index, word in enumerate(words) if word in _SINGULAR), None)
    if noun is not None:
        words[noun] = _SINGULAR[words[noun]]
        verb = noun + 1 + (words[noun + 1 : noun + 2] == ["that"])
        if verb < len(words):
            words[verb] = _VERBS.get(words[verb], words[verb])
    return " ".join(["1", *words])


class Progress:
    """Counts finished units of work and shows them; use as a context manager.

    Work that ends within the first interval leaves no plain line.

    Args:
        what: the stage, which begins every line.
        unit: what is counted, in the plural.
        total: how many there will be, when known.
        start: how many were done before (a resume).
        shown: ``False`` shows nothing.
        stream: default ``sys.stderr``.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        what: str,
        *,
        unit: str = "rows",
        total: int | None = None,
        start: int = 0,
        shown: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what, self.unit, self.total, self.done = what, unit, total, start
        self._start, self._values = start, ""
        self._stream = sys.stderr if stream is None else stream
        self._clock, self._shown = clock, shown
        self._begun = self._last = clock()
        self._bar: tqdm[NoReturn] | None = None
        if shown and self._stream.isatty():
            self._bar = tqdm(
                total=total,
                initial=start,
                desc=what,
                unit=f" {unit}",
                unit_scale=total is None or total >= 100_000,  # small numbers as they are: 10/3000, not 10.0/3.00k
                file=self._stream,
                dynamic_ncols=True,
                leave=None,  # one inside another, as an evaluation in a training, goes again
            )

    def add(self, count: int = 1, **values: str) -> None:
        """Count finished units and show them when it is time; ``values`` stand beside them until replaced.

        Between two units is where a signal that was lost (``signals.check``) is raised.
        """
        signals.check()
        self.done += count
        if values:
            self._values = ", ".join(f"{name} {value}" for name, value in values.items())
        if self._bar is not None:
            if values:
                self._bar.set_postfix_str(self._values, refresh=False)
            self._bar.update(count)
        elif self._shown and self._clock() - self._last >= INTERVAL:
            self._last = self._clock()
            self._write(self._line())

    def note(self, message: str, say: Callable[[str], None] | None = None) -> None:
        """Print a line (through ``say``) without breaking the bar."""
        if self._bar is not None:
            self._bar.clear()
        (say or self._write)(message)
        if self._bar is not None:
            self._bar.refresh()

    def close(self) -> None:
        """Leave the terminal in order."""
        if self._bar is not None:
            self._bar.close()

    def _line(self) -> str:
        rate = (self.done - self._start) / max(self._last - self._begun, 1e-9)
        of = f" of {self.total:,} ({self.done / self.total:.0%})" if self.total else ""
        left = f", about {(self.total - self.done) / rate:,.0f} s left" if self.total and rate else ""
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        beside = f", {self._values}" if self._values else ""
        return f"{self.what}: {self.done:,}{of} {self.unit}, {speed}/s{left}{beside}"

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
