"""A hub of the test's own on 127.0.0.1, with what ``datasets`` asks of one for Parquet files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COMMIT = "a" * 40
PARQUET = "data/train-00000-of-00001.parquet"


def parquet(texts: list[str]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), buffer)
    return buffer.getvalue()


class Hub(ThreadingHTTPServer):
    """``cuts`` answers with the data end early; ``status`` refuses them."""

    files: dict[str, bytes]
    cuts = 0
    status = 200
    asked: list[tuple[str, str, str | None]]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((self.command, path, self.headers.get("Range")))
        if path.startswith("/api/datasets/someone/texts/tree/"):
            self.answer_json(self.tree(path.partition("/tree/")[2].partition("/")[2]))
        elif path.startswith("/api/datasets/someone/texts"):
            self.answer_json({"id": "someone/texts", "sha": COMMIT, "siblings": [], "private": False})
        elif "/resolve/" in path:
            self.file(path.partition("/resolve/")[2].partition("/")[2])
        else:
            self.answer(b"", 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def tree(self, folder: str) -> list[dict[str, Any]]:
        names = [name for name in self.server.files if not folder or name.startswith(f"{folder}/")]
        plain = [name for name in names if "/" not in name.removeprefix(f"{folder}/")]
        found = [self.entry(name) for name in plain]
        inner = {name.split("/")[0] for name in names if not folder and "/" in name}
        return found + [{"type": "directory", "path": name, "oid": "b" * 40, "size": 0} for name in sorted(inner)]

    def entry(self, name: str) -> dict[str, Any]:
        content = self.server.files[name]
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def file(self, name: str) -> None:
        if name not in self.server.files:
            self.answer(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        content = self.server.files[name]
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        data = name == PARQUET and self.command == "GET"
        if data and self.server.status != 200:
            self.answer(b"", self.server.status)
            return
        start, asked = 0, self.headers.get("Range")
        if asked:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = data and self.server.cuts > 0
        self.server.cuts -= cut
        self.answer(content[start:], 206 if asked else 200, headers, cut=cut)

    def answer_json(self, value: Any) -> None:
        self.answer(json.dumps(value).encode(), 200, {"Content-Type": "application/json"})

    def answer(self, body: bytes, status: int, headers: dict[str, str] | None = None, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(("127.0.0.1", 0), Handler) as server:
        texts = [f"This is text {number}. It goes on for a while." for number in range(60)]
        server.files = {PARQUET: parquet(texts), "README.md": b"---\nlicense: cc0-1.0\n---\n"}
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def download(hub: Hub, folder: Path, *arguments: str) -> tuple[int, str]:
    """``bertpt download`` in a process of its own, as the hub's address is read once."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
    (folder / "c.yaml").write_text(
        "name: x\ncorpus: {name: c, sources: [{kind: hub, dataset: someone/texts, size: 1 MB}]}\n"
        "train: {phases: [{steps: 1}]}\n"
    )
    command = [sys.executable, "-m", "bertpt", "download", "--config", "c.yaml", *arguments]
    environment = {**kept, "HOME": str(folder), "HF_ENDPOINT": hub.address}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stderr


def test_a_data_set_comes_over_a_cut_connection_and_once_only(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = 1
    code, said = download(hub, tmp_path)
    assert code == 0, said
    assert "someone-texts: hub someone/texts, 1 MB to download" in said
    assert "60 documents (8 held out)" in said
    assert f"read at revision {COMMIT}" in said
    got = [part for method, path, part in hub.asked if method == "GET" and path.endswith(PARQUET)]
    assert len(got) == 2  # below the client's block of 10 MB it begins again
    assert not list(tmp_path.glob("data/downloads/**/*.incomplete"))
    hub.asked.clear()
    code, said = download(hub, tmp_path, "--overwrite")
    assert code == 0, said
    assert "to download" not in said
    assert "downloading" not in said
    assert not [path for method, path, _ in hub.asked if method == "GET" and path.endswith(PARQUET)]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["refused", "changed"])
def test_data_that_cannot_be_had_is_one_line_and_leaves_no_documents(hub: Hub, tmp_path: Path, fault: str) -> None:
    if fault == "refused":
        hub.status = 404
    else:
        hub.files[PARQUET] = hub.files[PARQUET][:200] + b"\0" * 300
    code, said = download(hub, tmp_path)
    lines = [line for line in said.splitlines() if line.startswith("bertpt: ")]
    assert (code, len(lines)) == (2 if fault == "refused" else 1, 1), said
    assert "someone/texts" in lines[0]
    assert "Traceback" not in said
    if fault == "refused":
        assert "404" in lines[0]
        assert hub.address in lines[0]
    else:
        assert lines[0].endswith("remove data/downloads/hub to fetch all of it again")
    assert not list(tmp_path.glob("data/c/*"))
