"""Records of comma- or tab-separated text."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator


def records(lines: Iterable[str], delimiter: str, *, quoting: bool) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """The cells of each record, with the line it begins in, from 1; what is wrong with it where it cannot be read.

    Args:
        lines: without their ends.
        delimiter: between cells.
        quoting: whether a cell in quotes may hold the delimiter and line ends; else a quote is text.
    """
    if not quoting:
        for number, line in enumerate(lines, 1):
            yield number, line.split(delimiter) if line else []
        return
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a text may be longer than 131,072 letters
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            yield number, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, error
