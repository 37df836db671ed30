"""Undo the tokenisation of corpora that were published with spaces around punctuation."""

from __future__ import annotations

import re

_HEADING = re.compile(r"\s*(?:= )+.*?(?: =)+\s*\Z")
_JOINERS = {"@-@": "-", "@,@": ",", "@.@": "."}
_TO_THE_LEFT = frozenset({",", ".", ":", ";", "!", "?", "%", ")", "]", "}", "°", "…", "...", "”", "’"})
_TO_THE_RIGHT = frozenset({"(", "[", "{", "$", "£", "€", "¥", "#", "“", "‘"})
_CLITIC = re.compile(r"(?:['’](?:s|t|re|ve|ll|d|m)|n['’]t)\Z", re.IGNORECASE)


def is_wikitext_heading(line: str) -> bool:
    """Whether a line is `` = Title = `` or `` = = Section = = ``."""
    return bool(_HEADING.match(line))


def detokenize_wikitext(line: str) -> str:
    """A line of WikiText as it was written; a heading becomes an empty line.

    Joins `` @-@ ``, `` @,@ ``, `` @.@ ``, clitics (`` 's``), punctuation, brackets and quotes. Double quotes
    open and close by turns; a single quote after a word in s is a possessive unless one is open.
    Format: Merity et al. 2016, https://arxiv.org/abs/1609.07843, section 4.3 (Moses tokens).
    """
    if is_wikitext_heading(line):
        return ""
    tokens = line.split()
    out: list[str] = []
    glued = True  # whether the next token stands right after the last one
    opened = {'"': False, "'": False}
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        left, right = _sides(token, out[-1] if out else "", following, opened)
        if not (glued or left):
            out.append(" ")
        out.append(_JOINERS.get(token, token))
        glued = right
    return "".join(out)


def _sides(token: str, before: str, following: str, opened: dict[str, bool]) -> tuple[bool, bool]:
    """Whether a token joins what stands before it, and what follows it; quotes change ``opened``."""
    if token in _JOINERS:
        return True, True
    if token in opened:
        if token == "'" and not opened[token] and (before.endswith("s") or not following):
            return True, False
        opened[token] = not opened[token]
        return not opened[token], opened[token]
    if token in _TO_THE_LEFT or _CLITIC.match(token):
        return True, False
    if token in "–/" and before[-1:].isalnum() and following[:1].isalnum():
        both_numbers = before[-1:].isdigit() and following[:1].isdigit()
        joins = both_numbers or token == "/"
        return joins, joins
    return False, token in _TO_THE_RIGHT
