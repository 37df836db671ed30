"""Documents out of local text, JSON lines, CSV, TSV and Parquet files, streaming."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bertpt.config.schema import FilesSource
from bertpt.data.corpus.documents import (
    compile_heading,
    document_of_file,
    documents_by_blank_line,
    documents_by_group,
    documents_by_heading,
)
from bertpt.data.corpus.lines import decode, is_blank, read_lines, split_lines
from bertpt.data.corpus.separated import records
from bertpt.data.corpus.sources.base import RawDocument, Reading
from bertpt.data.corpus.sources.local_files import LocalFile, fingerprint_files, format_of, list_files
from bertpt.errors import RequestError
from bertpt.progress import counted

_BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True)
class _Row:
    number: int  # line of the file, of Parquet row, from 1
    text: str
    group: str


def fingerprint_inputs(source: FilesSource, reading: Reading | None = None) -> str:
    """Fingerprint of the names and contents of the files."""
    return fingerprint_files(source)


def read(source: FilesSource, reading: Reading) -> Iterator[RawDocument]:
    """Yield the documents of the ``validation`` files (held out), then those of the others.

    ``reading.counts`` gains ``files``, ``empty_files``, ``files_skipped`` and what
    :func:`bertpt.data.corpus.lines.read_lines` counts.

    Raises:
        RequestError: a place without files, a file that is not what it seems, or a faulty row; one line
            that names the file and line.
    """
    listing = list_files(source)
    if source.heading is not None:
        compile_heading(source.heading)
    reading.counts["files_skipped"] += len(listing.skipped)
    for files, heldout in ((listing.heldout, True), (listing.files, False if listing.heldout else None)):
        rule = _rule(source, files)
        headings, empty = 0, list[str]()
        for file in files:
            reading.counts["files"] += 1
            before = headings, reading.counts["raw_documents"]
            for document in _documents(file, source, rule, reading):
                reading.counts["raw_documents"] += 1
                headings += document.name != f"{file.name}#1"
                yield replace(document, heldout=heldout)
            if reading.counts["raw_documents"] == before[1]:
                empty.append(file.name)
        _report(source, rule, files, headings, empty, reading)
    del reading.counts["raw_documents"]


def _rule(source: FilesSource, files: list[LocalFile]) -> str:
    if source.documents != "auto":
        return source.documents
    return "blank-line" if len(files) == 1 else "file"


def _report(
    source: FilesSource, rule: str, files: list[LocalFile], headings: int, empty: list[str], reading: Reading
) -> None:
    if empty:
        reading.counts["empty_files"] += len(empty)
        reading.say(
            f"{source.path}: {counted(len(empty), 'files without text')}:"
            f" {', '.join(empty[:5])}{' ...' * (len(empty) > 5)}"
        )
    if files and rule == "heading" and not headings:
        raise RequestError(
            f"{source.path}: heading: {source.heading!r} begins no line of {counted(len(files), 'files')}"
        )
    blank = reading.counts["files_with_blank_lines"]
    if source.documents == "auto" and blank:
        reading.say(
            f"{source.path}: {counted(blank, 'files hold blank lines between lines')}; each file is one document all"
            " the same"
            " (documents: blank-line ends documents there, documents: file keeps this without a note)"
        )


def _documents(file: LocalFile, source: FilesSource, rule: str, reading: Reading) -> Iterator[RawDocument]:
    kind = format_of(file, source)
    if kind == "text":
        yield from _text_documents(file, source, rule, reading)
        return
    rows = {"jsonl": _json_rows, "parquet": _parquet_rows}.get(kind, _separated_rows)(file, source, reading)
    if source.documents in ("auto", "row"):
        yield from (RawDocument("\n".join(split_lines(row.text)), f"{file.name}#{row.number}") for row in rows)
    elif rule == "group":
        yield from documents_by_group(((row.group, "\n".join(split_lines(row.text))) for row in rows), file.name)
    else:
        yield from _by_lines((line for row in rows for line in split_lines(row.text) or [""]), file, source, rule)


def _text_documents(file: LocalFile, source: FilesSource, rule: str, reading: Reading) -> Iterator[RawDocument]:
    if rule == "group":
        raise RequestError(f"{file.path}: documents: group needs columns (JSON lines, CSV, TSV, Parquet); this is text")
    lines = read_lines(file.path, str(file.path), reading.encoding_errors, reading.counts)
    if rule == "row":
        yield from (RawDocument(line, f"{file.name}#{n}") for n, line in enumerate(lines, 1) if not is_blank(line))
        return
    if source.documents == "auto" and rule == "file":
        lines = _noting_blank_lines(lines, reading.counts)
    yield from _by_lines(lines, file, source, rule)


def _by_lines(lines: Iterable[str], file: LocalFile, source: FilesSource, rule: str) -> Iterator[RawDocument]:
    if rule == "heading":
        return documents_by_heading(lines, source.heading or "", file.name)
    if rule == "blank-line":
        return documents_by_blank_line(lines, file.name)
    return document_of_file(lines, file.name)


def _noting_blank_lines(lines: Iterable[str], counts: Counter[str]) -> Iterator[str]:
    begun = blank = between = False
    for line in lines:
        if not line.strip():
            blank = begun
        else:
            between, begun = between or blank, True
        yield line
    counts["files_with_blank_lines"] += between


# --- rows -----------------------------------------------------------------------------------------------------


def _json_rows(file: LocalFile, source: FilesSource, reading: Reading) -> Iterator[_Row]:
    expected = f"a JSON object with the text in {source.text_column!r} is expected on each line"
    lines = read_lines(file.path, str(file.path), reading.encoding_errors, reading.counts)
    for number, line in enumerate(lines, 1):
        if is_blank(line):
            continue
        where = f"{file.path}: line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise RequestError(f"{where}: no JSON ({error.msg} at column {error.colno}); {expected}") from error
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where}: no readable JSON ({error}); {expected}") from error
        if not isinstance(row, dict):
            raise RequestError(f"{where}: {type(row).__name__} found; {expected}")
        text = _column(row, source.text_column, "text_column", where)
        if not isinstance(text, str):
            raise RequestError(
                f"{where}: {source.text_column!r} is {json.dumps(text)[:40]}; a string is expected (text_column names"
                " the column)"
            )
        group = _column(row, source.group_column, "group_column", where) if source.group_column else ""
        yield _Row(number, text, _group(group))


def _separated_rows(file: LocalFile, source: FilesSource, reading: Reading) -> Iterator[_Row]:
    """Rows of a table whose first line names its columns."""
    tabs = format_of(file, source) == "tsv"
    lines = read_lines(file.path, str(file.path), reading.encoding_errors, reading.counts)
    names: list[str] = []
    for number, cells in records(lines, "\t" if tabs else ",", quoting=not tabs):
        where = f"{file.path}: line {number}"
        if isinstance(cells, csv.Error):
            raise RequestError(
                f"{where}: no readable CSV ({cells}); where commas and quotes are text, set format: text"
            )
        if not cells:
            continue
        if not names:
            names = cells
            for key in ("text_column", "group_column"):
                if (column := getattr(source, key)) is not None:
                    _column(dict.fromkeys(names), column, key, where)
            continue
        if len(cells) != len(names):
            raise RequestError(
                f"{where}: {counted(len(cells), 'cells')}, the first line has {len(names)}; mend it, or set"
                " format: text where this is no table"
            )
        row = dict(zip(names, cells, strict=True))
        yield _Row(number, row[source.text_column], row[source.group_column] if source.group_column else "")


def _group(value: Any) -> str:
    """What adjacent rows have in common; those without a group are one."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, default=str)


def _column(row: dict[str, Any], column: str, key: str, where: str) -> Any:
    if column not in row:
        raise RequestError(f"{where}: no {column!r}; found: {', '.join(row) or 'nothing'}; set {key} to one of these")
    return row[column]


def _parquet_rows(file: LocalFile, source: FilesSource, reading: Reading) -> Iterator[_Row]:
    number = 0
    try:
        with pq.ParquetFile(file.path) as parquet:
            columns = _check_columns(file, source, parquet.schema_arrow)
            for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                texts = batch.column(source.text_column)
                if pa.types.is_dictionary(texts.type):
                    texts = texts.dictionary_decode()
                groups = batch.column(source.group_column).to_pylist() if source.group_column else [""] * len(texts)
                # As bytes: nothing says that a file's strings are valid, and the library decodes a batch at a time.
                for text, group in zip(texts.cast(pa.large_binary()).to_pylist(), groups, strict=True):
                    number += 1
                    reading.counts["null_rows"] += text is None
                    replace = reading.encoding_errors == "replace"
                    yield _Row(number, decode(text or b"", "utf-8", replace, reading.counts), _group(group))
    except (pa.ArrowException, OSError) as error:
        raise RequestError(
            f"{file.path}: not readable as Parquet: {str(error).strip().partition(chr(10))[0]}"
        ) from error
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{file.path}: row {number}: byte {error.start + 1} of the text, {error.object[error.start]:#04x}, is not"
            f" valid UTF-8 ({error.reason}); convert it, or set corpus.encoding_errors=replace"
        ) from None
    reading.counts["bytes_read"] += file.size


def _check_columns(file: LocalFile, source: FilesSource, schema: pa.Schema) -> list[str]:
    columns = [source.text_column] + ([source.group_column] if source.group_column else [])
    for column, key in zip(columns, ("text_column", "group_column"), strict=False):
        if column not in schema.names:
            raise RequestError(f"{file.path}: no column {column!r}; set {key} to one of: {', '.join(schema.names)}")
    kind = schema.field(source.text_column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise RequestError(f"{file.path}: column {source.text_column!r} holds {kind}; text (string) is expected")
    return columns
