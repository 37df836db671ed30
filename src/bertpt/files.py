"""Writing so that a half-written file or directory never carries its final name, and manifests.

Every stage writes aside, syncs, renames, and records what it read and made in ``manifest.json``,
which is the last file written: a directory without one is unfinished.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from bertpt import signals
from bertpt.errors import BertptError, RequestError
from bertpt.locks import claimed, claimed_file

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
OWN_HASH = "manifest_sha256"  # of all else in a manifest, so that no changed byte of it passes


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(value: Any) -> str:
    """Hex SHA-256 of plain data (dicts, lists, numbers, strings), independent of key order."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make a rename inside ``path`` durable. Windows cannot open directories; there it is a no-op."""
    if os.name == "posix":
        _sync(path)


# Faults of the place that is written to; others (a source that cannot be read) are not ours to rename.
_WRITE_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EIO}
_WRITE_FAULTS |= {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG}


@contextlib.contextmanager
def named_write_faults(path: Path) -> Iterator[None]:
    """Turn a full, read-only or forbidden disk into one line that names the path and the space left."""
    try:
        yield
    except OSError as error:
        if error.errno not in _WRITE_FAULTS:
            raise
        where = path
        while not where.exists() and where != where.parent:
            where = where.parent
        left = shutil.disk_usage(where).free / 2**20
        raise BertptError(f"{path}: cannot write: {error.strerror or error} ({left:,.0f} MiB free)") from error


def write_file(path: Path, content: str | bytes | memoryview, *, sync: bool = True) -> None:
    """Write a whole file aside, sync it and rename it to ``path``.

    Without ``sync`` it survives the end of any process, and not a loss of power: for what is checked when it is read.
    """
    with named_write_faults(path):
        with claimed_file(path) as aside:
            aside.write(content.encode("utf-8") if isinstance(content, str) else content)
            aside.flush()
            if sync:
                os.fsync(aside.fileno())
            with signals.held():
                Path(aside.name).replace(path)
        if sync:
            sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write plain data as indented JSON, aside and renamed."""
    write_file(path, _json_text(value))


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """Read JSON; a fault names the file and line."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise RequestError(f"{path}: not readable as JSON: {error}") from error


@contextlib.contextmanager
def scratch_directory(place: Path) -> Iterator[Path]:
    """Yield an empty directory beside ``place``, which is removed afterwards, with those that killed processes left.

    Raises:
        BertptError: another process works there, or nothing can be written.
    """
    aside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with named_write_faults(place), claimed(place, aside):
            yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def staged_directory(final: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield an empty directory beside ``final``; on success sync its files and rename it to ``final``.

    An existing ``final`` is replaced only when the new one is complete. On any failure the
    directory aside is removed and ``final`` is as it was; what a killed process has left is removed too.

    Args:
        replace: false leaves a ``final`` that another process has made meanwhile.

    Raises:
        BertptError: another process is making ``final`` or, without ``replace``, has made it, or it cannot be written.
    """
    aside = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        with named_write_faults(final), claimed(final, aside):
            yield aside
            for path in aside.rglob("*"):
                if path.is_file():
                    _sync(path)
            sync_directory(aside)
            retired = final.with_name(f".{final.name}.{os.getpid()}.old")
            signals.check()
            with signals.held():
                if final.exists():
                    if not replace:
                        raise BertptError(f"{final}: another process has made it meanwhile; the same command goes on")
                    final.replace(retired)
                aside.replace(final)
                sync_directory(final.parent)
                shutil.rmtree(retired, ignore_errors=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_manifest(
    directory: Path, *, stage: str, key: str, inputs: Mapping[str, str], settings: Mapping[str, Any], counts: Any
) -> dict[str, Any]:
    """Hash every file of ``directory`` and write its manifest, last.

    Args:
        directory: the (staged) directory that the stage has filled.
        stage: the command that made it, e.g. ``"prepare"``.
        key: fingerprint of inputs and settings; a stage with an equal key need not run again.
        inputs: fingerprints of what was read, by name. No absolute path belongs here.
        settings: the settings that shaped the result.
        counts: plain data for the report: what was read, kept, dropped, changed.
    """
    from bertpt import __version__

    files = {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    manifest = {
        "format": FORMAT_VERSION,
        "stage": stage,
        "key": key,
        "fingerprint": fingerprint({"stage": stage, "files": {name: f["sha256"] for name, f in files.items()}}),
        "inputs": dict(inputs),
        "settings": dict(settings),
        "counts": counts,
        "files": files,
        "bertpt": __version__,
    }
    manifest[OWN_HASH] = fingerprint(manifest)
    write_json(directory / MANIFEST, manifest)
    return manifest


def _is_as_written(path: Path, manifest: dict[str, Any]) -> bool:
    """Whether no byte of a manifest was changed: its hash is right, and so is the white space, which has none."""
    own = {key: value for key, value in manifest.items() if key != OWN_HASH}
    return manifest[OWN_HASH] == fingerprint(own) and path.read_text(encoding="utf-8") == _json_text(manifest)


def _is_inside(name: str) -> bool:
    """Whether a name from a manifest stays in its folder."""
    path = PurePosixPath(name)
    return "\\" not in name and not path.is_absolute() and ".." not in path.parts and bool(path.parts)


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """The manifest of a finished directory; ``None`` when there is none.

    Raises:
        RequestError: the manifest is damaged, of another format version, or files are missing or
            of another size than it says.
    """
    if not (directory / MANIFEST).is_file():
        return None
    manifest = _known_manifest(directory)
    for name, facts in manifest["files"].items():
        file = directory / name
        size = file.stat().st_size if file.is_file() else None
        if size != facts["bytes"]:
            raise RequestError(
                f"{file}: {'missing' if size is None else f'{size} bytes'}, the manifest says {facts['bytes']} bytes;"
                f" remove {directory} and make it again"
            )
    return manifest


def _known_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    manifest = read_json(path)
    known = isinstance(manifest, dict) and manifest.get("format") == FORMAT_VERSION
    if not known or not isinstance(manifest.get("files"), dict):
        raise RequestError(f"{path}: format {FORMAT_VERSION} expected; remove {directory} and make it again")
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(f, dict) and {"bytes", "sha256"} <= set(f) for f in files.values()
    ):
        raise RequestError(f"{path}: damaged: it does not list files; remove {directory} and make it again")
    if OWN_HASH in manifest and not _is_as_written(path, manifest):
        raise RequestError(f"{path}: damaged: its own hash differs; remove {directory} and make it again")
    if outside := [name for name in files if not _is_inside(name)]:
        raise RequestError(f"{path}: names a file outside its folder: {outside[0]!r}")
    return dict(manifest)


def listed_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Bytes and SHA-256 of each file as the manifest says, whether or not the files are so.

    Raises:
        RequestError: the manifest is missing, damaged or of another format version.
    """
    return dict(_known_manifest(directory)["files"])


def faulty_files(
    directory: Path, listed: Mapping[str, Mapping[str, Any]], tick: Callable[[], None] = lambda: None
) -> Iterator[str]:
    """One line for each file that is missing, cannot be read, or differs from what the manifest says of it."""
    for name, facts in listed.items():
        path = directory / name
        try:
            size = path.stat().st_size
            found = sha256_file(path) if size == facts["bytes"] else ""
        except OSError as error:
            yield f"{path}: {'missing' if isinstance(error, FileNotFoundError) else error.strerror or error}"
        else:
            if size != facts["bytes"]:
                yield f"{path}: damaged: {size:,} bytes, the manifest says {facts['bytes']:,}"
            elif found != facts["sha256"]:
                yield f"{path}: damaged: SHA-256 {found[:16]}..., the manifest says {str(facts['sha256'])[:16]}..."
        tick()


def check_hashes(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Compare every file of a finished directory with its manifest: about a second for each GB.

    Raises:
        RequestError: a file is damaged; names it.
    """
    for name, facts in manifest["files"].items():
        try:
            found = sha256_file(directory / name)
        except OSError as error:
            raise RequestError(f"{directory / name}: cannot be read: {error.strerror or error}") from error
        if found != facts["sha256"]:
            raise RequestError(
                f"{directory / name}: damaged: its SHA-256 is not that of the manifest; remove {directory} and make it"
                " again"
            )
