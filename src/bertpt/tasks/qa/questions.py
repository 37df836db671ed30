"""Questions on a text and their answers: the JSON of SQuAD, or rows as in the data sets of the Hugging Face hub.

Each answer is looked up in its context: one that does not stand where ``answer_start`` says is never trained on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertpt.data.corpus.lines import read_file_lines
from bertpt.data.tokenizer.wordpiece import clean
from bertpt.errors import RequestError
from bertpt.tasks.records import NotJson, json_lines, parquet_columns, parquet_rows, parse_json

_SHOWN = 40  # letters of an answer in a line for people
_ENDINGS = {".json": "squad", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}

_COLUMNS = ("id", "question", "context", "answers", "is_impossible")

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Question:
    """A question on a context.

    Attributes:
        place: file and path in it, for people.
        id: by which its answer is called.
        question: its text; context: where the answer stands.
        answers: as they are written in the file; empty: the context holds none; ``None``: not known.
        spans: begin and end of those that stand in the context, in characters.
    """

    place: str
    id: str
    question: str
    context: str
    answers: tuple[str, ...] | None = None
    spans: tuple[Span, ...] = ()

    @property
    def is_impossible(self) -> bool:
        """Whether the context is known to hold no answer."""
        return self.answers == ()


@dataclass(slots=True)
class QuestionFile:
    """What a file holds.

    Attributes:
        rows: its questions.
        faults: one line for each malformed part.
        notes: one line for each answer that does not stand where it should.
        counts: of these, by kind: ``bad_start``, ``elsewhere``, ``spaces``, ``blank_answer``, ``unusable``.
    """

    rows: list[Question] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seen: dict[str, str] = field(default_factory=dict)

    def add(self, place: str, within: str, value: Any, context: str | None, *, answered: bool) -> None:
        """Add a question that stands at ``within`` in the file; faults are collected."""
        if not isinstance(value, dict):
            self.faults.append(f"{place}: an object is expected, not {type(value).__name__}")
            return
        question = self.text(place, value, "question")
        if question is None or context is None:
            return
        name = value.get("id")
        identity = within if name is None else clean(str(name))
        if (before := self.seen.setdefault(identity, place)) != place:
            self.faults.append(f"{place}: id {identity!r} is that of {before} too")
            return
        if not answered:
            self.rows.append(Question(place, identity, question, context))
            return
        given = self._answers(place, value)
        if given is None:
            return
        spans = []
        for text, start in given:
            span, kind, note = locate(context, text, start)
            if span is not None:
                spans.append(span)
            if note:
                self.notes.append(f"{place}: question {identity}: {note}")
            if kind:
                self.counts[kind] += 1
                self.counts["bad_start"] += kind == "elsewhere"
        self.counts["unusable"] += bool(given) and not spans
        self.rows.append(
            Question(place, identity, question, context, tuple(text for text, _ in given), tuple(dict.fromkeys(spans)))
        )

    def text(self, place: str, value: dict[str, Any], key: str) -> str | None:
        """The text of a key that must not be blank."""
        found = value.get(key)
        if isinstance(found, str) and found.strip():
            return clean(found)
        if isinstance(found, str):
            self.faults.append(f"{place}: {key}: is empty")
        else:
            what = "is missing" if found is None else f"text is expected, not {type(found).__name__}"
            self.faults.append(f"{place}: {key}: {what}")
        return None

    def _answers(self, place: str, value: dict[str, Any]) -> list[tuple[str, int]] | None:
        answers, impossible = value.get("answers"), value.get("is_impossible")
        if isinstance(answers, dict):  # the columns of the Hugging Face hub
            texts, starts = answers.get("text"), answers.get("answer_start")
            if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
                self.faults.append(f"{place}: answers: two lists of one length are expected, text and answer_start")
                return None
            answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        if answers is None and impossible is True:
            answers = []
        if not isinstance(answers, list):
            what = "is missing" if answers is None else f"a list is expected, not {type(answers).__name__}"
            self.faults.append(f"{place}: answers: {what}")
            return None
        if bool(answers) is bool(impossible) and impossible is not None:
            what = f"holds {len(answers)} answers" if answers else "is empty"
            self.faults.append(f"{place}: answers: {what}, but is_impossible is {str(impossible).lower()}")
            return None
        found = []
        for number, answer in enumerate(answers):
            text, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (None, None)
            if not isinstance(text, str) or not isinstance(start, int) or isinstance(start, bool):
                self.faults.append(f"{place}.answers[{number}]: text, and a whole number as answer_start, are expected")
                return None
            found.append((clean(text), start))
        return found


def locate(context: str, text: str, start: int) -> tuple[Span | None, str, str]:
    """Where an answer stands.

    Args:
        context: the whole text.
        text: the answer.
        start: the character where it should begin.

    Returns:
        Its begin and end, ``None`` when it does not stand at ``start``; ``""`` or what is wrong (``spaces``: only the
        white space differs, ``elsewhere``: it stands at one other place, ``bad_start``, ``blank_answer``); and a line.
    """
    if not text.strip():
        return None, "blank_answer", "a blank answer; a question without an answer has answers: []"
    if start >= 0 and context.startswith(text, start):
        start += len(text) - len(text.lstrip())
        return (start, start + len(text.strip())), "", ""
    given, start = start, min(start, len(context))
    words = r"\s+".join(re.escape(word) for word in text.split())
    if start >= 0 and (match := re.compile(rf"\s*({words})").match(context, start)):
        return match.span(1), "spaces", ""
    there = context[max(0, start) : max(0, start) + len(text)]
    note = f"answer {text[:_SHOWN]!r} does not stand at {given}, where {there[:_SHOWN]!r} is"
    if context.count(text) == 1:
        return None, "elsewhere", f"{note}; it stands once, at {context.index(text)}"
    return None, "bad_start", f"{note}; it stands at {context.count(text) or 'no'} other places"


def read_questions(path: Path, kind: str = "auto", *, answered: bool = True) -> QuestionFile:
    """Read a file of questions; malformed ones are collected in ``faults``.

    Args:
        path: of the file.
        kind: ``squad``, ``jsonl``, ``parquet``, or ``auto``: by the ending.
        answered: whether answers must be there; else they are not looked at.

    Raises:
        RequestError: no such file, or it cannot be read at all.
    """
    if not path.is_file():
        raise RequestError(f"{path}: no such file")
    if kind == "auto":
        kind = next((_ENDINGS[suffix] for suffix in reversed(path.suffixes) if suffix in _ENDINGS), "")
        if not kind:
            raise RequestError(
                f"{path}: its ending tells no format; name it .json (SQuAD), .jsonl or .parquet, or set data.format"
            )
    found = QuestionFile()
    if kind == "squad":
        _read_squad(path, found, answered=answered)
        return found
    for place, within, value in _rows(path, found) if kind == "jsonl" else _parquet(path):
        context = found.text(place, value, "context") if isinstance(value, dict) else None
        found.add(place, within, value, context, answered=answered)
    return found


def _read_squad(path: Path, found: QuestionFile, *, answered: bool) -> None:
    try:
        value = parse_json("\n".join(read_file_lines(path)))
    except NotJson as error:
        more = "; JSON lines have the ending .jsonl" if error.fault == "Extra data" else ""
        place = f"line {error.line}, column {error.column}: " if error.line else ""
        raise RequestError(f"{path}: {place}not JSON: {error.fault}{more}") from None
    if not isinstance(value, dict) or not isinstance(value.get("data"), list):
        raise RequestError(
            f'{path}: not the JSON of SQuAD: {{"data": [{{"paragraphs": [{{"context": ..., "qas": [...]}}]}}]}} is'
            " expected; rows of question, context and answers have the ending .jsonl"
        )
    for at, article in _items(found, path, "data", value):
        for below, paragraph in _items(found, path, f"{at}.paragraphs", article):
            context = found.text(f"{path}: {below}", paragraph, "context") if isinstance(paragraph, dict) else None
            for within, question in _items(found, path, f"{below}.qas", paragraph):
                found.add(f"{path}: {within}", within, question, context, answered=answered)


def _items(found: QuestionFile, path: Path, key: str, above: Any) -> Iterator[tuple[str, Any]]:
    """Items of the list that is the last part of ``key``, each with its path; a fault where there is no list."""
    outer, _, inner = key.rpartition(".")
    items = above.get(inner) if isinstance(above, dict) else None
    if not isinstance(items, list):
        what = f"a list {inner!r} is expected" if isinstance(above, dict) else "an object is expected"
        found.faults.append(f"{path}: {outer}: {what}")
        return
    yield from ((f"{key}[{number}]", item) for number, item in enumerate(items))


def _rows(path: Path, found: QuestionFile) -> Iterator[tuple[str, str, Any]]:
    for number, value in json_lines(read_file_lines(path)):
        if isinstance(value, NotJson):
            found.faults.append(f"{path}:{number}: {value}")
        elif value is not None:
            yield f"{path}:{number}", f"line {number}", value


def _parquet(path: Path) -> Iterator[tuple[str, str, Any]]:
    columns = [name for name in parquet_columns(path) if name in _COLUMNS]
    for number, (place, value) in enumerate(parquet_rows(path, columns), 1):
        yield place, f"row {number}", value
