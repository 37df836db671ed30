"""Rows out of CSV, TSV, JSON lines, Parquet and fastText files, each with its place; cells are text, always.

A row that cannot be read is a fault with file and line; all are collected, so that one look finds them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bertpt.config.finetune.classification import TableData
from bertpt.config.finetune.common import Column, FileData
from bertpt.data.corpus.lines import is_blank, read_file_lines
from bertpt.data.corpus.separated import records
from bertpt.errors import RequestError
from bertpt.tasks.records import NotJson, json_lines, parquet_columns, parquet_rows

LABEL = "__label__"
_ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zstd")


class Row(NamedTuple):
    """The cells that were asked for, in that order, and where they stand: ``train.tsv:7``."""

    place: str
    cells: tuple[str, ...]


@dataclass(slots=True)
class Table:
    """The rows of one file.

    Attributes:
        rows: those that could be read.
        faults: one line for each that could not.
        blank: lines that were passed over because nothing stands there.
    """

    rows: list[Row] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    blank: int = 0


def format_of(path: Path, data: FileData) -> str:
    """The stated format, or by the file's ending.

    Raises:
        RequestError: the ending says nothing.
    """
    if data.format != "auto":
        return data.format
    if (found := _by_ending(path)) is None:
        raise RequestError(f"{path}: its ending tells no format; set data.format (csv, tsv, jsonl, parquet, fasttext)")
    return found


def is_json_lines(path: Path) -> bool:
    """Whether the file's ending says JSON lines."""
    return _by_ending(path) == "jsonl"


def _by_ending(path: Path) -> str | None:
    name = path.name.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return _ENDINGS.get(Path(name).suffix)


def read_table(path: Path, data: FileData, columns: Sequence[Column], *, lists: bool = False) -> Table:
    """The named columns of each row of a file.

    Args:
        path: of the file, which may be compressed.
        data: its format.
        columns: names, or numbers from 0 (from the end: -1).
        lists: whether a cell of JSON lines or Parquet may be a list; its items are lines then.

    Raises:
        RequestError: no such file, not text, or a column is not there.
    """
    if not path.is_file():
        raise RequestError(f"{path}: no such file; data.train, data.dev and data.test name files")
    kind = format_of(path, data)
    if kind == "parquet":
        return _parquet(path, columns, lists)
    lines = read_file_lines(path)
    if kind == "jsonl":
        return read_json_lines(str(path), lines, columns, lists=lists)
    if kind == "fasttext":
        return _fasttext(path, lines, [isinstance(data, TableData) and column == data.label for column in columns])
    quoting = kind == "csv" if data.quoting is None else data.quoting
    return _separated(path, lines, "\t" if kind == "tsv" else ",", quoting, data.header, columns)


def _separated(
    path: Path, lines: Iterator[str], delimiter: str, quoting: bool, header: bool, columns: Sequence[Column]
) -> Table:
    table = Table()
    width, indices = 0, list[int]()
    for number, cells in records(lines, delimiter, quoting=quoting):
        if isinstance(cells, csv.Error):
            table.faults.append(f"{path}:{number}: {cells}; where a quote is text, set data.quoting=false")
        elif not cells:
            table.blank += 1
        elif not width:  # the first line says how many columns there are
            width = len(cells)
            indices = [_index(path, cells if header else None, width, column) for column in columns]
            if not header:
                table.rows.append(Row(f"{path}:{number}", tuple(cells[index] for index in indices)))
        elif len(cells) != width:
            what = f"{len(cells)} columns, the first line has {width}"
            table.faults.append(f"{path}:{number}: {what}{_quote_hint(cells, quoting)}")
        else:
            table.rows.append(Row(f"{path}:{number}", tuple(cells[index] for index in indices)))
    return table


def _quote_hint(cells: Sequence[str], quoting: bool) -> str:
    if quoting:
        return "; where a quote is text, set data.quoting=false"
    return "; where quotes enclose cells, set data.quoting=true" if any('"' in cell for cell in cells) else ""


def _index(path: Path, names: Sequence[str] | None, width: int, column: Column) -> int:
    """The number of a column.

    Raises:
        RequestError: it is not there; says which are.
    """
    if isinstance(column, int):
        if not -width <= column < width:
            raise RequestError(f"{path}: no column {column}; the first line has {width}, numbered from 0")
        return column % width
    if names is None:
        raise RequestError(f"{path}: no column {column!r} without a header; give its number from 0")
    if column not in names:
        where = "there are" if path.suffix in (".parquet", ".pq") else "its first line has"
        first = ", ".join(name[:40] for name in names)
        raise RequestError(
            f"{path}: no column {column!r}; {where}: {first}"
            " (set data.text, data.pair, data.label, or data.header=false)"
        )
    if names.count(column) > 1:
        raise RequestError(f"{path}: {names.count(column)} columns are called {column!r}; rename all but one")
    return names.index(column)


def read_json_lines(name: str, lines: Iterator[str], columns: Sequence[Column], *, lists: bool = False) -> Table:
    """The named values of each line, which is a JSON object; ``name`` is that of the file, for people."""
    table = Table()
    for number, value in json_lines(lines):
        place = f"{name}:{number}"
        if value is None:
            table.blank += 1
        elif isinstance(value, NotJson):
            table.faults.append(f"{place}: {value}")
        elif not isinstance(value, dict):
            table.faults.append(f"{place}: a JSON object is expected, not {type(value).__name__}")
        else:
            _add(table, place, value, columns, lists)
    return table


def _add(table: Table, place: str, value: Mapping[str, Any], columns: Sequence[Column], lists: bool) -> None:
    cells = []
    for column in columns:
        if column not in value:
            table.faults.append(f"{place}: no {column!r}; there: {', '.join(map(str, value))[:80]}")
            return
        if (cell := _text(value[str(column)], lists)) is None:
            table.faults.append(f"{place}: {column}: text or a number is expected, not {value[str(column)]!r}"[:200])
            return
        cells.append(cell)
    table.rows.append(Row(place, tuple(cells)))


def _text(value: Any, lists: bool) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if lists and isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return "\n".join(" ".join(str(int(item) if isinstance(item, bool) else item).split()) for item in value)
    return str(value) if isinstance(value, str | int | float) else None


def _fasttext(path: Path, lines: Iterator[str], is_label: Sequence[bool]) -> Table:
    table = Table()
    for number, line in enumerate(lines, 1):
        if is_blank(line):
            table.blank += 1
            continue
        label, text = [*re.split("[ \t]", line, maxsplit=1), ""][:2]
        if not label.startswith(LABEL) or label == LABEL:
            table.faults.append(f"{path}:{number}: {LABEL}NAME is expected before the text, not {line[:40]!r}")
            continue
        if text.startswith(LABEL):
            table.faults.append(f"{path}:{number}: two labels; a text has one here")
            continue
        table.rows.append(
            Row(f"{path}:{number}", tuple(label.removeprefix(LABEL) if each else text for each in is_label))
        )
    return table


def _parquet(path: Path, columns: Sequence[Column], lists: bool) -> Table:
    table, names = Table(), parquet_columns(path)
    chosen = [names[_index(path, names, len(names), column)] for column in columns]
    for place, value in parquet_rows(path, sorted(set(chosen))):
        _add(table, place, value, chosen, lists)
    return table
