"""A preparation in parts: what one task encodes, and the file in which its result waits until all are done.

A part is one row group of the documents (16 MiB of text or one document), so parts are the same whoever makes them.
A finished one is a NumPy archive of plain arrays, whose checksums are compared when it is read. It carries the key of
the store and the versions of what cut and encoded the text: after a kill or an update, only parts that would come out
the same are used again.
"""

from __future__ import annotations

import io
import json
import socket
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertpt.data.corpus.documents import read_shard, shards_of
from bertpt.data.stage import SPLITS, Split
from bertpt.data.tokenizer.wordpiece import load_tokenizer
from bertpt.data.tokens.encode import EncodeCounts, Encoded, Encoder
from bertpt.errors import BertptError, RequestError
from bertpt.files import write_file

VERSIONS = {name: version(name) for name in ("tokenizers", "sentencex")}
_ARRAYS = ("ids", "lengths", "sizes", "sources")
_own = threading.local()  # a tokenizer for each thread: those of a Dask worker share a process


@dataclass(frozen=True, slots=True)
class Job:
    """What all parts of one preparation share; small, for it travels with every task. Paths are absolute."""

    key: str
    tokenizer: str
    language: str
    mode: Literal["split", "lines"]
    min_sentences: int
    directory: str  # where finished parts wait


@dataclass(frozen=True, slots=True)
class Task:
    """One part to make: a row group of one file of documents."""

    job: Job
    number: int
    split: Split
    file: str
    group: int

    @property
    def path(self) -> Path:
        """The file of the finished part."""
        return Path(self.job.directory) / f"{self.number:06d}.npz"


def tasks_of(job: Job, documents: Path) -> list[Task]:
    """All tasks, in the order of the store.

    Raises:
        RequestError: a file is damaged.
    """
    places: list[tuple[Split, str, int]] = []
    for split in SPLITS:
        for shard in shards_of(documents, split):
            try:
                groups = pq.read_metadata(shard).num_row_groups
            except (pa.ArrowException, OSError) as error:
                raise RequestError(f"{shard}: damaged ({error}); run `bertpt download --overwrite`") from error
            places += [(split, str(shard.resolve()), group) for group in range(groups)]
    return [Task(job, number, *place) for number, place in enumerate(places)]


def make(task: Task) -> None:
    """Encode one part and write it, whole or not at all. Runs in any process on any machine that sees the files.

    Raises:
        RequestError: the documents are not there or damaged.
        BertptError: the part cannot be written.
    """
    if not Path(task.file).is_file():
        raise RequestError(
            f"{task.file}: not there on {socket.gethostname()}; all machines that prepare have to see the data"
            " directory under the same path"
        )
    encoded = _encoder(task.job).encode(read_shard(Path(task.file), task.group))
    about = {
        "key": task.job.key,
        "versions": VERSIONS,
        "labels": encoded.labels,
        "counts": vars(encoded.counts),
    }
    arrays = {name: _small(getattr(encoded, name)) for name in _ARRAYS}
    buffer = io.BytesIO()
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(buffer, allow_pickle=False, **arrays)
    write_file(task.path, buffer.getbuffer(), sync=False)


def _small(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def _encoder(job: Job) -> Encoder:
    if getattr(_own, "job", None) != job:
        tokenizer = load_tokenizer(Path(job.tokenizer))
        _own.encoder, _own.job = Encoder(tokenizer, job.language, job.mode, job.min_sentences), job
    found: Encoder = _own.encoder
    return found


def read(task: Task) -> Encoded | None:
    """A finished part; ``None`` when it is missing, damaged, or made from other text, settings or versions."""
    try:
        with np.load(task.path, allow_pickle=False) as archive:
            about = json.loads(archive["about"].tobytes())
            if (about["key"], about["versions"]) != (task.job.key, VERSIONS):
                return None
            arrays = {name: archive[name] for name in _ARRAYS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    counts = about["counts"]
    counts["unknown"] = Counter(counts["unknown"])
    return Encoded(**arrays, labels=about["labels"], counts=EncodeCounts(**counts))


def made_in_order(tasks: Iterable[Task], waiting: Collection[Task], made: Iterator[None]) -> Iterator[Encoded]:
    """The parts of all tasks in order; for those that were ``waiting``, as ``made`` says that one more is there.

    Raises:
        BertptError: a part that was made is not there, or is of other versions than those here.
    """
    for task in tasks:
        if task in waiting:
            next(made)
        encoded = read(task)
        if encoded is None:
            here = ", ".join(f"{name} {number}" for name, number in VERSIONS.items())
            raise BertptError(
                f"{task.path}: was made and cannot be used; all machines that prepare have to see the data"
                f" directory and to have {here}"
            )
        yield encoded
