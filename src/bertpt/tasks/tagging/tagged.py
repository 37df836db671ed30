"""Sentences of words with a tag each: out of CoNLL columns, CoNLL-U, JSON lines and Parquet, with file and line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bertpt.config.finetune.common import Column
from bertpt.config.finetune.tagging import CONLLU_COLUMNS, TaggedData
from bertpt.data.corpus.lines import is_blank, read_file_lines
from bertpt.errors import RequestError
from bertpt.tasks.records import NotJson, json_lines, parquet_columns, parquet_rows
from bertpt.tasks.tagging.iob import detect, fault_of, to_iob2
from bertpt.tasks.task import Examples

DOCUMENT = "-DOCSTART-"
_ENDINGS = {".conllu": "conllu", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_DEFAULTS: dict[str, tuple[Column, Column]] = {
    "conll": (0, -1),
    "conllu": ("form", "upos"),
    "jsonl": ("tokens", "tags"),
    "parquet": ("tokens", "tags"),
}
_REQUIRED = ("upos", "xpos")  # columns of CoNLL-U in which `_` says that there is no tag
_RANGE, _EMPTY_NODE, _WORD = re.compile(r"\d+-\d+"), re.compile(r"\d+\.\d+"), re.compile(r"\d{1,9}")


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and their tags.

    Attributes:
        place: file and line of the first word, for people.
        words: as they stand in the file.
        tags: of each word; empty where they are not known. Of entities in IOB2.
        lines: line of each word; empty where a sentence stands in one line.
        text: in which the words stand; ``None``: only they are known.
        starts: where in the text each word begins.
    """

    place: str
    words: tuple[str, ...]
    tags: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()
    text: str | None = None
    starts: tuple[int, ...] = ()

    def where(self, index: int) -> str:
        """File and line of a word, for people."""
        if self.lines:
            return f"{self.place.rpartition(':')[0]}:{self.lines[index]}"
        return f"{self.place}: word {index + 1}"


class Cells(NamedTuple):
    """A word, its tag and its line."""

    word: str
    tag: str
    line: int


def format_of(path: Path, data: TaggedData) -> str:
    """The stated format, or by the file's ending."""
    if data.format != "auto":
        return data.format
    name = path.name.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return _ENDINGS.get(Path(name).suffix, "conll")


def read_sentences(path: Path, data: TaggedData, *, entities: bool, known: bool = True) -> Examples:
    """The sentences of a file; malformed ones are collected in ``faults``.

    Args:
        path: of the file, which may be compressed.
        data: its format.
        entities: whether tags are entities, which are turned into IOB2.
        known: whether tags are read.

    Raises:
        RequestError: no such file, not text, or a column is not there.
    """
    if not path.is_file():
        raise RequestError(f"{path}: no such file; data.train, data.dev and data.test name files")
    kind = format_of(path, data)
    token, tag = (
        own if own is not None else usual for own, usual in zip((data.token, data.tag), _DEFAULTS[kind], strict=True)
    )
    found = Examples([], [])
    columns = (token, tag) if known else (token,)
    if kind in ("jsonl", "parquet"):
        for place, value in _objects(path, found) if kind == "jsonl" else _parquet(path, columns):
            _add_lists(found, place, value, columns)
    else:
        rows = _conllu(path, columns, found) if kind == "conllu" else _conll(path, columns, data.comments, found)
        _add_groups(path, rows, found, known=known)
    if entities and known:
        _as_iob2(found, data.scheme)
    return found


def _add_groups(path: Path, rows: Iterator[Cells | None], found: Examples, *, known: bool) -> None:
    """Sentences out of words; ``None`` ends one."""
    group: list[Cells] = []
    for cells in (*rows, None):
        if cells is not None:
            group.append(cells)
        elif group:
            words, tags, lines = zip(*group, strict=True)
            found.rows.append(Sentence(f"{path}:{lines[0]}", words, tags if known else (), lines))
            group = []


def _conll(path: Path, columns: Sequence[Column], comments: bool, found: Examples) -> Iterator[Cells | None]:
    """Columns between tabs where the first line has one (a word may hold spaces then), else between spaces."""
    width, separator, indices = 0, re.compile(r"[ \t]+"), list[int]()
    for number, line in enumerate(read_file_lines(path), 1):
        if is_blank(line):
            yield None
            continue
        if comments and line.startswith("#"):
            found.counts["comments"] += 1
            continue
        line = line.rstrip(" \t")
        if line.startswith(DOCUMENT) and line[len(DOCUMENT) :][:1] in ("", " ", "\t"):
            found.counts["documents"] += 1
            yield None
            continue
        if not width and "\t" in line:
            separator = re.compile(r"\t")
        cells = separator.split(line)
        if not width:
            width, indices = len(cells), [_index(path, column, len(cells)) for column in columns]
            if len(indices) == 2 and indices[0] == indices[1]:
                raise RequestError(f"{path}:{number}: one column is read as word and as tag; set data.token, data.tag")
        if len(cells) != width:
            hint = "; where such lines are comments, set data.comments=true" if line.startswith("#") else ""
            found.faults.append(f"{path}:{number}: {_columns(cells)}, the first line has {width}{hint}")
        elif not all(cells[index] for index in indices):
            found.faults.append(f"{path}:{number}: no word, or no tag")
        else:
            yield Cells(cells[indices[0]], cells[indices[-1]], number)


def _conllu(path: Path, columns: Sequence[Column], found: Examples) -> Iterator[Cells | None]:
    for column in columns:
        if isinstance(column, str) and column not in CONLLU_COLUMNS:
            raise RequestError(f"{path}: CoNLL-U has no column {column!r}; there are {', '.join(CONLLU_COLUMNS)}")
    indices = [
        CONLLU_COLUMNS.index(column) if isinstance(column, str) else _index(path, column, len(CONLLU_COLUMNS))
        for column in columns
    ]
    if len(indices) == 2 and indices[0] == indices[1]:
        raise RequestError(f"{path}: one column is read as word and as tag; set data.token, data.tag")
    required = len(columns) == 2 and CONLLU_COLUMNS[indices[1]] in _REQUIRED
    expected = 1
    for number, line in enumerate(read_file_lines(path), 1):
        if is_blank(line):
            expected = 1
            yield None
            continue
        if line.startswith("#"):
            continue
        cells, fault = line.split("\t"), None
        if len(cells) != len(CONLLU_COLUMNS):
            fault = f"{_columns(cells)} between tabs, CoNLL-U has {len(CONLLU_COLUMNS)}"
        elif _RANGE.fullmatch(cells[0]):
            found.counts["ranges"] += 1
            continue
        elif _EMPTY_NODE.fullmatch(cells[0]):
            found.counts["empty_nodes"] += 1
            continue
        elif not _WORD.fullmatch(cells[0]):
            fault = f"id {cells[0][:20]!r} is no number of a word"
        elif int(cells[0]) != expected:
            fault = f"word {cells[0]} where {expected} is expected; a blank line ends a sentence"
            expected = int(cells[0]) + 1
        else:
            expected += 1
            if not all(cells[index] for index in indices):
                fault = "no word, or no tag"
            elif required and cells[indices[1]] == "_":
                fault = f"{CONLLU_COLUMNS[indices[1]]} is _, so there is no tag; set data.tag"
        if fault is not None:
            found.faults.append(f"{path}:{number}: {fault}")
        else:
            yield Cells(cells[indices[0]], cells[indices[-1]], number)


def _columns(cells: Sequence[str]) -> str:
    return f"{len(cells)} column{'s' if len(cells) > 1 else ''}"


def _index(path: Path, column: Column, width: int) -> int:
    """The number of a column from 0.

    Raises:
        RequestError: it is not there.
    """
    if not isinstance(column, int):
        raise RequestError(f"{path}: no column {column!r} without a header; give its number from 0, or -1 for the last")
    if not -width <= column < width:
        raise RequestError(f"{path}: no column {column}; the first line has {width}, numbered from 0")
    return column % width


def _objects(path: Path, found: Examples) -> Iterator[tuple[str, Any]]:
    for number, value in json_lines(read_file_lines(path)):
        if value is None:
            found.counts["blank"] += 1
        elif isinstance(value, NotJson):
            found.faults.append(f"{path}:{number}: {value}")
        else:
            yield f"{path}:{number}", value


def _parquet(path: Path, columns: Sequence[Column]) -> Iterator[tuple[str, Any]]:
    names = parquet_columns(path)
    if missing := [str(column) for column in columns if column not in names]:
        raise RequestError(
            f"{path}: no column {', '.join(missing)}; there: {', '.join(names)} (set data.token, data.tag)"
        )
    yield from parquet_rows(path, [str(column) for column in columns])


def _add_lists(found: Examples, place: str, value: Any, columns: Sequence[Column]) -> None:
    lists: list[tuple[str, ...]] = []
    for column in columns:
        if not isinstance(value, dict) or column not in value:
            there = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
            found.faults.append(f"{place}: no {column!r}; there: {there[:80]}")
            return
        items = value[str(column)]
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            found.faults.append(f"{place}: {column}: a list of texts is expected, not {str(items)[:80]}")
            return
        lists.append(tuple(items))
    if len(lists[0]) != len(lists[-1]):
        found.faults.append(f"{place}: {len(lists[0])} words, {len(lists[1])} tags")
    elif not lists[0]:
        found.counts["empty"] += 1
    else:
        found.rows.append(Sentence(place, lists[0], lists[1] if len(lists) > 1 else ()))


def _as_iob2(found: Examples, scheme: str) -> None:
    """Replace the tags of all sentences; those with a tag that is none of the scheme become faults."""
    kept = []
    for sentence in found.rows:
        faults = [
            f"{sentence.where(index)}: {fault}"
            for index, tag in enumerate(sentence.tags)
            if (fault := fault_of(tag, scheme)) is not None
        ]
        found.faults += faults
        if not faults:
            kept.append(sentence)
    own = detect([sentence.tags for sentence in kept]) if scheme == "auto" else scheme
    counts: Counter[str] = Counter()
    found.rows = [replace(sentence, tags=tuple(to_iob2(sentence.tags, own, counts))) for sentence in kept]
    found.counts[f"from_{own}"] = counts["converted"]
    found.counts["ill_formed"] = counts["ill_formed"]
