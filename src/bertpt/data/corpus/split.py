"""Which documents are held out: those of smallest hash, so that the choice is stable and copies stay together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertpt.config.schema import Heldout
from bertpt.data.corpus.documents import Document, DocumentWriter, read_shard
from bertpt.data.corpus.gather import HASH_BYTES, HELDOUT, TRAIN, Gathered
from bertpt.data.corpus.near_duplicates import DocumentIndex
from bertpt.errors import RequestError
from bertpt.progress import counted


def distinct(source: Gathered) -> NDArray[np.bytes_]:
    """The different hashes of a source's documents, sorted."""
    unique: NDArray[np.bytes_] = np.unique(np.frombuffer(source.hashes, f"S{HASH_BYTES}"))
    return unique


def choose_heldout(
    sources: Sequence[Gathered], heldout: Heldout, can_give: Mapping[str, bool]
) -> dict[str, set[bytes]]:
    """Hashes of the held-out documents of each source.

    A source that gives its own keeps them. Of another, the documents whose hash is in the lowest ``share``
    of all possible ones are held out; when these are fewer than ``min_documents`` the next ones too, when more
    than ``max_documents`` only the lowest.

    Args:
        sources: what was read.
        heldout: the settings.
        can_give: whether a source of this label could state its own held-out documents (for the advice).

    Raises:
        RequestError: sources with fewer than twice ``min_documents`` different documents, one line each.
    """
    chosen, faults = {}, []
    for source in sources:
        if HELDOUT in source.sides:
            chosen[source.label] = {source.hash_of(i) for i, side in enumerate(source.sides) if side == HELDOUT}
            continue
        if TRAIN in source.sides:
            faults.append(f"{source.label}: its validation files hold no documents with text")
            continue
        unique = distinct(source)
        if len(unique) < 2 * heldout.min_documents:
            faults.append(_too_few(source, len(unique), heldout.min_documents, can_give[source.label]))
            continue
        bound = int(heldout.share * 2**64).to_bytes(8, "big")
        count = int(np.searchsorted(unique, np.bytes_(bound)))
        count = max(min(count, heldout.max_documents), heldout.min_documents)
        # NumPy drops trailing zero bytes of its strings.
        chosen[source.label] = {bytes(value).ljust(HASH_BYTES, b"\0") for value in unique[:count].tolist()}
    if faults:
        raise RequestError(faults)
    return chosen


def _too_few(source: Gathered, unique: int, minimum: int, can_give: bool) -> str:
    advice = [f"set corpus.heldout.min_documents={unique // 2}"] if unique >= 2 else []
    advice += ["hold out files of your own (validation: FILE)"] if can_give else []
    if unique < 2:
        advice.append("see that documents end where they should (documents: blank-line, heading, file or row)")
    found = counted(unique, "documents")
    if len(source) > unique:
        found = f"{counted(unique, 'documents that differ')} ({len(source):,} with copies)"
    return (
        f"{source.label}: {found}; holding out"
        f" corpus.heldout.min_documents={minimum} needs {2 * minimum}; {', or '.join(advice) or 'give more text'}"
    )


@dataclass(frozen=True, slots=True)
class _Placed:
    """A document that was read, and what decides on its side."""

    document: Document
    source: Gathered
    number: int  # among the documents of all sources, in the order of reading
    digest: bytes
    side: int


def _placed(shards: Sequence[Path], sources: Sequence[Gathered], *, remove: bool = False) -> Iterator[_Placed]:
    """The documents in order; each shard is removed once read, if asked."""
    by_label = {source.label: source for source in sources}
    position: Counter[str] = Counter()
    number = 0
    for shard in shards:
        for document in read_shard(shard):
            source, index = by_label[document.source], position[document.source]
            yield _Placed(document, source, number, source.hash_of(index), source.sides[index])
            position[document.source] += 1
            number += 1
        if remove:
            shard.unlink()


def index_heldout(
    shards: Sequence[Path], sources: Sequence[Gathered], chosen: Mapping[str, set[bytes]], index: DocumentIndex
) -> None:
    """Give the text of every held-out document to ``index``, each text once."""
    waiting = set().union(*chosen.values())
    for found in _placed(shards, sources):
        if found.digest in waiting:
            waiting.remove(found.digest)
            index.add(found.document.text)
        if not waiting:
            break


def _repeats(sources: Sequence[Gathered]) -> NDArray[np.bool_]:
    """Bool [documents of all sources]: True where the same text was read before, from any source."""
    hashes = np.frombuffer(b"".join(source.hashes for source in sources), f"S{HASH_BYTES}")
    repeats = np.ones(len(hashes), np.bool_)
    repeats[np.unique(hashes, return_index=True)[1]] = False
    return repeats


def write_split(
    shards: Sequence[Path],
    sources: Sequence[Gathered],
    chosen: Mapping[str, set[bytes]],
    to: Path,
    *,
    near: DocumentIndex | None = None,
    deduplicate: bool = False,
    within: DocumentIndex | None = None,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Part the documents in ``shards`` into ``train`` and ``heldout`` files; each shard is removed once read.

    No text stands on both sides, whatever its source: a held-out text is written once, its copies are
    dropped. Each source's counts gain ``documents`` (to train on), ``heldout``, ``heldout_copies``, ``overlap`` (copies
    of held-out texts taken out of ``train``), ``near_duplicates``, ``copies_dropped`` and ``near_copies_dropped``.

    Args:
        shards: the documents of all sources in order, unsplit.
        sources: what is known of them, in the same order.
        chosen: hashes of the held-out documents of each source.
        to: the folder to write to.
        near: training documents that resemble what it holds are dropped and counted.
        deduplicate: copies within ``train`` are dropped, all but the first; else they are kept.
        within: an empty index; documents that resemble an earlier one of ``train`` are dropped and counted.
        tick: called once for each document.
    """
    everywhere = set().union(*chosen.values())
    repeats = _repeats(sources) if deduplicate else None
    written: set[bytes] = set()
    with DocumentWriter(to, "train") as train, DocumentWriter(to, "heldout") as heldout:
        for found in _placed(shards, sources, remove=True):
            tick()
            counts, document = found.source.counts, found.document
            if found.digest not in everywhere:
                if repeats is not None and repeats[found.number]:
                    counts["copies_dropped"] += 1
                elif near is not None and near.resembles(document.text):
                    counts["near_duplicates"] += 1
                elif within is not None and within.resembles_or_add(document.text):
                    counts["near_copies_dropped"] += 1
                else:
                    train.add(document)
                    counts["documents"] += 1
            elif found.side == TRAIN or found.digest not in chosen[found.source.label]:
                counts["overlap"] += 1
            elif found.digest in written:
                counts["heldout_copies"] += 1
            else:
                written.add(found.digest)
                heldout.add(document)
                counts["heldout"] += 1
