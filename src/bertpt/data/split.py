"""Which documents are held out: those of smallest hash, so that the choice is stable and copies stay together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bertpt.config.schema import Heldout
from bertpt.data.documents import DocumentWriter, read_shard
from bertpt.data.gather import HASH_BYTES, HELDOUT, TRAIN, Gathered
from bertpt.errors import RequestError


def distinct(source: Gathered) -> np.ndarray[tuple[int], np.dtype[np.bytes_]]:
    """The different hashes of a source's documents, sorted."""
    unique: np.ndarray[tuple[int], np.dtype[np.bytes_]] = np.unique(np.frombuffer(source.hashes, f"S{HASH_BYTES}"))
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
    copies = f" that differ ({len(source)} with copies)" if len(source) > unique else ""
    return (
        f"{source.label}: {unique} document{'s' * (unique != 1)}{copies}; holding out"
        f" corpus.heldout.min_documents={minimum} needs {2 * minimum}; {', or '.join(advice) or 'give more text'}"
    )


def write_split(
    shards: Sequence[Path], sources: Sequence[Gathered], chosen: Mapping[str, set[bytes]], to: Path
) -> None:
    """Part the documents in ``shards`` into ``train`` and ``heldout`` files; each shard is removed once read.

    No text stands on both sides, whatever its source: a held-out text is written once, its copies are
    dropped. Copies within ``train`` are kept. Each source's counts gain ``documents`` (to train on), ``heldout``,
    ``heldout_copies`` and ``overlap`` (copies of held-out texts taken out of ``train``).
    """
    by_label = {source.label: source for source in sources}
    everywhere = set().union(*chosen.values())
    written: set[bytes] = set()
    position: Counter[str] = Counter()
    with DocumentWriter(to, "train") as train, DocumentWriter(to, "heldout") as heldout:
        for shard in shards:
            for document in read_shard(shard):
                source = by_label[document.source]
                index = position[document.source]
                position[document.source] += 1
                digest, side = source.hash_of(index), source.sides[index]
                if digest not in everywhere:
                    train.add(document)
                    source.counts["documents"] += 1
                elif side == TRAIN or digest not in chosen[source.label]:
                    source.counts["overlap"] += 1
                elif digest in written:
                    source.counts["heldout_copies"] += 1
                else:
                    written.add(digest)
                    heldout.add(document)
                    source.counts["heldout"] += 1
            shard.unlink()
