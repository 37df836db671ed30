"""Downloads against a server of our own: resumed after a cut, refused with status and address, never half named."""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bertpt.config.schema import WikidumpSource
from bertpt.data.corpus.fetch import fetch
from bertpt.data.corpus.sources import wikidump
from bertpt.data.corpus.sources.base import Reading, SourceUnreachable
from bertpt.errors import BertptError, RequestError

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT; ``cuts`` connections end early, ``status`` refuses, ``ranges`` false ignores Range."""

    content = CONTENT
    cuts = 0
    status = 200
    ranges = True
    asked: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, content = self.server, self.server.content
        asked = self.headers.get("Range")
        server.asked.append(asked)
        if server.status != 200:
            self.send_error(server.status)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = len(content)
        if server.cuts:
            server.cuts -= 1
            end = start + (len(content) - start) // 2
        self.wfile.write(content[start:end])

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/wiki/dump.xml.bz2"


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "new" / "dump"
    said: list[str] = []
    assert fetch(address(server), target, sha256=SHA256, size="1 MB", say=said.append) == target
    assert target.read_bytes() == CONTENT
    fetch(address(server), target, sha256=SHA256)
    assert server.asked == [None]
    assert said == [f"downloading {address(server)} (1 MB)"]
    assert [path.name for path in target.parent.iterdir()] == ["dump"]


def test_a_cut_connection_is_taken_up_where_it_ended(server: Server, tmp_path: Path) -> None:
    server.cuts = 3
    fetch(address(server), tmp_path / "dump", sha256=SHA256)
    assert (tmp_path / "dump").read_bytes() == CONTENT
    half = len(CONTENT) // 2
    assert server.asked[:2] == [None, f"bytes={half}-"]
    assert len(server.asked) == 4


def test_a_later_call_goes_on_from_the_part(server: Server, tmp_path: Path) -> None:
    (tmp_path / "dump.part").write_bytes(CONTENT[:1000])
    fetch(address(server), tmp_path / "dump", sha256=SHA256)
    assert server.asked == ["bytes=1000-"]
    assert (tmp_path / "dump").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_it_all_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "dump.part").write_bytes(b"x" * 1000)
    fetch(address(server), tmp_path / "dump", sha256=SHA256)
    assert (tmp_path / "dump").read_bytes() == CONTENT


def test_a_part_that_is_whole_needs_no_more_bytes(server: Server, tmp_path: Path) -> None:
    (tmp_path / "dump.part").write_bytes(CONTENT)
    fetch(address(server), tmp_path / "dump", sha256=SHA256)
    assert (tmp_path / "dump").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "dump.part").write_bytes(CONTENT + b"more")
    fetch(address(server), tmp_path / "dump", sha256=SHA256)
    assert (tmp_path / "dump").read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT) + 4}-", None]


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_refusal_names_status_and_address(status: int, server: Server, tmp_path: Path) -> None:
    server.status = status
    with pytest.raises(BertptError) as caught:
        fetch(address(server), tmp_path / "dump", sha256=SHA256)
    assert str(status) in str(caught.value)
    assert address(server) in str(caught.value)
    assert caught.value.exit_code == 1
    assert not isinstance(caught.value, SourceUnreachable)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_hash_names_both_and_removes_the_file(server: Server, tmp_path: Path) -> None:
    server.content = b"another" * 1000
    with pytest.raises(BertptError) as caught:
        fetch(address(server), tmp_path / "dump", sha256=SHA256)
    assert SHA256 in str(caught.value)
    assert hashlib.sha256(server.content).hexdigest() in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_content_that_changed_between_two_calls_is_found_by_its_hash(server: Server, tmp_path: Path) -> None:
    (tmp_path / "dump.part").write_bytes(b"x" * 1000)
    with pytest.raises(BertptError, match="sha256"):
        fetch(address(server), tmp_path / "dump", sha256=SHA256)
    assert list(tmp_path.iterdir()) == []
    fetch(address(server), tmp_path / "dump", sha256=SHA256)
    assert (tmp_path / "dump").read_bytes() == CONTENT


def test_a_connection_cut_again_and_again_keeps_the_part(server: Server, tmp_path: Path) -> None:
    server.cuts = 10**6
    server.content = CONTENT[:64]
    with pytest.raises(SourceUnreachable, match=r"cut after .*; the same command goes on from dump\.part"):
        fetch(address(server), tmp_path / "dump", sha256=SHA256)
    assert [path.name for path in tmp_path.iterdir()] == ["dump.part"]


def test_no_connection_is_unreachable(server: Server, tmp_path: Path) -> None:
    closed = "http://127.0.0.1:9/dump"
    with pytest.raises(SourceUnreachable, match="cannot be reached") as caught:
        fetch(closed, tmp_path / "dump", sha256=SHA256)
    assert closed in str(caught.value)


@pytest.mark.parametrize("url", ["file:///etc/hosts", "ftp://example.org/x", "dump.xml"])
def test_only_web_addresses_are_fetched(url: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="http"):
        fetch(url, tmp_path / "dump", sha256=None)


def test_a_full_disk_is_refused_before_the_download(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(BertptError, match=r"to download, 0\.0 MB free"):
        fetch(address(server), tmp_path / "dump", sha256=SHA256)


def test_a_dump_is_read_from_an_address(server: Server, tmp_path: Path) -> None:
    xml = "<mediawiki><page><title>A</title><ns>0</ns><revision><text>It is a cat.</text></revision></page></mediawiki>"
    server.content = xml.encode()
    sha256 = hashlib.sha256(server.content).hexdigest()
    source = WikidumpSource(kind="wikidump", url=address(server), sha256=sha256)
    reading = Reading(tmp_path)
    before = wikidump.fingerprint_inputs(source, reading)
    assert not server.asked
    assert [document.text for document in wikidump.read(source, reading)] == ["It is a cat."]
    assert wikidump.fingerprint_inputs(source, reading) == before
    assert [path.name.partition("-")[2] for path in tmp_path.iterdir()] == ["dump.xml.bz2"]
