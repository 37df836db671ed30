"""What many tests share: a tiny corpus taken through the real data stages, and configurations over it."""

from __future__ import annotations

import os
import signal

# Threads of several test processes on few cores wait for each other; subprocesses inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator
from pathlib import Path

import pytest
from stage_helpers import wordy_documents
from train_helpers import Tiny


def pytest_configure() -> None:
    """A shell's background job ignores Ctrl-C, and every process started from it would too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_sync() -> Iterator[None]:
    """No test can lose power: waiting for the disk, which takes seconds on a busy one, would show nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A corpus of 36 made-up documents: text files, documents, tokenizer and token store are there."""
    folder = tmp_path_factory.mktemp("tiny")
    text = folder / "text"
    text.mkdir()
    for number, document in enumerate(wordy_documents(36)):
        Path(text / f"{number:03}.txt").write_text(document + "\n", encoding="utf-8")
    made = Tiny(folder)
    made.prepare()
    return made
