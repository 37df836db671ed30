"""``download --verify``, what is still to download, and the room that it needs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from test_download import config, corpus_text, make, put
from test_fetch import CONTENT, SHA256, Server, address, server  # noqa: F401 - the fixture

from bertpt.cli.main import run
from bertpt.config.schema import HubSource, WheelSource, WikidumpSource
from bertpt.data.corpus import cached
from bertpt.data.corpus.cached import dump_place, is_cached, stated_bytes, to_download
from bertpt.data.corpus.fetch import fetch
from bertpt.data.corpus.verify import verify_documents
from bertpt.errors import BertptError, RequestError

# --- verify ------------------------------------------------------------------------------------------------------


def test_whole_documents_are_confirmed_and_nothing_is_touched(tmp_path: Path) -> None:
    settings = config(tmp_path, put(tmp_path / "t.txt", corpus_text()))
    made = make(settings)
    before = {path: path.stat().st_mtime_ns for path in made.directory.iterdir()}
    found = verify_documents(settings, progress=False)
    assert found.files == len(before) - 1 == 2
    assert found.bytes == sum(path.stat().st_size for path in before if path.suffix == ".parquet")
    assert {path: path.stat().st_mtime_ns for path in made.directory.iterdir()} == before


def test_every_faulty_file_is_named_with_the_command_that_mends(tmp_path: Path) -> None:
    settings = config(tmp_path, put(tmp_path / "t.txt", corpus_text()))
    folder = make(settings).directory
    train, heldout = folder / "train-00000.parquet", folder / "heldout-00000.parquet"
    content = bytearray(train.read_bytes())
    content[len(content) // 2] ^= 1
    train.write_bytes(content)
    with pytest.raises(RequestError) as caught:
        verify_documents(settings, progress=False)
    assert len(caught.value.faults) == 2
    assert caught.value.faults[0].startswith(f"{train}: damaged: SHA-256 {hashlib.sha256(content).hexdigest()[:16]}")
    assert "`bertpt download --overwrite`" in caught.value.faults[1]
    train.write_bytes(content[:100])
    heldout.unlink()
    with pytest.raises(RequestError) as caught:
        verify_documents(settings, progress=False)
    assert sorted(caught.value.faults[:2]) == sorted(
        [f"{heldout}: missing", f"{train}: damaged: 100 bytes, the manifest says {len(content):,}"]
    )
    make(settings, overwrite=True)
    assert verify_documents(settings, progress=False).files == 2


def test_without_documents_or_manifest_there_is_nothing_to_verify(tmp_path: Path) -> None:
    settings = config(tmp_path, put(tmp_path / "t.txt", corpus_text()))
    with pytest.raises(RequestError, match="no finished documents to verify; `bertpt download` makes them"):
        verify_documents(settings, progress=False)
    folder = make(settings).directory
    (folder / "manifest.json").write_text("{")
    with pytest.raises(RequestError, match=r"manifest\.json: not readable as JSON"):
        verify_documents(settings, progress=False)


def test_the_command_says_it_in_text_or_json_and_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "t.txt", corpus_text())
    (tmp_path / "c.yaml").write_text(
        "name: x\ncorpus: {name: c, sources: [{kind: files, path: t.txt}]}\ntrain: {phases: [{steps: 1}]}\n"
    )
    assert run(["download", "--config", "c.yaml", "-q"]) == 0
    capsys.readouterr()
    assert run(["download", "--config", "c.yaml", "--verify"]) == 0
    assert capsys.readouterr().out.strip().endswith("bytes, all as the manifest says")
    assert run(["download", "--config", "c.yaml", "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 2
    next((tmp_path / "data/c/documents").glob("train*")).unlink()
    assert run(["download", "--config", "c.yaml", "--verify"]) == 2
    assert "missing" in capsys.readouterr().err
    assert run(["download", "--config", "c.yaml", "--verify", "--overwrite"]) == 2


# --- what is still to come ---------------------------------------------------------------------------------------


def test_what_lies_there_is_not_said_to_be_downloaded(tmp_path: Path) -> None:
    wheel = WheelSource(kind="wheel", package="a-b==1", sha256=SHA256, member="m", reader="text", size="28 MB")
    assert to_download(wheel, tmp_path) == "28 MB"
    put(tmp_path / "A_b-1-py3-none-any.whl", CONTENT)
    assert to_download(wheel, tmp_path) is None
    put(tmp_path / "A_b-1-py3-none-any.whl", CONTENT[:-1])
    assert to_download(wheel, tmp_path) == "28 MB"
    dump = WikidumpSource(kind="wikidump", url="http://x/d.bz2", sha256=SHA256, size="1 GB")
    assert to_download(dump, tmp_path) == "1 GB"
    put(dump_place("http://x/d.bz2", tmp_path), b"")
    assert to_download(dump, tmp_path) is None
    hub = HubSource(kind="hub", dataset="One/Set", config="en", size="3 GB")
    assert not is_cached(hub, tmp_path)
    put(tmp_path / "hub" / "one___set" / "en" / "0.0.0" / "abc" / "dataset_info.json", b"{}")
    assert is_cached(hub, tmp_path)
    assert not is_cached(hub.model_copy(update={"config": "de"}), tmp_path)
    assert not is_cached(hub.model_copy(update={"streaming": True}), tmp_path)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ("28 MB", 28e6),
        ("0.5 GB", 5e8),
        ("8 GB for the first 20 GB of text", 8e9),
        ("a lot", 0),
        (None, 0),
        ("3kB", 3e3),
    ],
)
def test_stated_sizes_are_read(size: str | None, wanted: float) -> None:
    assert stated_bytes(HubSource(kind="hub", dataset="x", size=size)) == wanted


def test_no_room_for_a_stated_download_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 100e9})())
    source: dict[str, Any] = {"kind": "wikidump", "url": "http://127.0.0.1:9/d", "sha256": SHA256, "size": "60 GB"}
    with pytest.raises(BertptError, match="about 120 GB needed, 100 GB free; choose a larger disk") as caught:
        make(config(tmp_path, source))
    assert caught.value.exit_code == 1
    with pytest.raises(BertptError, match="cannot be reached"):  # the dump and 1 GB of its text have room
        make(config(tmp_path, source, limit={"bytes": 10**9}))
    put(cached.dump_place("http://127.0.0.1:9/d", tmp_path / "data" / "downloads"), b"no dump")
    with pytest.raises(BertptError) as caught:
        make(config(tmp_path, source))
    assert "needed" not in str(caught.value)  # what lies there takes no room


# --- content that changed on the server --------------------------------------------------------------------------


def test_a_part_of_other_content_is_not_gone_on_with(
    server: Server,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = server.RequestHandlerClass
    asked: list[str | None] = []
    original = handler.do_GET  # type: ignore[attr-defined]
    send = handler.send_header

    def get(self: Any) -> None:
        tag = f'"{hashlib.sha1(server.content).hexdigest()}"'
        asked.append(self.headers.get("If-Range"))
        server.ranges = self.headers.get("If-Range") in (None, tag)
        original(self)

    def header(self: Any, name: str, value: str) -> None:
        if name == "Content-Length":
            send(self, "ETag", f'"{hashlib.sha1(server.content).hexdigest()}"')
        send(self, name, value)

    monkeypatch.setattr(handler, "do_GET", get)
    monkeypatch.setattr(handler, "send_header", header)
    old = CONTENT[::-1]
    server.content, server.cuts = old, 1
    monkeypatch.setattr("bertpt.data.corpus.fetch._CUTS", 1)
    half = tmp_path / "dump.part"
    monkeypatch.setattr("bertpt.data.corpus.fetch._copy", _stopping(half, len(old) // 2))
    with pytest.raises(KeyboardInterrupt):
        fetch(address(server), tmp_path / "dump", sha256=SHA256)
    monkeypatch.undo()
    monkeypatch.setattr(handler, "do_GET", get)
    monkeypatch.setattr(handler, "send_header", header)
    assert half.stat().st_size == len(old) // 2
    server.content = CONTENT
    fetch(address(server), tmp_path / "dump", sha256=SHA256)
    assert (tmp_path / "dump").read_bytes() == CONTENT
    assert asked == [None, f'"{hashlib.sha1(old).hexdigest()}"']
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]


def _stopping(part: Path, size: int) -> Any:
    """A copy that the user stops after ``size`` bytes."""

    def copy(response: Any, *arguments: Any) -> None:
        part.write_bytes(response.read(size))
        raise KeyboardInterrupt

    return copy
