"""The texts of a command, each with the name that a fault calls it by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from bertpt.data.corpus.lines import is_blank, read_lines
from bertpt.errors import RequestError
from bertpt.progress import counted

_SHOWN = 10  # faults that are named one by one


class Text(NamedTuple):
    """A text and where it came from: ``argument 2``, ``lines.txt: line 7``."""

    place: str
    text: str


def read_texts(arguments: Sequence[str] | None, file: Path | None, stdin: BinaryIO) -> list[Text]:
    """Texts given as arguments, else the lines of ``file``, else those of ``stdin``. Blank lines are texts too.

    Raises:
        RequestError: both were given, the file cannot be read, or a line is not UTF-8 (names it).
    """
    if arguments and file is not None:
        raise RequestError(f"--file: {file}: texts were given as arguments too; give one of them")
    if arguments:
        return [Text(f"argument {number}", text) for number, text in enumerate(arguments, 1)]
    name = "stdin" if file is None else str(file)
    lines = read_lines(stdin if file is None else file, name, replaceable=False)
    return [Text(f"{name}: line {number}", line) for number, line in enumerate(lines, 1)]


def without_blank(texts: Sequence[Text], say: Callable[[str], None]) -> list[Text]:
    """The texts less blank lines, which ask for nothing; how many there were is said."""
    kept = [text for text in texts if not is_blank(text.text)]
    if blank := len(texts) - len(kept):
        say(f"{counted(blank, 'blank lines')} passed over")
    return kept


def refuse(faults: Sequence[str]) -> None:
    """Raise the faults together, when there are any; many are counted.

    Raises:
        RequestError: there are.
    """
    if faults:
        more = [f"{len(faults) - _SHOWN} more texts like these"] if len(faults) > _SHOWN else []
        raise RequestError([*faults[:_SHOWN], *more])
