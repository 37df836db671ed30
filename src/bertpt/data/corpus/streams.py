"""Bytes out of files: unpacked when compressed, refused when they are not text.

What a file is decides its first bytes, never its name.
"""

from __future__ import annotations

import bz2
import itertools
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from bertpt.errors import RequestError

CHUNK_BYTES = 2**20
# One compressed chunk may unpack to a thousand times its size (zeros); small ones keep memory bounded.
_PACKED_BYTES = 2**14


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _zstd() -> _Unpacker:
    import zstandard  # only here and below: a machine that trains need not have it

    return zstandard.ZstdDecompressor().decompressobj()


def _faults(kind: str) -> tuple[type[Exception], ...]:
    """What unpacking damaged data raises."""
    if kind != "zstd":
        return zlib.error, OSError, lzma.LZMAError
    import zstandard

    return (zstandard.ZstdError,)


# bzip2's two forms: a block follows, or (an empty file) the end does. "BZh" alone could be text.
_PACKED: tuple[tuple[bytes, str, Callable[[], _Unpacker]], ...] = (
    (b"\x1f\x8b", "gzip", lambda: zlib.decompressobj(wbits=31)),
    *(
        (b"BZh%d%s" % (n, end), "bzip2", bz2.BZ2Decompressor)
        for n in range(1, 10)
        for end in (b"1AY&SY", b"\x17rE8P\x90")
    ),
    (b"\xfd7zXZ\x00", "xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)),
    (b"\x28\xb5\x2f\xfd", "zstd", _zstd),
)

_NOT_TEXT: tuple[tuple[int, bytes, str], ...] = (
    (0, b"PK\x03\x04", "a ZIP archive (or an Office document)"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (0, b"Rar!\x1a\x07", "a RAR archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"%PDF-", "a PDF document"),
    (0, b"{\\rtf", "an RTF document"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF87a", "a GIF image"),
    (0, b"GIF89a", "a GIF image"),
    (0, b"\x7fELF", "a program"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (0, b"PAR1\x15", "a Parquet file (its name must end in .parquet, or set format: parquet)"),
    (0, b"ARROW1\x00\x00", "an Arrow file"),
    (0, b"SQLite format 3\x00", "an SQLite database"),
    (0, b"\x04\x22\x4d\x18", "an LZ4 file"),
    (0, b"\x1f\x9d", "a file packed by compress (.Z)"),
)


def peek(chunks: Iterator[bytes], count: int) -> tuple[bytes, Iterator[bytes]]:
    """The first ``count`` bytes (less when there are no more), and chunks that begin with them again."""
    taken: list[bytes] = []
    size = 0
    while size < count and (chunk := next(chunks, None)) is not None:
        taken.append(chunk)
        size += len(chunk)
    return b"".join(taken)[:count], itertools.chain(taken, chunks)


def decompressed(source: Path | BinaryIO, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yield the bytes of a file or stream, unpacked when they are gzip, bzip2, xz or zstd.

    Raises:
        RequestError: the file cannot be read, or its compressed data is damaged, cut short or packed twice.
    """
    head, chunks = peek(_raw(source, name, chunk_bytes), 16)
    kind = packed_kind(head)
    if kind is None:
        yield from chunks
        return
    new = next(make for _, label, make in _PACKED if label == kind)
    head, chunks = peek(_unpack(chunks, kind, new, name), 16)
    if packed_kind(head) is not None:
        raise RequestError(f"{name}: packed twice ({packed_kind(head)} inside {kind}); unpack it once")
    yield from chunks


def packed_kind(head: bytes) -> str | None:
    """``"gzip"``, ``"bzip2"``, ``"xz"``, ``"zstd"``, or ``None``, by the first 10 bytes."""
    return next((label for magic, label, _ in _PACKED if head.startswith(magic)), None)


def _raw(source: Path | BinaryIO, name: str, chunk_bytes: int) -> Iterator[bytes]:
    try:
        if not isinstance(source, Path):
            while chunk := source.read(chunk_bytes):
                yield chunk
            return
        with source.open("rb") as file:
            state, done = os.fstat(file.fileno()), 0
            while chunk := file.read(chunk_bytes):
                done += len(chunk)
                yield chunk
    except OSError as error:
        raise RequestError(f"{name}: cannot be read: {error.strerror or error}") from error
    if stat.S_ISREG(state.st_mode) and done < state.st_size:
        raise RequestError(f"{name}: ended after {done} of {state.st_size} bytes: it changed while it was read")


def _unpack(chunks: Iterator[bytes], kind: str, new: Callable[[], _Unpacker], name: str) -> Iterator[bytes]:
    """Unpack one compressed stream after another until the input ends; zero padding between them is allowed."""
    unpacker, done = new(), 0
    for chunk in chunks:
        for start in range(0, len(chunk), _PACKED_BYTES):
            data = chunk[start : start + _PACKED_BYTES]
            while data:
                if unpacker.eof:
                    data = data.lstrip(b"\x00")
                    if not data:
                        break
                    unpacker = new()
                try:
                    out = unpacker.decompress(data)
                except _faults(kind) as error:
                    raise RequestError(
                        f"{name}: damaged {kind} data after {done} unpacked bytes ({error}); get the file again"
                    ) from error
                data = unpacker.unused_data if unpacker.eof else b""
                done += len(out)
                yield from (out[at : at + CHUNK_BYTES] for at in range(0, len(out), CHUNK_BYTES))
    if not unpacker.eof:
        raise RequestError(f"{name}: the {kind} file is cut short after {done} unpacked bytes; get the file again")


def refuse_binary(head: bytes, name: str) -> None:
    """Refuse a file whose first bytes are those of another format, or hold many control characters.

    Raises:
        RequestError: says what the file looks like.
    """
    kind = next((what for at, magic, what in _NOT_TEXT if head[at:].startswith(magic)), None)
    # Text has a handful of stray controls at most; UTF-16 without a mark is half zeros, random bytes have 10%.
    controls = len(head) - len(head.translate(None, bytes({*range(32)} - {*b"\b\t\n\v\f\r\x1b"})))
    if kind is None and controls >= 16 and controls >= 0.05 * len(head):
        even = head.count(0) >= 0.3 * len(head)
        kind = "binary" + (" (or UTF-16 without a byte order mark: convert it to UTF-8)" if even else "")
    if kind:
        raise RequestError(
            f"{name}: looks like {kind}, not text; leave it out (of a folder, by a pattern such as **/*.txt)"
        )
