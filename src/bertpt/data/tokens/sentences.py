"""Splitting text into sentences: by the rules of its language, or one per line."""

from __future__ import annotations

import re
from typing import Literal

from sentencex import segment

from bertpt.config.languages import language_code

_LETTER = re.compile(r"[^\W_]")


def split_sentences(text: str, language: str, mode: Literal["split", "lines"] = "split") -> list[str]:
    r"""Sentences of a text whose lines (``\n``) are paragraphs, in order, without white space around them.

    Args:
        text: one document.
        language: language code, see ``language_code``.
        mode: ``split`` finds sentences inside each line; ``lines`` takes each line as it is.

    A sentence never goes over the end of a line. Apart from white space between sentences no character is lost.
    """
    lines = text.split("\n")
    if mode == "split":
        code = language_code(language)
        lines = [part for line in lines if line for part in _join_fragments(_segment(code, line))]
    return [sentence for sentence in map(str.strip, lines) if sentence]


def _segment(code: str, line: str) -> list[str]:
    """The library's sentences; a line that it cannot take (some with U+2028, a panic inside) stays whole."""
    try:
        return list(segment(code, line))
    except BaseException as error:  # a panic is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return [line]


def _join_fragments(parts: list[str]) -> list[str]:
    """Give parts without any letter or digit (a closing quote, a bracket, a dash) to the part before them."""
    joined: list[str] = []
    for part in parts:
        if joined and not (_LETTER.search(part) and _LETTER.search(joined[-1])):
            joined[-1] += part
        else:
            joined.append(part)
    return joined
