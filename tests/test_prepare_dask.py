"""`bertpt prepare --dask`: a real scheduler and two workers on loopback make the bytes that one process makes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stage_helpers import make_config, wordy_documents

from bertpt.config import Config
from bertpt.data.corpus.documents import Document, DocumentWriter
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokens import workers
from bertpt.data.tokens.prepare import prepare
from bertpt.errors import BertptError, RequestError
from bertpt.files import staged_directory, write_manifest


def quiet(_: str) -> None:
    pass


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"--dask needs the package distributed: pip install 'bertpt\[dask\]'"):
        list(workers.each_in_order(quiet, ["a"], dask="tcp://127.0.0.1:1"))


pytest.importorskip("distributed", reason="the extra dask is not installed")


@pytest.mark.filterwarnings("ignore")  # of a library that gives up
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:{free}", "nonsense://a", "tcp://"])
def test_no_scheduler_is_one_line(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "DASK_ANSWER", 0.3)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = address.format(free=held.getsockname()[1])
    with pytest.raises(RequestError, match=r"no scheduler answers there") as caught:
        list(workers.each_in_order(quiet, ["a"], dask=address))
    assert str(caught.value).startswith(f"--dask {address}: ")
    assert "\n" not in str(caught.value)


class Cluster:
    """A scheduler and its workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "scheduler.json"
        self.log = (folder / "log").open("wb")
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-show", "--scheduler-file", str(self.file))
        self.wait(lambda: self.file.is_file() and self.file.stat().st_size > 0)
        self.address = json.loads(self.file.read_text())["address"]

    def start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        module = f"distributed.cli.dask_{what}"
        own = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
        self.processes.append(
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", module, "--no-dashboard", *options],
                cwd=self.folder,
                env=os.environ | own,
                stdout=self.log,
                stderr=subprocess.STDOUT,
            )
        )
        return self.processes[-1]

    def start_worker(self) -> subprocess.Popen[bytes]:
        return self.start("worker", self.address, "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1")

    def wait(self, ready: Any, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, Path(self.log.name).read_text()
            time.sleep(0.05)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("dask"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("corpus")
    texts = wordy_documents(40, seed=6)
    with staged_directory(folder / "c" / "documents") as aside:
        for split, chosen in (("train", texts[:36]), ("heldout", texts[36:])):
            with DocumentWriter(aside, split, group_bytes=3000) as writer:
                for number, text in enumerate(chosen):
                    writer.add(Document(text, "one" if number < 20 else "two", str(number)))
        write_manifest(aside, stage="download", key="k", inputs={}, settings={}, counts={})
    made = make_config(folder)
    train_tokenizer(made, say=quiet, progress=False)
    return made


def content(config: Config, **arguments: Any) -> dict[str, bytes]:
    made = prepare(config, overwrite=True, say=quiet, progress=False, **arguments)
    return {path.name: path.read_bytes() for path in sorted(made.directory.iterdir())}


def _host(place: str) -> None:
    Path(place).write_text(str(os.getpid()))
    time.sleep(0.3)


def _dies(number: int) -> None:
    os._exit(1)


@pytest.mark.slow  # 10 s; and with 2,000 other tests in its process, the library has failed to start a thread
def test_a_cluster_makes_the_same_bytes_and_its_faults_are_one_line(
    cluster: Cluster, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workers, "DASK_ANSWER", 1)
        with pytest.raises(
            RequestError, match=rf"--dask {cluster.address}: the scheduler has no workers; `dask worker"
        ):
            prepare(config, dask=cluster.address, say=quiet, progress=False)

    for _ in range(2):
        cluster.start_worker()
    expected = content(config, workers=1)
    assert content(config, dask=cluster.address) == expected
    places = [str(tmp_path / str(number)) for number in range(8)]
    assert len(list(workers.each_in_order(_host, places, dask=cluster.address))) == 8
    assert len({Path(place).read_text() for place in places}) == 2  # both took part

    with pytest.raises(
        BertptError, match=rf"--dask {cluster.address}: KilledWorker.*what is finished is kept"
    ) as caught:
        list(workers.each_in_order(_dies, [1], dask=cluster.address))
    assert "\n" not in str(caught.value)
