"""Text shipped inside a pinned package: fetched by pip, checked by its hash, one member read, nothing installed."""

from __future__ import annotations

import difflib
import io
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertpt.config.schema import WheelSource
from bertpt.data.corpus.cached import cached_wheel
from bertpt.data.corpus.documents import documents_by_blank_line
from bertpt.data.corpus.lines import read_lines
from bertpt.data.corpus.sources.base import RawDocument, Reading, SourceUnreachable
from bertpt.data.corpus.sources.verses import read_verses
from bertpt.data.corpus.sources.wikidump import read_dump
from bertpt.errors import BertptError, RequestError
from bertpt.files import fingerprint, named_write_faults, scratch_directory, sha256_file

_LARGEST_MEMBER = 2 << 30  # bytes
# No build backend ever runs; two tries of 15 s let an offline machine fail within a minute.
_PIP_OPTIONS = (
    *("--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
    *("--retries", "2", "--timeout", "15", "--only-binary", ":all:"),
)
_UNREACHABLE = re.compile(
    r"No matching distribution|Could not find a version|connection|timed? ?out|resolution|resolve host|"
    r"network|HTTP error|\b[45]\d\d (?:Client|Server) Error|SSL|certificate|proxy|Max retries|Retrying",
    re.IGNORECASE,
)


def _run_pip(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run ``python -m pip`` with this interpreter; pip's words are collected, not shown."""
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)


def _pip_failure(source: WheelSource, run: subprocess.CompletedProcess[str]) -> BertptError:
    output = f"{run.stdout}\n{run.stderr}"
    if "No module named pip" in output:
        return BertptError(
            f"{source.package}: {sys.executable} has no pip to fetch it with; type: {sys.executable} -m ensurepip"
            " (or make the environment with pip, e.g. uv venv --seed)"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip() and "[notice]" not in line]
    errors = [line for line in lines if line.startswith("ERROR")]
    last = (errors or lines or [f"pip ended with {run.returncode}"])[-1].removeprefix("ERROR: ")
    reason = re.search(r"(?:Failed to establish|Failed to resolve|Connection refused|timed out)[^'\")]*", output)
    if reason and reason.group() not in last:
        last = f"{last} ({reason.group().strip()})"
    if re.search(r"No space left|Permission denied|Read-only file system", output):
        return BertptError(f"{source.package}: pip download failed: {last}")
    kind = SourceUnreachable if _UNREACHABLE.search(output) else BertptError
    return kind(f"{source.package}: pip download failed: {last}")


def fetch_wheel(source: WheelSource, reading: Reading) -> Path:
    """The wheel in ``reading.downloads``; fetched unless it lies there with the right hash.

    Raises:
        SourceUnreachable: the package index cannot be reached or does not have the package.
        BertptError: there is no pip, pip failed otherwise, or the hash differs (the file is removed).
    """
    with named_write_faults(reading.downloads):
        reading.downloads.mkdir(parents=True, exist_ok=True)
        cached = cached_wheel(source, reading.downloads)
        if cached:
            return cached
        reading.say(f"downloading {source.package}" + (f" ({source.size})" if source.size else ""))
        with scratch_directory(reading.downloads / source.package) as aside:
            run = _run_pip(["download", "--no-deps", "-d", str(aside), *_PIP_OPTIONS, *source.pip_args, source.package])
            wheels = sorted(aside.glob("*.whl"))
            if run.returncode or not wheels:
                raise _pip_failure(source, run)
            return _keep(source, wheels[0], reading.downloads)


def _keep(source: WheelSource, wheel: Path, downloads: Path) -> Path:
    found = sha256_file(wheel)
    if found != source.sha256:
        raise BertptError(
            f"{source.package}: {wheel.name} has sha256 {found}, the config expects {source.sha256};"
            " the file was removed"
        )
    return wheel.replace(downloads / wheel.name)


def read_member(wheel: Path, member: str) -> bytes:
    """The bytes of one member of a wheel.

    Raises:
        RequestError: no such member (the nearest names are given), or more than 2 GiB.
        BertptError: the wheel is damaged.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if member not in names:
                base = member.rpartition("/")[2]
                same = [name for name in names if name.rpartition("/")[2] == base]
                near = same or difflib.get_close_matches(member, names, n=3, cutoff=0.4) or names[:3]
                raise RequestError(f"{wheel.name}: no member {member!r}; nearest: {', '.join(near)}")
            size = archive.getinfo(member).file_size
            if size > _LARGEST_MEMBER:
                raise RequestError(f"{wheel.name}: member {member!r} has {size:,} bytes; at most {_LARGEST_MEMBER:,}")
            return archive.read(member)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise BertptError(f"{wheel.name}: not readable as a wheel: {error}") from error


def fingerprint_inputs(source: WheelSource, reading: Reading) -> str:
    """The pinned hash with what is read and how; nothing is fetched."""
    return fingerprint({"kind": "wheel", "sha256": source.sha256, "member": source.member, "reader": source.reader})


def read(source: WheelSource, reading: Reading) -> Iterator[RawDocument]:
    """Fetch the wheel if need be and yield the documents of its member.

    Raises: as ``fetch_wheel``, ``read_member`` and the member's reader.
    """
    stream = io.BytesIO(read_member(fetch_wheel(source, reading), source.member))
    name = source.member.rpartition("/")[2]
    if source.reader == "wikidump":
        yield from read_dump(stream, name, reading)
        return
    lines = read_lines(stream, name, reading.encoding_errors, reading.counts)
    if source.reader == "verses":
        yield from read_verses("\n".join(lines), name)
    else:
        yield from documents_by_blank_line(lines, name)
