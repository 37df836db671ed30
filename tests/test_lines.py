from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from bertpt.data.corpus import lines
from bertpt.data.corpus.lines import clean_line, is_blank, read_lines, split_lines
from bertpt.data.corpus.streams import packed_kind
from bertpt.errors import RequestError

PACKERS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


def lines_of(data: bytes, errors: str = "strict", counts: Counter[str] | None = None, chunk: int = 2**20) -> list[str]:
    return list(read_lines(io.BytesIO(data), "corpus.txt", errors, counts, chunk_bytes=chunk))


def reference(data: bytes, errors: str = "strict") -> list[str]:
    """Python's own text layer with universal newlines, which ends lines at LF, CRLF and CR only."""
    file = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors=errors, newline=None)
    return [line.removesuffix("\n") for line in file]


# --- what ends a line -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_no_other_character_ends_a_line(separator: str) -> None:
    assert lines_of(f"a{separator}b\nc\n".encode()) == [f"a{separator}b", "c"]
    assert clean_line(f"a{separator}b") == "a b"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 1000])
def test_every_usual_line_end_gives_the_same_lines(end: str, chunk: int) -> None:
    text = end.join(["one", "", "two words", "", "", "drei größer", ""])
    assert lines_of(text.encode(), chunk=chunk) == ["one", "", "two words", "", "", "drei größer"]


def test_the_number_of_lines_is_that_of_wc(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("a\u2028b\nc\x85d\n\ne\n".encode())
    counted = int(subprocess.run(["wc", "-l", path], capture_output=True, text=True, check=True).stdout.split()[0])
    assert len(list(read_lines(path, "a.txt"))) == counted == 4


def test_a_line_far_longer_than_a_block_is_read_whole() -> None:
    long = "wörd " * 400_000
    assert lines_of(f"a\n{long}\nb".encode(), chunk=65_536) == ["a", long, "b"]


def test_all_bytes_of_a_file_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"some words\r\n" * 100_000 + b"end")
    counts: Counter[str] = Counter()
    assert sum(1 for _ in read_lines(path, "a.txt", "strict", counts)) == 100_001
    assert counts["bytes_read"] == path.stat().st_size
    assert counts["byte_order_marks"] == 1


def test_empty_input_has_no_lines() -> None:
    assert lines_of(b"") == []
    assert lines_of(b"\xef\xbb\xbf") == []


# --- encodings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("chunk", [1, 5, 2**20])
def test_a_bad_byte_is_named_with_file_line_and_offset(prefix: bytes, chunk: int) -> None:
    data = prefix + b"first\r\nsecond\ncaf\xe9\n"
    with pytest.raises(RequestError) as caught:
        lines_of(data, chunk=chunk)
    assert str(caught.value).startswith(f"corpus.txt: line 3, byte {data.index(0xE9)}: 0xe9 is not valid UTF-8")
    assert "corpus.encoding_errors=replace" in str(caught.value)
    assert len(caught.value.faults) == 1


def test_lines_before_a_bad_byte_late_in_a_large_file_do_not_hide_it(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    good = b"a good line of text\n" * 88_000
    path.write_bytes(good + b"\xac\n" + good)
    with pytest.raises(RequestError, match=rf"line 88001, byte {len(good)}: 0xac"):
        for _ in read_lines(path, str(path)):
            pass


def test_replacing_counts_what_is_replaced_and_not_what_was_there() -> None:
    counts: Counter[str] = Counter()
    assert lines_of("\ufffd caf".encode() + b"\xe9\n\xff\xfe\n", "replace", counts) == [
        "\ufffd caf\ufffd",
        "\ufffd\ufffd",
    ]
    assert counts["replaced"] == 3


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("chunk", [1, 3, 2**20])
def test_other_encodings_with_a_mark_are_decoded_and_counted(encoding: str, chunk: int) -> None:
    text = "Grüße 😀\r\nzweite Zeile\n\nlast"
    data = text.encode(encoding) if encoding in ("utf-16", "utf-32") else ("\ufeff" + text).encode(encoding)
    counts: Counter[str] = Counter()
    assert lines_of(data, counts=counts, chunk=chunk) == ["Grüße 😀", "zweite Zeile", "", "last"]
    assert counts["decoded_" + encoding[:6].replace("-", "")] == 1
    assert counts["bytes_read"] == len(data)


@pytest.mark.parametrize("chunk", [1, 4, 2**20])
def test_a_bad_unit_in_utf16_is_named_too(chunk: int) -> None:
    data = "\ufeffone\r\ntwo\rx".encode("utf-16-le") + b"\x00\xdc" + "y\n".encode("utf-16-le")
    with pytest.raises(RequestError, match=r"corpus.txt: line 3, byte 22: 0x00 is not valid UTF-16-LE"):
        lines_of(data, chunk=chunk)
    counts: Counter[str] = Counter()
    assert lines_of(data, "replace", counts, chunk) == ["one", "two", "x\ufffdy"]
    assert counts["replaced"] == 1


def test_utf16_without_a_mark_is_refused_with_the_reason() -> None:
    with pytest.raises(RequestError, match="UTF-16 without a byte order mark"):
        lines_of("some plain words, enough of them\n".encode("utf-16-le"))


# --- compressed and binary files ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PACKERS)
def test_compressed_files_are_known_by_content_not_by_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(PACKERS[kind]("\ufeffWort eins\r\nzwei\n".encode()))
    assert list(read_lines(path, "corpus.txt")) == ["Wort eins", "zwei"]
    path.write_bytes(PACKERS[kind](b""))
    assert list(read_lines(path, "corpus.txt")) == []


@pytest.mark.parametrize("kind", PACKERS)
def test_joined_and_padded_compressed_files_are_read_to_the_end(kind: str) -> None:
    pack = PACKERS[kind]
    assert lines_of(pack(b"a\n") + pack(b"b\n"), chunk=7) == ["a", "b"]
    assert lines_of(pack(b"a\n") + bytes(8)) == ["a"]


@pytest.mark.parametrize("kind", PACKERS)
def test_damaged_compressed_files_never_end_quietly(kind: str) -> None:
    whole = PACKERS[kind](os.urandom(50_000).hex().encode())
    for data, reason in (
        (whole[:-9], "cut short"),
        (whole[: len(whole) // 2], "cut short"),
        (whole + b"junk" * 9, "damaged"),
    ):
        with pytest.raises(RequestError, match=rf"^corpus.txt: .*{reason}") as caught:
            lines_of(data)
        assert len(str(caught.value).split("\n")) == 1


def test_a_file_packed_twice_is_refused() -> None:
    with pytest.raises(RequestError, match="packed twice"):
        lines_of(gzip.compress(bz2.compress(b"text")))


def test_highly_packed_text_needs_little_memory() -> None:
    packed = gzip.compress(b"ab\n" * 20_000_000)
    code = (
        "import io, resource, sys; from bertpt.data.corpus.lines import read_lines\n"
        "start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "n = sum(1 for _ in read_lines(io.BytesIO(sys.stdin.buffer.read()), 'x'))\n"
        "print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)"
    )
    out = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, check=True).stdout.split()
    assert int(out[0]) == 20_000_000
    # KiB. 60 MB as Python strings would be over 1 GB; one block of lines is held at a time.
    assert int(out[1]) < 100_000


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"PK\x03\x04" + bytes(100), "ZIP"),
        (b"%PDF-1.7\n...", "PDF"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "PNG"),
        (bytes(range(32)) * 100, "binary"),
        (b"name" + bytes(253) + b"ustar\x00", "tar"),
    ],
)
def test_files_of_other_kinds_are_refused_by_name(data: bytes, kind: str) -> None:
    with pytest.raises(RequestError, match=rf"^corpus.txt: looks like .*{kind}"):
        lines_of(data, "replace")
    with pytest.raises(RequestError, match=rf"^corpus.txt: looks like .*{kind}"):
        lines_of(gzip.compress(data), "replace")


def test_text_that_begins_like_a_magic_is_text() -> None:
    assert lines_of(b"BZh9 is how bzip2 begins\nPAR1 too") == ["BZh9 is how bzip2 begins", "PAR1 too"]


def test_an_unreadable_place_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^gone.txt: cannot be read: No such file"):
        list(read_lines(tmp_path / "gone.txt", "gone.txt"))
    with pytest.raises(RequestError, match=r"^dir: cannot be read"):
        list(read_lines(tmp_path, "dir"))


# --- cleaning -------------------------------------------------------------------------------------------------


def test_no_control_character_glues_words_or_stays() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        cleaned = clean_line(f"a{character}b")
        category = unicodedata.category(character)
        if category in ("Cc", "Zl", "Zp") and character != "\t":
            assert cleaned == "a b", hex(code)
        elif category == "Cs":
            assert cleaned == "a\ufffdb", hex(code)
        elif character in "\u200b\ufeff":
            assert cleaned == "a b", hex(code)
        else:
            assert cleaned == f"a{character}b", hex(code)


def test_cleaning_counts_and_keeps_joiners() -> None:
    counts: Counter[str] = Counter()
    assert clean_line("hel\x00lo\x0bworld", counts) == "hel lo world"
    assert clean_line("می\u200cخواهم क्\u200dष you\tnice", counts) == "می\u200cخواهم क्\u200dष you\tnice"
    assert clean_line("\ud800x", counts) == "\ufffdx"
    assert counts == {"controls": 2, "surrogates": 1}


@pytest.mark.parametrize(
    "line", ["", " ", "\t", "\u00a0", "\u3000", "\u2003 \t", "\u200b", "\ufeff", "\x00", "\x0c", "\x85"]
)
def test_every_kind_of_blank_line_is_blank(line: str) -> None:
    assert is_blank(line)
    assert clean_line(line) == ""


@settings(deadline=None)
@given(st.text(st.characters()))
def test_cleaning_is_idempotent_and_agrees_with_blank(line: str) -> None:
    cleaned = clean_line(line)
    assert clean_line(cleaned) == cleaned == cleaned.strip()
    assert is_blank(line) == (cleaned == "")
    cleaned.encode()


# --- any bytes ------------------------------------------------------------------------------------------------

_PIECES = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\xfe\xff",
        b"\x00",
        b"a",
        "é".encode(),
        "😀".encode(),
        b"\xe9",
        b"\x1f\x8b",
    ]
)
_BYTES = st.binary(max_size=60) | st.lists(_PIECES, max_size=30).map(b"".join)


def outcome(data: bytes, errors: str, chunk: int) -> tuple[object, ...]:
    counts: Counter[str] = Counter()
    try:
        return (lines_of(data, errors, counts, chunk), dict(counts))
    except RequestError as error:
        return (str(error),)


@settings(deadline=None)
@given(_BYTES, st.sampled_from(["strict", "replace"]), st.integers(1, 9))
@example(b"\xff\xfe\x00\xd8", "replace", 1)
@example(b"\xff\xfe\x00\x00\r\x00\x00\x00\n", "replace", 2)
def test_any_bytes_give_lines_or_one_fault_whatever_the_chunks(data: bytes, errors: str, chunk: int) -> None:
    whole = outcome(data, errors, 2**20)
    assert outcome(data, errors, chunk) == whole
    if len(whole) == 1:
        assert re.match(r"corpus\.txt: [^\n]+\Z", str(whole[0]))


@settings(deadline=None)
@given(_BYTES, st.sampled_from(["strict", "replace"]))
def test_plain_utf8_reads_as_pythons_text_layer_does(data: bytes, errors: str) -> None:
    assume(data[:2] not in (b"\xff\xfe", b"\xfe\xff") and data[:4] != b"\x00\x00\xfe\xff" and not packed_kind(data))
    result = outcome(data, errors, 5)
    try:
        expected = reference(data.removeprefix(b"\xef\xbb\xbf"), errors)
    except UnicodeDecodeError:
        assert "is not valid UTF-8" in str(result[0]) or "looks like" in str(result[0])
        return
    assert result[0] == expected or "looks like" in str(result[0])


@settings(deadline=None)
@given(st.text())
def test_splitting_a_text_agrees_with_reading_it(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert split_lines(text) == reference(text.encode())


def test_reading_does_not_depend_on_the_locale(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Größe 😀\n".encode())
    code = (
        "import sys; from pathlib import Path; from bertpt.data.corpus.lines import read_lines\n"
        "sys.stdout.buffer.write(''.join(read_lines(Path('a.txt'), 'a.txt')).encode('utf-8'))"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert out.stdout.decode() == "Größe 😀"


def test_a_line_without_end_is_refused_before_it_fills_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes of packed letters unpack to a line of any length."""
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 3 * 2**20)
    path = tmp_path / "bomb.txt"
    path.write_bytes(gzip.compress(b"a" * (64 * 2**20)))
    assert path.stat().st_size < 100_000
    counts: Counter[str] = Counter()
    with pytest.raises(RequestError, match=r"bomb\.txt: a line of more than 3 MiB"):
        list(read_lines(path, "bomb.txt", counts=counts))
    assert counts["bytes_read"] < 6 * 2**20
    path.write_bytes((b"a" * 2**20 + b"\n") * 5)
    assert len(list(read_lines(path, "long.txt"))) == 5
