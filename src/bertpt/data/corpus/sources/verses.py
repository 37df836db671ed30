"""Verses kept in Python source: one long string and where each verse stands in it. Nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import groupby

from bertpt.data.corpus.sources.base import RawDocument
from bertpt.errors import RequestError

_SHORTEST = 1000  # characters; a shorter string is a title, not a text
_SUPPLIED = re.compile(r"(?:(?<= )-)?\[([^\[\]]*)\]")  # words that the translators supplied


def _integers(node: ast.expr) -> dict[int, int] | None:
    """The value of a literal int -> int dictionary; ``None`` for anything else."""
    if not isinstance(node, ast.Dict) or not node.keys:
        return None
    found: dict[int, int] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(value, ast.Constant)):
            return None
        if type(key.value) is not int or type(value.value) is not int:
            return None
        found[key.value] = value.value
    return found


def _strings(node: ast.expr) -> list[str] | None:
    """The values of a dictionary whose values are all literal strings."""
    if not isinstance(node, ast.Dict) or not node.values:
        return None
    values = [value.value for value in node.values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return values if len(values) == len(node.values) else None


def _verse_call(tree: ast.AST) -> tuple[str, dict[int, int], dict[int, int], list[list[str]]] | None:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        texts = [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        long = [text for text in texts if len(text) >= _SHORTEST]
        tables = [table for table in map(_integers, arguments) if table]
        if len(long) == 1 and len(tables) == 2:
            return long[0], tables[0], tables[1], [names for names in map(_strings, arguments) if names]
    return None


def _clean(verse: str) -> str:
    text = _SUPPLIED.sub(r"\1", verse.replace("`", "'"))
    return " ".join(text.split())


def read_verses(source: str, name: str) -> Iterator[RawDocument]:
    """Yield the chapters of a Python source, each as one line.

    A verse id is book x 1,000,000 + chapter x 1000 + verse. Books have their names where the same call holds a
    dictionary of so many strings, else their numbers: ``Genesis 1`` or ``1:1``.

    Raises:
        RequestError: not Python, no such call, or an offset outside the string.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise RequestError(f"{name}: not readable as Python source: {error}") from error
    call = _verse_call(tree)
    if call is None:
        raise RequestError(f"{name}: no call holds one long string and two dictionaries of verse id -> offset")
    text, starts, ends, tables = call
    missing = sorted(starts.keys() ^ ends.keys())
    if missing:
        raise RequestError(f"{name}: verse {missing[0]} has no start or no end")
    for verse, start in starts.items():
        if not 0 <= start <= ends[verse] <= len(text):
            raise RequestError(f"{name}: verse {verse}: [{start}, {ends[verse]}) is outside the string of {len(text)}")
    books = sorted({verse // 1_000_000 for verse in starts})
    names = next((dict(zip(books, table, strict=True)) for table in tables if len(table) == len(books)), {})
    for chapter, verses in groupby(sorted(starts), key=lambda verse: verse // 1000):
        book, number = divmod(chapter, 1000)
        title = f"{names[book]} {number}" if names else f"{book}:{number}"
        # A chapter is one line: a tenth of the verses end in the middle of a sentence.
        cleaned = (_clean(text[starts[verse] : ends[verse]]) for verse in verses)
        yield RawDocument(text=" ".join(verse for verse in cleaned if verse), name=title)
