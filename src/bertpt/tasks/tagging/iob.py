"""Entities as tags of words: the schemes that files use, strict IOB2, the entities that tags stand for.

Tags are ``O`` or a prefix and a type (``B-PER``). IOB1: ``I-`` in an entity, ``B-`` only where one follows another of
its type (Ramshaw and Marcus 1995). IOB2: ``B-`` at each beginning. BIOES (also BILOU): ``E-``/``L-`` ends an entity of
several words, ``S-``/``U-`` is one of a single word. Inside bertpt all tags are IOB2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

OUTSIDE = "O"
_BEGIN, _GO_ON, _LAST = frozenset("BSU"), frozenset("IEL"), frozenset("ESLU")
_PREFIXES = _BEGIN | _GO_ON


class Entity(NamedTuple):
    """Words ``begin`` to ``end`` (without it) of a sentence."""

    type: str
    begin: int
    end: int


def fault_of(tag: str, scheme: str) -> str | None:
    """What is wrong with a tag by itself; ``None``: nothing."""
    prefix, hyphen, kind = tag.partition("-")
    prefixed = bool(hyphen) and prefix in _PREFIXES
    if tag == OUTSIDE or (scheme == "io" and tag and not prefixed):
        return None
    if prefixed and not kind:
        return f"tag {tag!r} has no type"
    if prefixed:
        allowed = {"io": "I", "iob1": "BI", "iob2": "BI"}.get(scheme, "BIESLU")
        return None if prefix in allowed else f"tag {tag!r} is not of data.scheme={scheme}"
    return f"tag {tag!r}: O, B-TYPE or I-TYPE is expected; for types without prefix set data.scheme=io"


def detect(sentences: Sequence[Sequence[str]]) -> str:
    """The scheme of well-formed tags (see :func:`fault_of`): ``iob1``, ``iob2`` or ``bioes``."""
    begins: Counter[str] = Counter()
    for tags in sentences:
        before = OUTSIDE
        for tag in tags:
            if tag != OUTSIDE:
                if tag[0] not in "BI":
                    return "bioes"
                if tag[2:] != before[2:]:
                    begins[tag[0]] += 1
            before = tag
    return "iob1" if begins["I"] > begins["B"] else "iob2"


def to_iob2(tags: Sequence[str], scheme: str, counts: Counter[str] | None = None) -> list[str]:
    """The same entities in strict IOB2.

    What does not fit the scheme is read as in any scheme: ``B-`` begins an entity, ``I-`` goes on with one of its type
    and else begins one.

    Args:
        tags: without faults (:func:`fault_of`).
        scheme: ``iob1``, ``iob2``, ``bioes`` or ``io``.
        counts: gains ``converted``, tags that are written otherwise in IOB2, and ``ill_formed``, those that the scheme
            forbids where they stand.
    """
    found: list[str] = []
    open_type, before, misplaced = "", "", 0  # the entity that may go on; the type of the tag before
    for tag in tags:
        if scheme == "io" and tag != OUTSIDE:
            tag = f"I-{tag.removeprefix('I-')}"
        if tag == OUTSIDE:
            misplaced += scheme == "bioes" and bool(open_type)
            found.append(tag)
            open_type = before = ""
            continue
        prefix, kind = tag[0], tag[2:]
        goes_on = prefix in _GO_ON and kind == open_type
        match scheme:
            case "iob1":
                misplaced += prefix == "B" and kind != before
            case "iob2":
                misplaced += prefix == "I" and not goes_on
            case "bioes":
                misplaced += not goes_on if prefix in _GO_ON else bool(open_type)
        found.append(f"I-{kind}" if goes_on else f"B-{kind}")
        open_type, before = "" if prefix in _LAST else kind, kind
    misplaced += scheme == "bioes" and bool(open_type)
    if counts is not None:
        counts["ill_formed"] += misplaced
        counts["converted"] += sum(one != other for one, other in zip(tags, found, strict=True))
    return found


def entities(tags: Sequence[str]) -> Iterator[Entity]:
    """The entities of tags in strict IOB2."""
    begin = 0
    for index, tag in enumerate(tags):
        if tag[0] == "B":
            begin = index
        if tag != OUTSIDE and (index + 1 == len(tags) or tags[index + 1][0] != "I"):
            yield Entity(tag[2:], begin, index + 1)


def complete(tags: set[str]) -> set[str]:
    """``O``, and ``B-`` and ``I-`` of every type among tags in IOB2."""
    types = {tag[2:] for tag in tags if tag != OUTSIDE}
    return {OUTSIDE} | {f"{prefix}-{kind}" for prefix in "BI" for kind in types}


def legal(labels: Sequence[str]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which label may come first, bool [C], and which after which, bool [before, after]: those of strict IOB2."""
    begins = np.array([not label.startswith("I-") for label in labels])
    kinds = np.array([label[2:] if label != OUTSIDE else "" for label in labels])
    return begins, begins[None, :] | (kinds[:, None] == kinds[None, :])
