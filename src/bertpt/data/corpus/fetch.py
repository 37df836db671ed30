"""Downloads one file over HTTP: resumed after a cut, checked by its hash, complete before it has its name."""

from __future__ import annotations

import http.client
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from bertpt import __version__
from bertpt.data.corpus.sources.base import SourceUnreachable
from bertpt.errors import BertptError, RequestError
from bertpt.files import named_write_faults, sha256_file

_CHUNK = 1 << 18
_TIMEOUT = 20.0  # seconds without a byte
_CUTS = 5  # cut connections in a row, none of which brought anything
_SAY_EVERY = 10.0  # seconds between progress lines


def _nothing(message: str) -> None:
    """Drop a progress line."""


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"


class _CutError(Exception):
    """The connection ended before the file did."""


def fetch(
    url: str, target: Path, *, sha256: str | None, size: str | None = None, say: Callable[[str], None] = _nothing
) -> Path:
    """Download ``url`` to ``target`` unless it lies there already with the right hash.

    What has come so far is kept as ``<target>.part``; the next call goes on from there, unless the server says (by
    ``ETag`` or ``Last-Modified``, kept as ``<target>.part.version``) that the content is another one now.

    Args:
        url: an http or https address.
        target: where the whole file is put.
        sha256: expected hash; without one the file is taken as it comes and its hash is said.
        size: size as stated by the config, said before the download starts.
        say: takes lines of progress.

    Raises:
        RequestError: the address is not http or https.
        SourceUnreachable: no connection, or it was cut again and again.
        BertptError: the server answered with an error, the disk is full, or the hash differs.
    """
    if not url.startswith(("http://", "https://")):
        raise RequestError(f"{url}: an http:// or https:// address is needed; for a local file use path")
    if target.is_file() and (sha256 is None or sha256_file(target) == sha256):
        return target
    part = target.with_name(target.name + ".part")
    say(f"downloading {url}" + (f" ({size})" if size else ""))
    with named_write_faults(part):
        part.parent.mkdir(parents=True, exist_ok=True)
        _complete(url, part, say)
    found = sha256_file(part)
    _version(part).unlink(missing_ok=True)
    if sha256 is not None and found != sha256:
        part.unlink()
        raise BertptError(f"{url}: sha256 {found}, expected {sha256}; the file was removed")
    if sha256 is None:
        say(f"{target.name}: sha256 {found} (put it into the config to pin the content)")
    part.replace(target)
    return target


def _complete(url: str, part: Path, say: Callable[[str], None]) -> None:
    """Fill ``part`` to the end of the file, over as many connections as bring something."""
    cuts = 0
    while True:
        before = part.stat().st_size if part.is_file() else 0
        try:
            _once(url, part, before, say)
            return
        except _CutError as cut:
            cuts = 0 if part.is_file() and part.stat().st_size > before else cuts + 1
            if cuts >= _CUTS:
                raise SourceUnreachable(f"{url}: {cut}; the same command goes on from {part.name}") from cut
            time.sleep(min(0.2 * 2**cuts, 5.0))


def _version(part: Path) -> Path:
    return part.with_name(part.name + ".version")


def _open(url: str, start: int, version: str) -> http.client.HTTPResponse:
    headers = {"User-Agent": f"bertpt/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version:
            headers["If-Range"] = version  # changed content comes whole
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - fetch takes http and https only
    response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    return response


def _once(url: str, part: Path, start: int, say: Callable[[str], None]) -> None:
    try:
        version = _version(part).read_text("latin-1") if start and _version(part).is_file() else ""
        response = _open(url, start, version)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            _after_416(url, part, start, str(error.headers.get("Content-Range", "")), say)
            return
        raise BertptError(f"{url}: the server answered {error.code} {error.reason}") from error
    except (http.client.HTTPException, ConnectionResetError) as error:
        raise _CutError(f"the connection was cut ({type(error).__name__})") from error
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise SourceUnreachable(f"{url}: cannot be reached: {reason}") from error
    with response:
        resumed = response.status == 206
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            part.unlink()
            raise _CutError("the server sent another part of the file than asked for")
        if not resumed:
            _keep_version(response, part)
        _copy(response, part, start if resumed else 0, say)


def _keep_version(response: http.client.HTTPResponse, part: Path) -> None:
    """What names this content; weak entity tags do not hold for parts (RFC 9110, section 13.1.5)."""
    tag = response.headers.get("ETag", "")
    version = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")
    _version(part).unlink(missing_ok=True)
    if version:
        _version(part).write_bytes(version.encode("latin-1", "replace"))


def _after_416(url: str, part: Path, start: int, content_range: str, say: Callable[[str], None]) -> None:
    """The part is as long as the file, then it is complete; else it belongs to another file: begin again."""
    total = re.fullmatch(r"bytes \*/(\d+)", content_range.strip())
    if total and int(total.group(1)) == start:
        return
    part.unlink()
    _once(url, part, 0, say)


def _copy(response: http.client.HTTPResponse, part: Path, start: int, say: Callable[[str], None]) -> None:
    length = response.headers.get("Content-Length")
    total = start + int(length) if length else None
    free = shutil.disk_usage(part.parent).free
    if total is not None and total - start > free:
        raise BertptError(f"{part}: {_megabytes(total - start)} to download, {_megabytes(free)} free")
    done, said = start, time.monotonic()
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        while True:
            try:
                block = response.read(_CHUNK)
            except (http.client.HTTPException, OSError) as error:
                raise _CutError(f"the connection was cut after {_megabytes(done)}") from error
            if not block:
                break
            file.write(block)
            done += len(block)
            if time.monotonic() - said > _SAY_EVERY:
                said = time.monotonic()
                say(f"  {_megabytes(done)}" + (f" of {_megabytes(total)}" if total else ""))
    if total is not None and done < total:
        raise _CutError(f"the connection was cut after {_megabytes(done)} of {_megabytes(total)}")
