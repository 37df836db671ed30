"""Lines that stand in many documents (menus, licences, "Share this"): found by exact count and taken out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bertpt.data.corpus.documents import Document, DocumentWriter, read_shard
from bertpt.data.corpus.gather import Gathered, Keeps, note
from bertpt.errors import RequestError

_CELLS = 2**24  # 64 MiB of counts, whatever the corpus
_BATCH = 100_000  # lines
_RECOUNTED = ("lines", "text_bytes", "one_line", "one_sentence")


@dataclass(slots=True)
class Removed:
    """What was taken out: how many different lines, and those of most documents."""

    different: int = 0
    documents: Counter[str] = field(default_factory=Counter)

    def examples(self, count: int = 5) -> dict[str, int]:
        """The lines that stood in most documents."""
        return dict(sorted(self.documents.items(), key=lambda item: (-item[1], item[0]))[:count])


def repeated_lines(shards: Sequence[Path], most: int) -> dict[int, int]:
    """Hashes of the lines that stand in more than ``most`` documents, and in how many.

    A table of fixed size counts all lines, several in a cell: none that repeats enough is missed. Those whose cell is
    full enough are then counted one by one, so the answer is exact; in memory are the table and these lines' hashes.
    """
    cells = np.zeros(_CELLS, np.uint32)
    for hashes in _batches(shards):
        np.add.at(cells, hashes & (_CELLS - 1), 1)
    counts: Counter[int] = Counter()
    for hashes in _batches(shards):
        counts.update(hashes[cells[hashes & (_CELLS - 1)] > most].tolist())
    return {line: count for line, count in counts.items() if count > most}


def _batches(shards: Sequence[Path]) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The hashes of lines, each once for a document, some hundred thousand at a time."""
    waiting: list[int] = []
    for shard in shards:
        for document in read_shard(shard):
            waiting += {hash(line) for line in document.text.split("\n")}
            if len(waiting) >= _BATCH:
                yield np.array(waiting, np.int64)
                waiting = []
    yield np.array(waiting, np.int64)


def without_repeated_lines(
    shards: Sequence[Path],
    sources: Sequence[Gathered],
    most: int,
    keeps: Keeps,
    to: Path,
    tick: Callable[[], None] = lambda: None,
) -> tuple[list[Path], list[Gathered], Removed]:
    """Write the documents again, less the lines that stand in more than ``most`` documents of the corpus.

    Each source's counts gain ``boilerplate_lines`` (taken out) and ``boilerplate_documents`` (nothing was left); what
    becomes too short is dropped and counted as in the first reading. Documents are hashed anew, so that copies and the
    held-out side are chosen by the text that is left.

    Args:
        shards: the documents of all sources in order.
        sources: what is known of them.
        most: documents that a line may stand in.
        keeps: which documents are kept.
        to: an empty folder.
        tick: called once for each document.

    Raises:
        RequestError: nothing of a source is left.
    """
    repeated = repeated_lines(shards, most)
    removed = Removed(len(repeated))
    by_label = {source.label: source for source in sources}
    renewed = {source.label: _renewed(source) for source in sources}
    position: Counter[str] = Counter()
    with DocumentWriter(to, "all") as writer:
        for shard in shards:
            for document in read_shard(shard):
                tick()
                side = by_label[document.source].sides[position[document.source]]
                position[document.source] += 1
                after = renewed[document.source]
                lines = _kept_lines(document.text, repeated, after.counts, removed)
                text = "\n".join(lines)
                if reason := ("boilerplate_documents" if not lines else keeps.refuses(lines, text)):
                    after.counts[reason] += 1
                    continue
                data = text.encode()
                writer.add(Document(text, document.source, document.name), len(data))
                note(after, side, lines, data)
            shard.unlink()
    for source in renewed.values():
        if not len(source):
            raise RequestError(
                f"{source.label}: no document is left without the lines that stand in more than {most} documents;"
                " set corpus.max_line_documents to more"
            )
    return writer.shards, list(renewed.values()), removed


def _kept_lines(text: str, repeated: dict[int, int], counts: Counter[str], removed: Removed) -> list[str]:
    kept = []
    for line in text.split("\n"):
        if (found := repeated.get(hash(line))) is None:
            kept.append(line)
            continue
        counts["boilerplate_lines"] += 1
        if len(removed.documents) < 1000 or line in removed.documents:
            removed.documents[line] = found
    return kept


def _renewed(source: Gathered) -> Gathered:
    """The source as if unread, with what reading has counted."""
    counts = Counter({key: count for key, count in source.counts.items() if key not in _RECOUNTED})
    return Gathered(source.label, counts=counts)
