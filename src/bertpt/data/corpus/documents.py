"""Documents: the rules by which lines become documents, and the Parquet files that hold them.

A document's text is its lines (paragraphs, or sentences where a source has one per line) separated by
line feeds, cleaned, none of them empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from bertpt.data.corpus.lines import clean_line, is_blank
from bertpt.data.corpus.sources.base import RawDocument
from bertpt.errors import RequestError

# Text bytes. Far below the 2 GiB that a string column with 32-bit offsets holds, small enough to stream.
SHARD_BYTES = 256 * 2**20
GROUP_BYTES = 4 * 2**20
GROUP_ROWS = 100_000
SCHEMA = pa.schema([("text", pa.large_string()), ("source", pa.string()), ("name", pa.string())])
_NAME_LENGTH = 200
_ROWS = 500  # read at a time


@dataclass(frozen=True, slots=True)
class Document:
    """A cleaned document: ``text`` as above, the label of its ``source``, and a ``name`` for people."""

    text: str
    source: str
    name: str


# --- from lines to documents ----------------------------------------------------------------------------------


def documents_by_blank_line(lines: Iterable[str], name: str) -> Iterator[RawDocument]:
    """Documents end at blank lines (whitespace of any kind); they are called ``NAME#1``, ``NAME#2`` ..."""
    number, current = 0, list[str]()
    for line in lines:
        if not is_blank(line):
            current.append(line)
        elif current:
            number += 1
            yield RawDocument("\n".join(current), f"{name}#{number}")
            current = []
    if current:
        yield RawDocument("\n".join(current), f"{name}#{number + 1}")


def documents_by_heading(lines: Iterable[str], pattern: str, name: str) -> Iterator[RawDocument]:
    """A line that ``pattern`` matches at its start begins a document, and is its first line.

    The line is tried as it stands and stripped. The document is called after the pattern's first group,
    or else the whole line; lines before the first heading are the document ``NAME#1``.

    Raises:
        RequestError: ``pattern`` is no regular expression.
    """
    begins = compile_heading(pattern)
    title, current = f"{name}#1", list[str]()
    for line in lines:
        found = begins.match(line) or begins.match(line.strip())
        if found:
            if current:
                yield RawDocument("\n".join(current), title)
            title, current = clean_line(found.group(1) or "" if begins.groups else line) or title, []
        if not is_blank(line):
            current.append(line)
    if current:
        yield RawDocument("\n".join(current), title)


def compile_heading(pattern: str) -> re.Pattern[str]:
    """The compiled ``heading`` pattern, or a :class:`RequestError` that says where it is wrong."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise RequestError(f"heading: {pattern[:60]!r} is no regular expression: {error}") from error


def document_of_file(lines: Iterable[str], name: str) -> Iterator[RawDocument]:
    """All lines are one document, called ``NAME``; none when every line is blank."""
    current = [line for line in lines if not is_blank(line)]
    if current:
        yield RawDocument("\n".join(current), name)


def documents_by_group(rows: Iterable[tuple[str, str]], name: str) -> Iterator[RawDocument]:
    """Adjacent rows (group, text) of the same group are one document, called ``NAME#GROUP``."""
    group, current = None, list[str]()
    for key, text in rows:
        if key != group and current:
            yield RawDocument("\n".join(current), f"{name}#{group}")
            current = []
        group = key
        current.append(text)
    if current:
        yield RawDocument("\n".join(current), f"{name}#{group}")


# --- files ----------------------------------------------------------------------------------------------------


class DocumentWriter:
    """Writes documents to ``<split>-00000.parquet`` ... in the order given; use as a context manager.

    Nothing is written before the first document, so an empty split has no file.

    Args:
        directory: an existing folder.
        split: the first part of the file names.
        shard_bytes: a new file begins when one holds this much text (bytes of UTF-8).
        group_bytes: likewise for the row groups, which are what readers hold in memory.
    """

    def __init__(
        self, directory: Path, split: str, *, shard_bytes: int = SHARD_BYTES, group_bytes: int = GROUP_BYTES
    ) -> None:
        self.directory, self.split = directory, split
        self.shard_bytes, self.group_bytes = shard_bytes, group_bytes
        self.shards: list[Path] = []
        self._file: pq.ParquetWriter | None = None
        self._rows: list[tuple[str, str, str]] = []
        self._group_size = self._shard_size = 0

    def add(self, document: Document, size: int | None = None) -> None:
        """Append a document; ``size`` is its text in bytes of UTF-8, when already known."""
        size = len(document.text.encode()) if size is None else size
        if self._rows and (self._group_size + size > self.group_bytes or len(self._rows) >= GROUP_ROWS):
            self._flush()
        if self._file is not None and self._shard_size + self._group_size + size > self.shard_bytes:
            self._flush()
            self._end_shard()
        self._rows.append((document.text, document.source, _plain_name(document.name)))
        self._group_size += size

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._file is None:
            self.shards.append(self.directory / f"{self.split}-{len(self.shards):05d}.parquet")
            self._file = pq.ParquetWriter(
                self.shards[-1], SCHEMA, compression="zstd", compression_level=3, use_dictionary=["source"]
            )
        columns = [
            pa.array(values, field.type) for values, field in zip(zip(*self._rows, strict=True), SCHEMA, strict=True)
        ]
        self._file.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), row_group_size=len(self._rows))
        self._shard_size += self._group_size
        self._rows, self._group_size = [], 0

    def _end_shard(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._shard_size = None, 0

    def close(self) -> None:
        """Write what is pending and close the file."""
        self._flush()
        self._end_shard()

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._end_shard()


def _plain_name(name: str) -> str:
    # File names that are no UTF-8 hold surrogates, which Parquet cannot.
    return clean_line(name)[:_NAME_LENGTH]


def read_shard(path: Path, group: int | None = None) -> Iterator[Document]:
    """The documents of one file, or of one row group of it; some hundred at a time in memory.

    Raises:
        RequestError: the file is damaged.
    """
    try:
        with pq.ParquetFile(path) as file:
            groups = range(file.num_row_groups) if group is None else (group,)
            for index in groups:
                # Threads of its own for three columns gain nothing, and hold up other processes.
                for rows in file.iter_batches(_ROWS, [index], columns=SCHEMA.names, use_threads=False):
                    columns = (rows.column(column).to_pylist() for column in SCHEMA.names)
                    for text, source, name in zip(*columns, strict=True):
                        yield Document(text, source, name)
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"{path}: damaged ({error}); run `bertpt download --overwrite`") from error


def shards_of(directory: Path, split: str) -> list[Path]:
    """The files of ``"train"`` or ``"heldout"`` in order.

    Raises:
        RequestError: there are no documents here.
    """
    shards = sorted(directory.glob(f"{split}-[0-9]*.parquet"))
    if not shards and not (directory / "manifest.json").is_file():
        raise RequestError(f"{directory}: no documents here; run `bertpt download` first")
    return shards


def iter_documents(directory: Path, split: str) -> Iterator[Document]:
    """The documents of ``"train"`` or ``"heldout"`` in their stored order, streaming.

    Raises:
        RequestError: there are no documents here, or a file is damaged.
    """
    for shard in shards_of(directory, split):
        yield from read_shard(shard)
