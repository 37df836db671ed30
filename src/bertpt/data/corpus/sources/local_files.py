"""Which local files a source means: a file, a folder or a pattern; their formats, sizes and fingerprint."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertpt.config.schema import FilesSource
from bertpt.errors import RequestError
from bertpt.files import fingerprint, sha256_file
from bertpt.progress import counted

Format = Literal["text", "jsonl", "csv", "tsv", "parquet"]

_PACKED_ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
# What lies beside a corpus and is not of it. JSON counts only when the source's format is jsonl.
_SIDE_FILE = re.compile(
    r"(readme|provenance|licen[sc]e|copying|notice|changelog|sha\d+sums?|md5sums?)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to read: its place, its name relative to the source's folder, its size in bytes."""

    path: Path
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a source in reading order, and the names that were left out."""

    files: list[LocalFile]
    heldout: list[LocalFile]
    skipped: list[str]


def list_files(source: FilesSource) -> Listing:
    """The files of ``path`` and ``validation``, each sorted by name; a held-out file is not in ``path``'s.

    Raises:
        RequestError: a place does not exist, holds no files, or is no regular file.
    """
    heldout, skipped = _find(source.validation, source) if source.validation is not None else ([], [])
    found, more_skipped = _find(source.path, source)
    taken = {os.path.realpath(file.path) for file in heldout}
    files = [file for file in found if os.path.realpath(file.path) not in taken]
    if not files:
        raise RequestError(f"{source.path}: all files are held out by validation: {source.validation}")
    return Listing(files, heldout, sorted({*skipped, *more_skipped}))


def format_of(file: LocalFile, source: FilesSource) -> Format:
    """The stated format, or by the ending with ``.gz`` and the like taken off.

    Raises:
        RequestError: a ``.json`` file, which could be JSON lines or one JSON value.
    """
    if source.format != "auto":
        return source.format
    ending = Path(_unpacked_name(file.path.name)).suffix.lower()
    if ending == ".json":
        raise RequestError(f"{file.path}: set format: jsonl (one object per line) or format: text to read it")
    return _ENDINGS.get(ending, "text")


def is_packed(file: LocalFile) -> bool:
    """Whether the file's name says that it is compressed (for estimates only)."""
    return file.path.suffix.lower() in (*_PACKED_ENDINGS, ".parquet", ".pq")


def fingerprint_files(source: FilesSource) -> str:
    """Changes when a name (relative to the folder) or the content of any file does; holds no absolute path.

    Raises:
        RequestError: as :func:`list_files`, or a file cannot be read.
    """
    listing = list_files(source)
    return fingerprint({"kind": "files", "files": _hashes(listing.files), "heldout": _hashes(listing.heldout)})


def describe(source: FilesSource) -> list[str]:
    """Lines that say what will be read: number of files, bytes, the first five, and what is left out."""
    listing = list_files(source)
    lines = [_summary(source.path, listing.files)]
    if listing.heldout:
        lines.append(_summary(f"{source.validation} (held out)", listing.heldout))
    if listing.skipped:
        lines.append(
            f"left out {counted(len(listing.skipped), 'hidden or side files')}: {_first(listing.skipped)}"
            " (path: with a file's own name reads it)"
        )
    return lines


def human_size(size: float) -> str:
    """Bytes for people: ``"1.5 MB"`` (powers of 1000)."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _first(names: list[str], count: int = 5) -> str:
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")


def _summary(place: str, files: list[LocalFile]) -> str:
    total = human_size(sum(file.size for file in files))
    return (
        f"{place}: {counted(len(files), 'files')}, {total}:"
        f" {_first([f'{file.name} ({human_size(file.size)})' for file in files])}"
    )


def _hashes(files: list[LocalFile]) -> list[list[str]]:
    try:
        return [[file.name, sha256_file(file.path)] for file in files]
    except OSError as error:
        raise RequestError(f"{error.filename}: cannot be read: {error.strerror or error}") from error


def _find(place: str, source: FilesSource) -> tuple[list[LocalFile], list[str]]:
    try:
        path = Path(place).expanduser()
    except RuntimeError as error:  # ~nobody
        raise RequestError(f"{place}: {error}") from error
    if path.is_dir():
        candidates, root = _walk(path), path
    elif path.is_file():
        return [_file(path, path.parent)], []
    elif glob.has_magic(str(path)):
        root = _fixed_part(path)
        try:
            candidates = (match for match in list(root.glob(str(path.relative_to(root)))) if not match.is_dir())
        except ValueError as error:
            raise RequestError(f"{place}: {error}") from error
    else:
        reason = "not a regular file" if path.exists() else "no such file or folder"
        raise RequestError(
            f"{place}: {reason}; corpus.sources path: takes a file, a folder or a pattern like texts/**/*.txt"
        )
    files, skipped = [], []
    for candidate in candidates:
        if _left_out(candidate.relative_to(root), source):
            skipped.append(_name(candidate, root))
        else:
            files.append(_file(candidate, root))
    if not files:
        but = f" (left out: {_first(sorted(skipped))})" if skipped else ""
        raise RequestError(f"{place}: no files to read here{but}")
    return sorted(files, key=lambda file: file.name), sorted(skipped)


def _walk(folder: Path) -> Iterator[Path]:
    """All files below a folder, through links too; a link back to a folder already seen is not followed."""
    seen = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        yield from (Path(parent, name) for name in names)


def _fixed_part(pattern: Path) -> Path:
    fixed: list[str] = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed)


def _left_out(relative: Path, source: FilesSource) -> bool:
    name = _unpacked_name(relative.name).lower()
    return (
        any(part.startswith(".") for part in relative.parts)
        or _SIDE_FILE.match(name) is not None
        or (name.endswith(".json") and source.format != "jsonl")
    )


def _unpacked_name(name: str) -> str:
    return Path(name).stem if Path(name).suffix.lower() in _PACKED_ENDINGS else name


def _name(path: Path, root: Path) -> str:
    # The bytes of a name are the same under every locale; how Python shows them is not.
    return os.fsencode(path.relative_to(root).as_posix()).decode("utf-8", "replace")


def _file(path: Path, root: Path) -> LocalFile:
    try:
        facts = path.stat()
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(facts.st_mode):  # a pipe, a socket or a device never ends
        raise RequestError(f"{path}: not a regular file; remove it, or name the others by a pattern")
    return LocalFile(path, _name(path, root), facts.st_size)
