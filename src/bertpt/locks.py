"""Locks by which one process at a time makes a thing, and by which what a killed one left behind is known.

The system drops a lock when its process ends, however it ends: no process number is ever compared, and none that was
given out again can mislead. Where the system or the disk has no locks, all of this does nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from bertpt.errors import BertptError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def claimed(final: Path, aside: Path) -> Iterator[None]:
    """Make the empty directory ``aside``, in which ``final`` is made, and hold it; remove what dead processes left.

    What is written aside for ``final`` is called ``.NAME.<process>.tmp``; what it replaces ``.NAME.<process>.old``.

    Raises:
        BertptError: another process is making ``final`` now.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        # The folder is locked while its leftovers are looked at, so that no new one is taken for a leftover.
        with _held(final.parent, wait=True):
            sweep(final)
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            held.enter_context(_held(aside))
        yield


@contextlib.contextmanager
def claimed_file(final: Path) -> Iterator[BinaryIO]:
    """An empty file beside ``final``, in which it is made, held by this process; what dead ones left is removed.

    It is called ``.NAME.<process>.tmp``, is never a link to elsewhere, and is gone afterwards unless it was renamed.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    aside = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    _sweep_files(final)
    # O_EXCL does not follow a link that someone has put there.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        while True:
            aside.unlink(missing_ok=True)
            with open(aside, "wb", opener=lambda path, _: os.open(path, flags, 0o666)) as file:
                if not _held_at(file.fileno(), aside):  # swept before it was held
                    continue
                yield file
                return
    finally:
        aside.unlink(missing_ok=True)


def _held_at(descriptor: int, path: Path) -> bool:
    """Hold an open file; false when ``path`` no longer is that file."""
    if fcntl is None:
        return True
    with contextlib.suppress(OSError):  # a disk without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _sweep_files(final: Path) -> None:
    """Remove the files beside ``final`` that killed processes were writing; those in work are passed over."""
    if fcntl is None:
        return
    leftover = re.compile(rf"\.{re.escape(final.name)}\.\d+\.tmp")
    for path in final.parent.iterdir():
        if leftover.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with contextlib.suppress(BlockingIOError), _held(path) as locked:
                if locked:
                    path.unlink(missing_ok=True)


def sweep(final: Path) -> None:
    """Remove what killed processes left beside ``final``; what one had moved away to replace it is put back.

    Raises:
        BertptError: another process is making ``final`` now.
    """
    if fcntl is None:
        return
    leftover = re.compile(rf"\.{re.escape(final.name)}\.(\d+)\.(tmp|old)")
    # Unfinished ones first: a process that is at work is met before what it has moved away.
    for path in sorted(final.parent.iterdir(), key=lambda path: path.suffix, reverse=True):
        if (found := leftover.fullmatch(path.name)) is None:
            continue
        try:
            with _held(path) as locked:
                if not locked:
                    continue
                if found[2] == "old" and not final.exists():
                    path.replace(final)
                elif path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        except BlockingIOError as error:
            raise BertptError(
                f"{final}: another process ({found[1]}) is making it; give the same command when that is done"
            ) from error


@contextlib.contextmanager
def _held(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold ``path``; false where it cannot be locked.

    Raises:
        BlockingIOError: another process holds it, and ``wait`` is false.
    """
    if fcntl is None:
        yield False
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:
            locked = False
        yield locked
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Let one process at a time work in ``directory``, by its file ``.lock``; nothing where it does not exist yet.

    Processes that were started inside do not hold it: they may outlive one that was killed.

    Raises:
        BertptError: another process works there.
    """
    if fcntl is None or not directory.is_dir():
        yield
        return
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            file = held.enter_context((directory / ".lock").open("a", encoding="utf-8"))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                raise BertptError(
                    f"{directory}: another process works here; wait until it ends, or set another name"
                    " (--set name=NAME)"
                ) from error
        yield


def is_worked_in(directory: Path) -> bool:
    """Whether another process holds :func:`only_one` of ``directory``.

    Never to be asked in the process that holds it: closing the file drops the lock.
    """
    path = directory / ".lock"
    if fcntl is None or not path.is_file():
        return False
    try:
        with path.open("rb+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return os.access(path, os.W_OK)  # a file that we may not open tells nothing
    except OSError:
        return False
    return False
