"""What ``download`` tells people: what will be read, what was found, what is likely wrong with it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertpt.config.schema import AnySource, FilesSource, HubSource
from bertpt.data.corpus.cached import is_cached, stated_bytes, to_download
from bertpt.data.corpus.gather import HELDOUT, Gathered
from bertpt.data.corpus.sources import local_files
from bertpt.errors import BertptError
from bertpt.progress import counted

_WARN_SHARE = 0.1
_UNPACKED = 2.5  # text beside the same text in Parquet with zstd
CHANGES = {
    "dropped_empty": "empty documents dropped",
    "dropped_short": "documents below min_sentences dropped",
    "overlap": "copies of held-out documents dropped from training",
    "near_duplicates": "near-duplicates of held-out documents dropped from training",
    "copies_dropped": "copies within the training documents dropped",
    "near_copies_dropped": "near-duplicates within the training documents dropped",
    "below_min_letters": "documents below min_letters dropped",
    "above_max_letters": "documents above max_letters dropped",
    "boilerplate_lines": "lines that stand in more than max_line_documents documents removed",
    "boilerplate_documents": "documents of nothing but such lines dropped",
    "heldout_copies": "copies of held-out documents dropped",
    "replaced": "bytes that are not UTF-8 replaced",
    "controls": "control characters replaced by spaces",
    "surrogates": "lone surrogates replaced",
    "byte_order_marks": "byte order marks removed",
}
"""What is counted of a source when documents or letters are dropped or changed, in words."""


def announce(sources: Mapping[str, AnySource], downloads: Path) -> list[str]:
    """Lines for what will be read and how large it is, by label; ``downloads`` holds what was fetched before."""
    lines = []
    for label, source in sources.items():
        if isinstance(source, FilesSource):
            # A folder that is its own label is named once.
            lines += [f"{label}: {line.removeprefix(f'{label}: ')}" for line in local_files.describe(source)]
        else:
            keys = ("package", "dataset", "url", "path")
            place = next((f" {value}" for key in keys if (value := getattr(source, key, None))), "")
            size = to_download(source, downloads)
            what = "documentation texts of this Python" if source.kind == "docstrings" else f"{source.kind}{place}"
            lines.append(f"{label}: {what}{f', {size} to download' if size else ''}")
    return lines


def check_space(directory: Path, sources: Mapping[str, AnySource], downloads: Path, most: int | None = None) -> None:
    """Refuse to start when the disk of ``directory`` has no room for what is read.

    Local files count by their sizes, others by the size that the configuration states: what is to be downloaded, the
    unpacked table that ``datasets`` makes of a data set, and the documents.

    Args:
        directory: where the documents will lie.
        sources: by label.
        downloads: holds what was fetched before.
        most: bytes of text that are taken of each source.

    Raises:
        BertptError: names the estimate and the space left.
    """
    needed = 0.0
    for source in sources.values():
        fetched, documents = _room(source, is_cached(source, downloads))
        needed += fetched + min(documents, documents if most is None else most)
    where = directory
    while not where.exists():
        where = where.parent
    free = shutil.disk_usage(where).free
    if needed > free:
        raise BertptError(
            f"{directory}: about {local_files.human_size(needed)} needed, {local_files.human_size(free)} free;"
            " choose a larger disk with --data-dir, or less text with corpus.limit.bytes"
        )


def _room(source: AnySource, cached: bool) -> tuple[float, float]:
    """Bytes on disk for what is fetched of a source, and for its documents (about as large as a packed download)."""
    if isinstance(source, FilesSource):
        listing = local_files.list_files(source)
        # Text packs to 0.3 to 0.4 of its size; what is already packed stays about as large.
        sizes = (file.size * (1.0 if local_files.is_packed(file) else 0.4) for file in listing.files + listing.heldout)
        return 0.0, sum(sizes)
    stated = stated_bytes(source)
    if cached or (isinstance(source, HubSource) and source.streaming):
        return 0.0, stated
    return stated * (1.0 + _UNPACKED * isinstance(source, HubSource)), stated


def warnings(source: Gathered, distinct: int, by_blank_line: bool, lines_are_sentences: bool) -> list[str]:
    """Lines for what is likely a mistake in the corpus: lost or needless blank lines, repeated text.

    Args:
        source: a source that was read.
        distinct: how many different documents it has.
        by_blank_line: its documents end at blank lines.
        lines_are_sentences: the corpus has one sentence on each line.
    """
    total, one_line, found = len(source), source.counts["one_line"], []
    single = one_line if lines_are_sentences else source.counts["one_sentence"]
    if single > total / 2:
        cause = (
            "a blank line after every sentence; leave one between documents only"
            if by_blank_line
            else "rows that are sentences; documents: group, heading or blank-line joins them"
        )
        found.append(
            f"{single / total:.0%} of {total:,} documents are a single sentence, so no sentence has a next one and"
            f" every next-sentence label would be 'random'; likely cause: {cause}"
        )
    elif by_blank_line and one_line > total / 2:
        found.append(
            f"{one_line / total:.0%} of {total:,} documents are a single line; if blank lines part paragraphs here,"
            " set documents: file or heading"
        )
    if sum(side != HELDOUT for side in source.sides) == 1:
        found.append(
            "only one document to train on: a random next sentence needs another one; were the blank lines"
            " between documents lost? documents: heading finds them by their first line, pairs.rule=none"
            " trains without pairs"
        )
    if (copies := 1 - distinct / total) > _WARN_SHARE:
        found.append(f"{copies:.0%} of the documents repeat another one word for word")
    if source.repeated.share > _WARN_SHARE:
        found.append(
            f"{source.repeated.share:.0%} of the lines repeat another line; was the text cleaned after scraping?"
        )
    return [f"{source.label}: warning: {line}" for line in found]


def ends_at_blank_lines(source: AnySource) -> bool:
    """Whether documents of this source end at blank lines, by its settings or by ``auto``."""
    if not isinstance(source, FilesSource) or source.documents != "auto":
        return getattr(source, "documents", None) == "blank-line"
    files = local_files.list_files(source).files
    return len(files) == 1 and local_files.format_of(files[0], source) == "text"


def counts_of(source: Gathered, unique: int) -> dict[str, Any]:
    """A source's part of the manifest; ``unique`` is its number of different documents."""
    read = {key: count for key, count in sorted(source.counts.items()) if count}
    return {
        **{key: source.counts[key] for key in ("documents", "heldout", "lines", "text_bytes")},
        **read,
        "median_lines": source.median_lines,
        "duplicates": len(source) - unique,
        "repeated_lines_share": round(source.repeated.share, 4),
    }


def report(source: Gathered) -> str:
    """One line: what was kept, and what was dropped or changed."""
    counts = source.counts
    kept = counts["documents"] + counts["heldout"]
    line = (
        f"{source.label}: {counted(kept, 'documents')} ({counts['heldout']:,} held out),"
        f" {counted(counts['lines'], 'lines')}, {local_files.human_size(counts['text_bytes'])},"
        f" median {source.median_lines:g} lines per document"
    )
    return "; ".join([line, *(counted(counts[key], note) for key, note in CHANGES.items() if counts[key])])
