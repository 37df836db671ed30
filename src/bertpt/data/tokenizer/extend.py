"""Adding words to a given vocabulary, and telling which entries of a vocabulary are new.

New words come after the last entry, so that every old id keeps its meaning. ``[unusedN]`` entries are left alone: other
tools give them meanings of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertpt.data.corpus.lines import is_blank, read_file_lines
from bertpt.data.tokenizer.wordpiece import MAX_WORD_LETTERS, PREFIX, SPECIALS, Normalising, WordPieceTokenizer, build
from bertpt.errors import RequestError
from bertpt.files import sha256_file
from bertpt.progress import counted

_UNUSED = re.compile(r"\[unused\d+\]")
_SHOWN = 10  # faulty lines that are named one by one


@dataclass(frozen=True, slots=True)
class Extension:
    """A longer vocabulary.

    Attributes:
        tokens: the old entries, then the added words in the order of the file.
        counts: lines by what became of them: ``added``, ``already`` (were single entries), ``repeated``, ``blank``,
            ``special`` (``[PAD]``, ``[unusedN]``, ...) and ``inside`` (``##`` pieces, which are no words).
    """

    tokens: list[str]
    counts: dict[str, int]

    def report(self, place: str) -> str:
        """One line for people."""
        names = {
            "already": "entries already",
            "repeated": "repeated",
            "blank": "blank lines",
            "special": "special entries",
            "inside": "pieces inside words (##)",
        }
        others = [counted(self.counts[name], text) for name, text in names.items() if self.counts[name]]
        left_out = f"; left out: {', '.join(others)}" if others else ""
        return (
            f"{counted(self.counts['added'], 'words')} added from {place}, now {len(self.tokens):,} entries{left_out}"
        )


def words_hash(path: Path) -> str:
    """SHA-256 of a file of words.

    Raises:
        RequestError: there is no such file.
    """
    if not path.is_file():
        raise RequestError(f"tokenizer.extend_from: {path}: no such file; one word a line is expected")
    return sha256_file(path)


def extend(tokens: Sequence[str], normalising: Normalising, path: Path) -> Extension:
    """Add the words of a file, as they are after normalising, to a vocabulary.

    Raises:
        RequestError: lines that are not one word, or a word that no entry can stand for; each with file and line.
    """
    tokenizer = WordPieceTokenizer(build(tokens, normalising), str(path))
    known, added = set(tokens), dict[str, None]()
    counts = Counter[str](dict.fromkeys(("added", "already", "repeated", "blank", "special", "inside"), 0))
    faults = []
    for number, line in enumerate(read_file_lines(path), 1):
        entry = line.strip()
        if is_blank(line):
            counts["blank"] += 1
        elif entry in SPECIALS or _UNUSED.fullmatch(entry):
            counts["special"] += 1
        elif entry.startswith(PREFIX) and len(entry) > len(PREFIX):
            counts["inside"] += 1
        else:
            words = tokenizer.words(entry)
            if fault := _fault(words):
                faults.append(f"{path}: line {number}: {entry[:60]!r} {fault}")
                continue
            word = words[0]
            what = "already" if word in known else "repeated" if word in added else "added"
            counts[what] += 1
            added |= {word: None} if what == "added" else {}
    if faults:
        more = [f"{path}: {len(faults) - _SHOWN} more lines like these"] if len(faults) > _SHOWN else []
        raise RequestError(faults[:_SHOWN] + more)
    return Extension([*tokens, *added], dict(counts))


def _fault(words: Sequence[str]) -> str | None:
    if not words:
        return "has no letter that the tokenizer keeps; remove the line"
    if len(words) > 1:
        return f"is {len(words)} words to the tokenizer ({' '.join(words[:6])}); give each on its own line"
    if len(words[0]) > MAX_WORD_LETTERS:
        return f"has {len(words[0])} letters; words of more than {MAX_WORD_LETTERS} are always [UNK]"
    return None


def new_entries(old: Sequence[str], new: Sequence[str]) -> list[int]:
    """Ids of ``new`` that ``old`` has no trained row for: those after its end, and words in ``[unusedN]`` slots.

    Raises:
        RequestError: ``new`` is not ``old`` with words added; the first differing entry is named.
    """
    replaced = []
    for index, (before, now) in enumerate(zip(old, new, strict=False)):
        if before == now:
            continue
        if not _UNUSED.fullmatch(before):
            raise RequestError(f"entry {index} is {now!r}, the weights were trained with {before!r} there")
        replaced.append(index)
    if len(new) < len(old):
        raise RequestError(f"{len(new):,} entries, the weights were trained with {len(old):,}")
    return replaced + list(range(len(old), len(new)))
