"""What a source of documents gets, gives and reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from bertpt.config.schema import AnySource
from bertpt.errors import BertptError


class SourceUnreachable(BertptError):
    """A package index or hub cannot be reached; ``corpus.fallback`` may stand in."""


@dataclass(frozen=True, slots=True)
class RawDocument:
    r"""A document as its source gives it: lines separated by ``\n``, not yet cleaned.

    ``heldout`` is ``None`` where the split is ours to make, else the source's own choice. A source that
    holds out documents of its own yields them first, so that a limit can end the reading.
    """

    text: str
    name: str
    heldout: bool | None = None


@dataclass(slots=True)
class Reading:
    """One reading of one source: where fetched files are kept, how to treat bad bytes, and the counts."""

    downloads: Path
    encoding_errors: str = "strict"
    counts: Counter[str] = field(default_factory=Counter)
    say: Callable[[str], None] = lambda message: None
    max_documents: int | None = None


def source_labels(sources: Sequence[AnySource]) -> list[str]:
    """A label for each source, all different: its name, or made from its place."""
    labels: list[str] = []
    for source in sources:
        place = source.name or getattr(source, "dataset", None) or getattr(source, "package", "").partition("==")[0]
        place = place or PurePath(getattr(source, "path", None) or "").stem
        label = base = re.sub(r"[^\w.-]+", "-", place).strip("-._") or source.kind
        number = 1
        while label in labels:
            number += 1
            label = f"{base}-{number}"
        labels.append(label)
    return labels
