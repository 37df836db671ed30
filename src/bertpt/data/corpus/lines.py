"""Lines of text out of files: the reader that names file, line and byte when something is wrong.

Only LF, CRLF and CR end a line, so the number of lines is that of ``wc -l`` and a copy of a file with
other line ends gives the same lines. Memory is bounded by one block and one line, whatever the file
size; a line of more than 256 MiB is refused.
"""

from __future__ import annotations

import codecs
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from bertpt.data.corpus.streams import CHUNK_BYTES, decompressed, peek, refuse_binary
from bertpt.errors import RequestError

# The byte order mark of UTF-32-LE begins with that of UTF-16-LE, so the longer ones are tried first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
MAX_LINE_BYTES = 2**28  # no text has such a line; a few kilobytes of packed zeros do
_REPLACEMENT = "\ufffd"

# Control characters but tab, line and paragraph separators, zero-width space and byte order mark. The
# tokenizer deletes most of these, which would glue the words beside them. The zero-width joiners
# U+200C and U+200D stay: scripts such as Persian and Hindi spell with them.
_SPACED = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u200b\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_lines(
    source: Path | BinaryIO,
    name: str,
    encoding_errors: str = "strict",
    counts: Counter[str] | None = None,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    replaceable: bool = True,
) -> Iterator[str]:
    """Yield the lines of a text file without their line ends, as they stand (see :func:`clean_line`).

    gzip, bzip2, xz and zstd are recognised by their first bytes, whatever the name. UTF-8 is expected;
    UTF-16 and UTF-32 are read when a byte order mark says so.

    Args:
        source: a path, or an open binary stream, read from where it stands.
        name: how the file is called in errors.
        encoding_errors: ``"strict"`` refuses bytes that are not UTF-8; ``"replace"`` puts U+FFFD and counts.
        counts: gains ``bytes_read`` (of the text, unpacked), ``byte_order_marks``, ``decoded_utf16``,
            ``decoded_utf32`` and ``replaced`` (characters U+FFFD put in).
        chunk_bytes: bytes asked for at a time; never changes the lines.
        replaceable: whether the user can ask for bad bytes to be replaced; only what is said of them.

    Raises:
        RequestError: a bad byte (file, line, byte offset, value), a damaged or truncated compressed file,
            a file that is not text, or one that cannot be read.
    """
    counts = Counter() if counts is None else counts
    replace = encoding_errors == "replace"
    head, chunks = peek(decompressed(source, name, chunk_bytes), 8192)
    mark, encoding = next(((m, e) for m, e in _MARKS if head.startswith(m)), (b"", "utf-8"))
    if encoding == "utf-8":
        refuse_binary(head, name)
    if mark:
        counts["byte_order_marks"] += 1
        chunks = _skip(chunks, len(mark))
        counts["bytes_read"] += len(mark)
    chunks = _counted(chunks, counts)
    if encoding != "utf-8":
        counts["decoded_" + encoding[:6].replace("-", "")] += 1
        chunks = _as_utf8(chunks, encoding, name, replace, replaceable, counts)
    number, offset = 1, len(mark)
    for block in _whole_lines(chunks, name):
        try:
            text = decode(block, "utf-8", replace, counts)
        except UnicodeDecodeError as error:
            number += _line_ends(block[: error.start])
            raise _bad_byte(name, number, offset + error.start, error, replaceable) from None
        number += _line_ends(block)
        offset += len(block)
        yield from split_lines(text)


def read_file_lines(path: Path) -> Iterator[str]:
    """:func:`read_lines` of a file that is no corpus (of a task, a list of words): bad bytes have to be converted."""
    return read_lines(path, str(path), replaceable=False)


def split_lines(text: str) -> list[str]:
    """The lines of a text: LF, CRLF and CR end a line, nothing else does, and a last line may lack its end."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def clean_line(text: str, counts: Counter[str] | None = None) -> str:
    """A line without control and invisible separating characters, stripped; blank lines become ``""``.

    What stands for nothing visible but parts words (controls other than tab, U+0085, U+2028, U+2029,
    zero-width space, byte order mark) becomes a space, so no two words are glued.
    Lone surrogates, which no file can hold, become U+FFFD.

    Args:
        text: one line.
        counts: gains ``controls`` and ``surrogates``, the characters changed.
    """
    if not text.isprintable():  # most lines are, and the test is far cheaper than the patterns
        text, controls = _SPACED.subn(" ", text)
        text, surrogates = _SURROGATE.subn(_REPLACEMENT, text)
        if counts is not None and controls:
            counts["controls"] += controls
        if counts is not None and surrogates:
            counts["surrogates"] += surrogates
    return text.strip()


def is_blank(line: str) -> bool:
    """Whether nothing is left of a line when it is cleaned: spaces, tabs, NBSP, U+3000, zero-width space ..."""
    return not line[:1].isalnum() and not clean_line(line)


def _skip(chunks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for chunk in chunks:
        rest = chunk[count:]
        count -= len(chunk) - len(rest)
        yield rest


def _counted(chunks: Iterator[bytes], counts: Counter[str]) -> Iterator[bytes]:
    for chunk in chunks:
        counts["bytes_read"] += len(chunk)
        yield chunk


def _whole_lines(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Join chunks to blocks that end where a line ends; a CRLF is never cut in two."""
    parts: list[bytes] = []
    held = b""
    waiting = 0  # bytes of a line whose end has not come
    for data in chunks:
        data = held + data
        held = b"\r" if data.endswith(b"\r") else b""
        data = data[: len(data) - len(held)]
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if cut:
            yield b"".join((*parts, data[:cut]))
            parts, waiting = [], 0
        parts.append(data[cut:])
        waiting += len(data) - cut
        if waiting > MAX_LINE_BYTES:
            raise RequestError(
                f"{name}: a line of more than {MAX_LINE_BYTES / 2**20:.0f} MiB; is it text? Put ends of lines in"
            )
    yield b"".join((*parts, held))


def _line_ends(block: bytes) -> int:
    return block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")


def decode(block: bytes, encoding: str, replace: bool, counts: Counter[str]) -> str:
    """Text of bytes; with ``replace`` U+FFFD stands for what is not valid and ``counts["replaced"]`` says how often.

    Raises:
        UnicodeDecodeError: it is not valid, and not to be replaced.
    """
    try:
        return block.decode(encoding)
    except UnicodeDecodeError:
        if not replace:
            raise
    text = block.decode(encoding, "replace")
    # "ignore" drops what "replace" replaces, so what it keeps are the U+FFFD of the file itself.
    counts["replaced"] += text.count(_REPLACEMENT) - block.decode(encoding, "ignore").count(_REPLACEMENT)
    return text


def _as_utf8(
    chunks: Iterator[bytes], encoding: str, name: str, replace: bool, replaceable: bool, counts: Counter[str]
) -> Iterator[bytes]:
    """Transcode UTF-16 or UTF-32, in blocks that no character crosses."""
    offset, number, ended_in_cr = 4 if "32" in encoding else 2, 1, False
    for block in _whole_units(chunks, encoding):
        try:
            data = decode(block, encoding, replace, counts).encode()
        except UnicodeDecodeError as error:
            before = block[: error.start].decode(encoding).encode()
            number += _line_ends(before) - (ended_in_cr and before.startswith(b"\n"))
            raise _bad_byte(name, number, offset + error.start, error, replaceable) from None
        number += _line_ends(data) - (ended_in_cr and data.startswith(b"\n"))
        offset += len(block)
        ended_in_cr = data.endswith(b"\r") if data else ended_in_cr
        yield data


def _whole_units(chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    unit = 4 if "32" in encoding else 2
    high_byte = -1 if encoding.endswith("le") else -2
    rest = b""
    for chunk in chunks:
        data = rest + chunk
        cut = len(data) - len(data) % unit
        if unit == 2 and cut and data[cut + high_byte] & 0xFC == 0xD8:
            cut -= 2  # a high surrogate waits for its other half
        rest = data[cut:]
        yield data[:cut]
    yield rest


def _bad_byte(name: str, line: int, offset: int, error: UnicodeDecodeError, replaceable: bool) -> RequestError:
    encoding = error.encoding.upper()
    instead = (
        "convert the file to UTF-8, or set corpus.encoding_errors=replace"
        if replaceable
        else f"convert the file, e.g. iconv -f WINDOWS-1252 -t UTF-8 {shlex.quote(name)} > new"
    )
    return RequestError(
        f"{name}: line {line}, byte {offset}: 0x{error.object[error.start]:02x} is not valid {encoding}"
        f" ({error.reason}); {instead}"
    )
