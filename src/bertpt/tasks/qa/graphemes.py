"""Where letters end: a piece of a text must not cut an accent, a jamo or half an emoji off."""

from __future__ import annotations

import unicodedata

from bertpt.tasks.qa.questions import Span

_JOINER = "\u200d"
# The joiner, and the viramas that join two consonants to one letter (UAX 29, rule 9c).
_LINKS = {_JOINER, "\u094d", "\u09cd", "\u0acd", "\u0b4d", "\u0c4d", "\u0d4d"}


def continues(text: str, at: int) -> bool:
    """Whether the character at ``at`` belongs to the one before it, so that no piece may begin there.

    These are combining marks and variation selectors, vowels, finals and doubled initials of decomposed Hangul, the
    zero-width joiner or a virama and what it joins, skin tones and tags of emoji. It is most of the grapheme clusters
    of Unicode (UAX 29); pairs of regional indicators are left out, for these need the whole text before them.
    """
    if not 0 < at < len(text):
        return False
    letter = text[at]
    if letter.isascii():
        return False
    if text[at - 1] in _LINKS and unicodedata.category(letter) in ("So", "Lo"):
        return True
    if "\u1100" <= text[at - 1] <= "\u115f" and ("\u1100" <= letter <= "\u115f" or "\uac00" <= letter <= "\ud7a3"):
        return True  # an initial before another, or before a whole syllable
    return (
        letter == _JOINER
        or "\u1160" <= letter <= "\u11ff"
        or "\U0001f3fb" <= letter <= "\U0001f3ff"
        or "\U000e0020" <= letter <= "\U000e007f"
        or unicodedata.category(letter).startswith("M")
    )


def whole(text: str, begin: int, end: int) -> Span:
    """The piece from ``begin`` to ``end``, extended at both sides so that no letter is cut.

    Args:
        text: the text.
        begin: its first character; end: behind its last one; ``begin < end``.
    """
    while continues(text, begin):
        begin -= 1
    while continues(text, end):
        end += 1
    return begin, end
