"""Planned epochs as files, which workers and later runs share: each made once, by one process, and checked."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertpt.data.rows.plan import ROW
from bertpt.errors import BertptError
from bertpt.files import write_file

_log = logging.getLogger(__name__)
_DIGEST = hashlib.sha256().digest_size


def kept_plan(cache: Path, stem: str, epoch: int, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """The rows of ``<stem>-<epoch>.bin`` in ``cache``, memory-mapped; ``make`` plans them when they are not there.

    A damaged file is made again: the rows are the same. The plan of two epochs before is removed.

    Raises:
        BertptError: the disk does not keep what is written.
    """
    path = cache / f"{stem}-{epoch}.bin"
    with _alone(cache / f"{stem}.lock"):
        if (rows := _read(path)) is None:
            begun = time.monotonic()
            made = make().tobytes()
            rows_made = len(made) // ROW.itemsize
            _log.debug("%s: planned %d rows in %.1f s", path, rows_made, time.monotonic() - begun)
            write_file(path, made + hashlib.sha256(made).digest())
            if epoch >= 2:
                (cache / f"{stem}-{epoch - 2}.bin").unlink(missing_ok=True)
            rows = _read(path)
        if rows is None:
            raise BertptError(f"{path}: what was written reads otherwise; is the disk sound?")
        return rows


def _read(path: Path) -> NDArray[Any] | None:
    """The rows of a file, which ends in the SHA-256 of what is before; ``None`` when it is not there or damaged.

    A row that was changed would point anywhere in the store, and nothing would tell. Takes about a second for 60
    million rows.
    """
    try:
        count, rest = divmod(path.stat().st_size - _DIGEST, ROW.itemsize)
        if count < 1 or rest:
            return None
        content = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError):
        return None
    if hashlib.sha256(content[:-_DIGEST].data).digest() != content[-_DIGEST:].tobytes():
        return None
    rows: NDArray[Any] = np.memmap(path, ROW, mode="r", shape=(count,))
    return rows


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Let one process in at a time, so that of many workers and ranks one plans and the others wait.

    Where the system or the disk has no locks all plan, with the same result.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("wb") as file:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
