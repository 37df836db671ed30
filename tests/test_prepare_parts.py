"""A preparation in parts: the same bytes whoever makes them, kept over a kill, refused when they do not fit."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stage_helpers import make_config, wordy_documents

from bertpt.config import Config
from bertpt.data.corpus.documents import Document, DocumentWriter
from bertpt.data.locate import store_dir
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokens import encode, parts, workers
from bertpt.data.tokens.encode import EncodeCounts
from bertpt.data.tokens.prepare import prepare
from bertpt.data.tokens.store import TokenStore
from bertpt.errors import BertptError, RequestError
from bertpt.files import staged_directory, write_manifest


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 documents of two sources in 12 row groups of 3 files, 4 held out; a tokenizer."""
    folder = tmp_path_factory.mktemp("corpus")
    directory = folder / "c" / "documents"
    texts = wordy_documents(64, seed=5)
    with staged_directory(directory) as aside:
        for split, chosen in (("train", texts[:60]), ("heldout", texts[60:])):
            with DocumentWriter(aside, split, group_bytes=3000, shard_bytes=13_000) as writer:
                for number, text in enumerate(chosen):
                    writer.add(Document(text, "one" if number < 31 else "two", str(number)))
        write_manifest(aside, stage="download", key="k", inputs={}, settings={}, counts={})
    train_tokenizer(make_config(folder), say=quiet, progress=False)
    return folder


def content(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def made(config: Config, said: list[str] | None = None, **arguments: Any) -> dict[str, str]:
    say = quiet if said is None else said.append
    return content(prepare(config, overwrite=True, say=say, progress=False, **arguments).directory)


def parts_dir(config: Config) -> Path:
    directory = store_dir(config)
    return directory.with_name(f".{directory.name}.parts")


@pytest.fixture(scope="module")
def expected(corpus: Path) -> dict[str, str]:
    return made(make_config(corpus), workers=1)


def test_any_number_of_processes_makes_the_same_bytes(corpus: Path, expected: dict[str, str]) -> None:
    config = make_config(corpus)
    assert {"train.ids.bin", "train.lengths.bin", "manifest.json"} <= set(expected)
    assert len(parts.tasks_of(job_of(config), corpus / "c" / "documents")) > 12
    for count in (2, 3):
        assert made(config, workers=count) == expected
    assert not parts_dir(config).exists()
    store = TokenStore.open(store_dir(config))
    assert store.source_labels == ["one", "two"]
    assert store.train.sources.tolist() == [0] * 31 + [1] * 29


def job_of(config: Config) -> parts.Job:
    return parts.Job("key", "tokenizer", "en", "split", 1, str(parts_dir(config)))


_SLOW = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from stage_helpers import make_config
from bertpt.data.tokens import parts
from bertpt.data.tokens import prepare

def slow(task):
    done(task)
    time.sleep(0 if task.number < 4 else 60)

done = parts.make
if __name__ == "__main__":
    prepare.make = slow
    prepare.prepare(make_config(Path(sys.argv[1])), workers=int(sys.argv[3]), progress=False, say=print)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
@pytest.mark.parametrize("count", [1, 2])
def test_what_was_finished_before_a_kill_is_not_made_again(
    corpus: Path, expected: dict[str, str], tmp_path: Path, count: int
) -> None:
    config = make_config(corpus)
    for path in store_dir(config).iterdir():
        path.unlink()
    store_dir(config).rmdir()
    script = tmp_path / "slow.py"
    script.write_text(_SLOW)
    arguments = [sys.executable, script, corpus, Path(__file__).parent, str(count)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(parts_dir(config).glob("*.npz"))) < 4 + count and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in parts_dir(config).glob("*.npz")}
    assert len(kept) >= 4 + count
    assert not store_dir(config).exists()

    damaged = parts_dir(config) / "000001.npz"
    with np.load(damaged) as archive:
        ids = archive["ids"].tobytes()
    data = bytearray(damaged.read_bytes())
    data[data.index(ids) + len(ids) // 2] ^= 1
    damaged.write_bytes(data)
    done: list[int] = []
    make = parts.make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertpt.data.tokens.prepare.make", lambda task: (done.append(task.number), make(task)))
        said: list[str] = []
        result = prepare(config, workers=1, say=said.append, progress=False)
    numbers = {int(name[:6]) for name in kept}
    assert done == [1, *sorted(set(range(max(done) + 1)) - numbers)]
    assert said[0].startswith(f"tokens: {len(kept) - 1} of ")
    assert content(result.directory) == expected
    assert not parts_dir(config).exists()


def test_parts_of_other_settings_text_or_versions_are_not_used(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(corpus)
    tasks = parts.tasks_of(
        parts.Job("key", str(next((corpus / "c").glob("tokenizer-*"))), "en", "split", 1, str(tmp_path)),
        corpus / "c" / "documents",
    )
    parts.make(tasks[3])
    found = parts.read(tasks[3])
    assert found is not None
    assert found.counts.documents_read == len(found.sources) > 0
    assert parts.read(tasks[2]) is None
    other = parts.Task(parts.Job("other", *list(vars_of(tasks[3].job))[1:]), 3, "train", "f", 0)
    assert parts.read(other) is None
    monkeypatch.setattr(parts, "VERSIONS", {"tokenizers": "0.0.0", "sentencex": "0"})
    assert parts.read(tasks[3]) is None
    with pytest.raises(BertptError, match=r"000003\.npz: was made and cannot be used.*tokenizers 0\.0\.0"):
        list(parts.made_in_order([tasks[3]], [tasks[3]], iter([None])))
    tasks[3].path.write_bytes(b"no archive")
    assert parts.read(tasks[3]) is None
    assert config.name == "test"


def vars_of(job: parts.Job) -> list[Any]:
    return [getattr(job, name) for name in parts.Job.__slots__]  # type: ignore[attr-defined]


def test_a_request_that_cannot_be_met_leaves_nothing(corpus: Path) -> None:
    config = make_config(corpus, corpus={"min_sentences": 1000})
    before = sorted(path.name for path in (corpus / "c").iterdir())
    for count in (1, 2):
        with pytest.raises(RequestError, match="none of 60 train documents has 1000 sentences"):
            prepare(config, workers=count, say=quiet, progress=False)
        assert sorted(path.name for path in (corpus / "c").iterdir()) == before


def test_documents_that_a_worker_does_not_see_are_named(corpus: Path, tmp_path: Path) -> None:
    task = parts.Task(parts.Job("key", "t", "en", "split", 1, str(tmp_path)), 0, "train", "/not/there.parquet", 0)
    with pytest.raises(RequestError, match=r"/not/there\.parquet: not there on .*under the same path"):
        parts.make(task)


# --- workers ------------------------------------------------------------------------------------------------------


def _dies(number: int) -> None:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def _refuses(number: int) -> None:
    if number == 1:
        raise RequestError(f"fault {number}")
    time.sleep(0 if number < 3 else 30)


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_worker_that_dies_is_one_line() -> None:
    with pytest.raises(BertptError, match=r"a worker process died .*fewer than --workers 2") as caught:
        list(workers.each_in_order(_dies, range(6), workers=2))
    assert "\n" not in str(caught.value)


def test_a_fault_of_one_task_ends_all_at_once() -> None:
    begun = time.monotonic()
    with pytest.raises(RequestError, match="fault 1"):
        list(workers.each_in_order(_refuses, range(8), workers=2))
    assert time.monotonic() - begun < 25  # the tasks that sleep were ended


def test_small_texts_and_short_memory_start_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "processors", lambda: 8)
    size = workers.TEXT_FOR_A_PROCESS
    assert [workers.default_workers(n * size) for n in (0, 1, 3)] == [1, 1, min(3, workers.default_workers(3 * size))]
    sizes = {"SC_AVPHYS_PAGES": 2**18, "SC_PAGE_SIZE": 4096}  # 1 GiB
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    assert workers.default_workers(100 * size) == 2


# --- counts -------------------------------------------------------------------------------------------------------


def test_counts_add_up_and_the_unknown_words_kept_are_the_most_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_MAX_UNKNOWN", 2)
    total = EncodeCounts(documents_read=1, long_words=2)
    for words in ({"a": 5, "b": 1, "c": 2}, {"d": 3, "e": 1}):
        more = EncodeCounts(documents_read=3, text_bytes=4)
        more.unknown.update(words)
        total.add(more)
    assert (total.documents_read, total.text_bytes, total.long_words) == (7, 8, 2)
    assert dict(total.unknown) == {"a": 5, "d": 3}


def test_ids_of_a_part_take_no_more_room_than_they_need() -> None:
    assert parts._small(np.array([0, 255])).dtype == np.uint8
    assert parts._small(np.array([256])).dtype == np.uint16
    assert parts._small(np.array([], np.int64)).dtype == np.uint8
