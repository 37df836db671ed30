"""How figures are laid out as text: tables, histograms, indented paragraphs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BAR = 40
WIDTH = 110


class Bucket(NamedTuple):
    """One bar of a histogram: the values from ``low`` to ``high``, both included; ``None`` is no end."""

    low: int
    high: int | None
    number: int

    @property
    def label(self) -> str:
        """The values in words."""
        if self.high is None:
            return f"{self.low:,} or more"
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"


def histogram(values: NDArray[np.int64], lows: Sequence[int], high: int | None = None) -> list[Bucket]:
    """Count values in the buckets that begin at ``lows``; the last ends at ``high``, the largest value there can be.

    Values below the first bucket are in none.
    """
    counts = np.histogram(values, bins=np.array([*lows, np.iinfo(np.int64).max], np.int64))[0]
    highs = [*(low - 1 for low in lows[1:]), high]
    return [Bucket(low, high, int(count)) for low, high, count in zip(lows, highs, counts, strict=True)]


def bars(buckets: Sequence[Bucket]) -> list[str]:
    """A line for each bucket, those after the last value left out."""
    last = max((index for index, bucket in enumerate(buckets) if bucket.number), default=-1)
    shown = buckets[: last + 1]
    total, most = sum(bucket.number for bucket in shown), max((bucket.number for bucket in shown), default=0)
    width = max((len(bucket.label) for bucket in shown), default=0)
    return [
        f"  {bucket.label:>{width}}  {bucket.number:>10,}  {bucket.number / total:6.1%}"
        f"  {'#' * round(_BAR * bucket.number / most)}".rstrip()
        for bucket in shown
    ]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Aligned columns: the first to the left, the others to the right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def sections(parts: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Titles with their lines, an empty line before each title but the first; a part without lines is left out."""
    first = True
    for title, lines in parts:
        if not lines:
            continue
        if not first:
            yield ""
        first = False
        yield title
        yield from lines


def shortened(text: str, letters: int) -> str:
    """At most so many letters of a text, on one line."""
    line = " ".join(text[: 2 * letters].split())
    return line if len(line) <= letters else line[: letters - 1] + "…"


def paragraph(text: str, indent: str = "    ") -> list[str]:
    """The text in lines of readable width."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
