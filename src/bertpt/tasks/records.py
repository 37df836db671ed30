"""Values out of JSON lines and Parquet files, each with its place; what cannot be read is named by it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bertpt.data.corpus.lines import is_blank
from bertpt.data.tokenizer.wordpiece import clean
from bertpt.errors import RequestError

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """Text that is no JSON; ``line`` and ``column`` are 0 where no place is to blame."""

    def __init__(self, fault: str, line: int = 0, column: int = 0) -> None:
        self.fault, self.line, self.column = fault, line, column
        super().__init__(f"not JSON: {fault}" + (f" at column {column}" if column else ""))


def parse_json(text: str) -> Any:
    r"""The value of a JSON text. Halves of surrogate pairs (``"\ud83d"``), which no file can hold, become U+FFFD.

    Raises:
        NotJson: it is none, is nested too deeply, or holds a number of thousands of digits.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg, error.lineno, error.colno) from error
    except RecursionError as error:
        raise NotJson("nested too deeply") from error
    except ValueError as error:
        raise NotJson("a number has too many digits") from error
    return _cleaned(value) if _ESCAPED_SURROGATE.search(text) else value


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return {clean(key): _cleaned(item) for key, item in value.items()} if isinstance(value, dict) else value


def json_lines(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """The number of each line and its value: ``None`` of a blank one, :class:`NotJson` (not raised) of a bad one."""
    for number, line in enumerate(lines, 1):
        if is_blank(line):
            yield number, None
            continue
        try:
            value = parse_json(line)
        except NotJson as error:
            yield number, error
        else:
            yield number, NotJson("null stands there") if value is None else value


def parquet_columns(path: Path) -> list[str]:
    """Names of the columns.

    Raises:
        RequestError: it is no Parquet file.
    """
    try:
        with pq.ParquetFile(path) as file:
            return list(file.schema_arrow.names)
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"{path}: not readable as Parquet: {' '.join(str(error).split())}") from error


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place of each row (``x.parquet: row 7``) and its named values.

    Raises:
        RequestError: the file is damaged, or holds what is no value (a year 9999999, text that is no UTF-8).
    """
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=list(columns)):
                for value in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", value
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"{path}: not readable as Parquet: {' '.join(str(error).split())}") from error
    except (OverflowError, ValueError) as error:
        what = " ".join(str(error).split())
        raise RequestError(f"{path}: after row {number}: a value cannot be read: {what}") from error
