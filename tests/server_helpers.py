"""The other end of ``fork_server.py``."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Server:
    """The process that runs the commands."""

    process: subprocess.Popen[str]
    log: Path

    def run(self, folder: Path, arguments: list[str], **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(
            json.dumps({"arguments": arguments, "folder": str(folder), "log": str(self.log), **order}) + "\n"
        )
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def finish(self, folder: Path, arguments: list[str], **order: Any) -> float:
        answer = self.run(folder, arguments, **order)
        assert set(answer["codes"]) == {0}, self.said()
        return float(answer["seconds"])


@contextlib.contextmanager
def started(folder: Path, *modules: str) -> Iterator[Server]:
    """A server that keeps its log in ``folder`` and has loaded ``modules``, or what the stages use."""
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("fork_server.py")), *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Server(process, folder / "log")
        process.kill()
