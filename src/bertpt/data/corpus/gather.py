"""One source read to its end: lines cleaned, empty documents dropped, the rest hashed, counted and written."""

from __future__ import annotations

import hashlib
import re
import statistics
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from bertpt.config.schema import Limit
from bertpt.data.corpus.documents import Document, DocumentWriter
from bertpt.data.corpus.lines import clean_line, split_lines
from bertpt.data.corpus.sources.base import RawDocument, Reading
from bertpt.errors import RequestError

HASH_BYTES = 16  # of the SHA-256 of a document's text: two of 10^12 documents share it with probability 10^-15
OURS, TRAIN, HELDOUT = range(3)  # who decides on a document's side: we do, or its source did

_SENTENCE_END = re.compile(r"[.!?…]['\")\]”’»]*\s|[。！？।؟](?!$)")


class RepeatedLines:
    """Estimates the share of lines that repeat an earlier one, in bounded memory.

    Kept are the hashes in a slice of the hash space that halves whenever there are too many, so every
    distinct line is sampled with the same probability. A line that makes up much of the corpus may miss
    the slice; it is seen in the exact share of the part before the first halving.
    """

    def __init__(self, capacity: int = 200_000) -> None:
        self._capacity, self._bits = capacity, 0
        self._seen: Counter[int] = Counter()
        self._first = 0.0

    def add(self, line: str) -> None:
        """Count a line."""
        value = int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "big")
        if value & ((1 << self._bits) - 1):
            return
        self._seen[value] += 1
        if len(self._seen) > self._capacity:
            if not self._bits:
                self._first = self._sampled()
            self._bits += 1
            low = (1 << self._bits) - 1
            self._seen = Counter({value: count for value, count in self._seen.items() if not value & low})

    def _sampled(self) -> float:
        total = self._seen.total()
        return 1 - len(self._seen) / total if total else 0.0

    @property
    def share(self) -> float:
        """Repeated lines per line, 0 to 1."""
        return max(self._first, self._sampled())


class FrequentLines:
    """The lines that stand in most documents, in bounded memory (Misra and Gries 1982).

    Counts are exact until there are more than ``capacity`` different lines; then each may be too low by what
    ``missed`` says, and a line in more documents than that is never lost.
    """

    def __init__(self, capacity: int = 50_000) -> None:
        self._capacity = capacity
        self._counts: Counter[str] = Counter()
        self.missed = 0

    def add(self, lines: Iterable[str]) -> None:
        """Count a document's lines, each once."""
        self._counts.update(set(lines))
        while len(self._counts) > self._capacity:
            # All at once what the algorithm does step by step: as many as half of the lines fall out.
            low = int(statistics.median_low(self._counts.values()))
            self.missed += low
            self._counts = Counter({line: count - low for line, count in self._counts.items() if count > low})

    def most(self, count: int, least: int) -> dict[str, int]:
        """Up to ``count`` lines of at least ``least`` documents, most first."""
        found = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return {line: number for line, number in found[:count] if number >= least}


@dataclass(slots=True)
class Gathered:
    """What is known of a source's documents after reading: 16 bytes of hash, a side and a length for each."""

    label: str
    hashes: bytearray = field(default_factory=bytearray)
    sides: bytearray = field(default_factory=bytearray)
    line_counts: array[int] = field(default_factory=lambda: array("Q"))
    counts: Counter[str] = field(default_factory=Counter)
    repeated: RepeatedLines = field(default_factory=RepeatedLines)

    def __len__(self) -> int:
        return len(self.sides)

    def hash_of(self, index: int) -> bytes:
        """First 16 bytes of the SHA-256 of the text of document ``index``."""
        return bytes(self.hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES])

    @property
    def median_lines(self) -> float:
        """Median number of lines in a document."""
        return float(statistics.median(self.line_counts)) if self.line_counts else 0.0


@dataclass(frozen=True, slots=True)
class Keeps:
    """Which documents are kept, by their size after cleaning.

    Attributes:
        min_lines: lines that a document has at least.
        min_letters: characters that its text has at least.
        max_letters: and at most; ``None`` is no limit.
    """

    min_lines: int = 1
    min_letters: int = 0
    max_letters: int | None = None

    def refuses(self, lines: list[str], text: str) -> str | None:
        """What to count a document as that is not kept; ``None`` for one that is."""
        if len(lines) < self.min_lines:
            return "dropped_short" if lines else "dropped_empty"
        if len(text) < self.min_letters:
            return "below_min_letters"
        return "above_max_letters" if self.max_letters is not None and len(text) > self.max_letters else None


class _Limits:
    """Counts what was taken of each part (to train on, held out) against ``corpus.limit``."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.documents, self.bytes = Counter[bool](), Counter[bool]()
        self.closed: set[bool] = set()

    def take(self, heldout: bool, size: int) -> bool:
        """Whether a document of ``size`` bytes still fits; the first that does not closes its part."""
        if heldout in self.closed:
            return False
        if self.limit.bytes is not None and self.bytes[heldout] + size > self.limit.bytes:
            self.closed.add(heldout)
            return False
        self.documents[heldout] += 1
        self.bytes[heldout] += size
        if self.documents[heldout] == self.limit.documents:
            self.closed.add(heldout)
        return True


def gather(
    label: str,
    documents: Iterator[RawDocument],
    reading: Reading,
    writer: DocumentWriter,
    *,
    limit: Limit,
    keeps: Keeps = Keeps(),
    own_heldout: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> Gathered:
    """Read a source and write its cleaned documents in order.

    Args:
        label: of the source, for reports and the ``source`` column.
        documents: what the source yields.
        reading: whose counts gain those of cleaning.
        writer: gets every document that is kept.
        limit: applies to the documents to train on and to those the source holds out, each by itself.
        keeps: which documents are kept; the others are dropped and counted.
        own_heldout: the source holds out documents of its own, so reading goes on past a limit until
            they have come (sources yield them first).
        tick: called once for each document read.

    Raises:
        RequestError: as the source, or nothing is left.
    """
    result, limits = Gathered(label, counts=reading.counts), _Limits(limit)
    for raw in documents:
        tick()
        lines = [line for line in (clean_line(part, result.counts) for part in split_lines(raw.text)) if line]
        text = "\n".join(lines)
        if reason := keeps.refuses(lines, text):
            result.counts[reason] += 1
            continue
        data = text.encode()
        if limits.take(raw.heldout is True, len(data)):
            writer.add(Document(text, label, raw.name), len(data))
            note(result, OURS if raw.heldout is None else HELDOUT if raw.heldout else TRAIN, lines, data)
        if False in limits.closed and (not own_heldout or limits.documents[True]):
            break
    close = getattr(documents, "close", None)
    if close is not None:  # a limit ended the reading: let go of the files
        close()
    _refuse_nothing(result, limits)
    return result


def note(result: Gathered, side: int, lines: list[str], data: bytes) -> None:
    """Take in what is kept of a document: its side, its lines, and the UTF-8 of its text."""
    result.hashes += hashlib.sha256(data).digest()[:HASH_BYTES]
    result.sides.append(side)
    result.line_counts.append(len(lines))
    result.counts["lines"] += len(lines)
    result.counts["text_bytes"] += len(data)
    if len(lines) == 1:
        result.counts["one_line"] += 1
        result.counts["one_sentence"] += _SENTENCE_END.search(lines[0], 0, 2000) is None
    for line in lines:
        result.repeated.add(line)


def _refuse_nothing(result: Gathered, limits: _Limits) -> None:
    if len(result):
        return
    if limits.closed:
        raise RequestError(
            f"{result.label}: corpus.limit.bytes={limits.limit.bytes} is less than its first document; set more"
        )
    keys = ("dropped_empty", "dropped_short", "below_min_letters", "above_max_letters")
    dropped = ", ".join(
        f"{result.counts[key]} {key.replace('_', ' ')}" for key in keys if result.counts[key] or key in keys[:2]
    )
    raise RequestError(f"{result.label}: no documents with text ({dropped})")
