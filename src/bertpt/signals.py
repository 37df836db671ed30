"""SIGINT, SIGTERM, SIGUSR1 and a time limit as a wish to stop; a second Ctrl-C leaves at once.

The program answers the first with :class:`Interrupted`, wherever it is: what a stage was writing aside is removed, and
the same command goes on from what was finished. Training notes it (:class:`StopFlag`) and saves first. Later ones are
passed over, for batch systems and wrappers send several; only another Ctrl-C is not.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from bertpt.errors import RequestError, Stopped, Told

# SIGALRM is that of ``time_limit``.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGALRM") if hasattr(signal, name)]
TIME_LIMIT = "--stop-after"


class Interrupted(KeyboardInterrupt):
    """The first signal came; ``str()`` is its name."""


class _Watch:
    """The handlers of one process, while they are installed."""

    def __init__(self) -> None:
        self.received: str | None = None
        self.raised = False
        self.limited = False  # by a timer of ours
        self.noting = 0  # inside so many parts that are to end first
        self.before: dict[int, Any] = {}

    def install(self) -> None:
        # Who starts a program with Ctrl-C ignored (a shell's background job) wants it ignored.
        heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self.before = {number: signal.signal(number, self.handle) for number in heard}

    def restore(self) -> None:
        if self.limited:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self.before = {}

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = TIME_LIMIT if number == getattr(signal, "SIGALRM", None) else signal.Signals(number).name
            if not self.noting:
                self.leave()
        elif number == signal.SIGINT:
            self.restore()
            signal.raise_signal(number)

    def leave(self) -> None:
        self.raised = True
        raise Interrupted(self.received)


_watch: _Watch | None = None


def _forget() -> None:
    """A forked process answers for itself: its signals are not to be counted in its parent's socket."""
    global _watch
    _watch = None
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Let the first signal inside raise :class:`Interrupted`, or be noted by :class:`StopFlag`.

    Outside the main thread, and inside another ``answered``, nothing changes.
    """
    global _watch
    if _watch is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _watch = _Watch()
    try:
        _watch.install()
        yield
    finally:
        too_late()
        _watch.restore()
        _watch = None


def received() -> str | None:
    """What asked the program to stop."""
    return None if _watch is None else _watch.received


def lost_as(error: BaseException) -> bool:
    """Whether ``error`` is what a library made of :class:`Interrupted`, in whose C code the handler happened to run."""
    return _watch is not None and _watch.raised and not isinstance(error, Stopped | Told | KeyboardInterrupt)


def too_late() -> None:
    """From now on, until the end of :func:`answered`, signals change nothing: how the command ends is being said.

    What has failed can take long to let go of (the processes of a training), and a launcher ends the others meanwhile.
    """
    if _watch is not None:
        _watch.noting += 1


def ignore() -> None:
    """From now on a wish to stop comes too late: all is done, and the exit code says how."""
    for number in set(_SIGNALS) - {signal.SIGINT}:
        signal.signal(number, signal.SIG_IGN)


def check() -> None:
    """Raise :class:`Interrupted` for a signal that came and was lost.

    An exception out of a handler that happens to run inside a finaliser is printed and dropped by Python.
    """
    if _watch is not None and _watch.received and not _watch.noting and _in_main_thread():
        _watch.leave()


@contextlib.contextmanager
def held() -> Iterator[None]:
    """A part that is not to be left half-done; what came inside is raised at its end."""
    if _watch is None or not _in_main_thread():
        yield
        return
    watch = _watch
    watch.noting += 1
    try:
        yield
    finally:
        watch.noting -= 1
    if watch.received and not watch.raised and not watch.noting:
        watch.leave()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class StopFlag:
    """While entered, the first signal is only noted: ``requested`` is its name (or ``--stop-after``), else ``None``.

    Whoever enters it looks at ``requested`` and leaves by itself. Outside the main thread nothing is installed.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._watch: _Watch | None = None

    @property
    def requested(self) -> str | None:
        """What asked to stop."""
        return None if self._watch is None else self._watch.received

    def __enter__(self) -> StopFlag:
        self._stack.enter_context(answered())
        if _watch is not None and _in_main_thread():
            self._watch = _watch
            self._watch.noting += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.noting -= 1
        self._stack.close()


# --- at once ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def second_at_once() -> Iterator[None]:
    """Let a second Ctrl-C end the process even while a library works and no Python code runs. For the program alone.

    Python runs handlers between its own instructions only; training a vocabulary can take a minute without any. The
    system's own handler writes each signal's number into a socket, which a thread reads. What is cut off lies aside,
    under no final name, and is swept by the next command.
    """
    if os.name != "posix" or not _in_main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    before = signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_leave_on_second, args=(theirs,), name="second Ctrl-C", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ours.close()  # ends the thread


def _leave_on_second(numbers: socket.socket) -> None:
    first = True
    with numbers:
        while received := numbers.recv(1):
            if received[0] in _SIGNALS:
                if received[0] == signal.SIGINT and not first:
                    os._exit(128 + signal.SIGINT)
                first = False


# --- time limit -------------------------------------------------------------------------------------------------

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_SECONDS = (86400, 3600, 60, 1)


A_TIME = "a time such as 3h50m, 90m or 2d12h is expected"


def duration_seconds(duration: str) -> int | None:
    """``3h50m`` -> 13800. Days (d), hours (h), minutes (m), seconds (s), in this order; else, or of zero, ``None``."""
    found = _DURATION.fullmatch(duration.strip())
    seconds = sum(int(part or 0) * unit for part, unit in zip(found.groups(), _SECONDS, strict=True)) if found else 0
    return seconds if 0 < seconds < 2**31 else None


def seconds_of(duration: str) -> int:
    """:func:`duration_seconds` of the time limit.

    Raises:
        RequestError: it is no such time.
    """
    seconds = duration_seconds(duration)
    if seconds is None:
        raise RequestError(f"{TIME_LIMIT}: {duration}: {A_TIME}")
    return seconds


def time_limit(duration: str | None) -> None:
    """From now on, after ``duration`` of real time, the program is asked to stop as by a signal.

    It is the system's timer: a clock that is set forward or back does not matter, nor does what the program does then.

    Raises:
        RequestError: ``duration`` is no time, or the system has no such timer.
    """
    if duration is None:
        return
    seconds = seconds_of(duration)
    if not hasattr(signal, "setitimer"):
        raise RequestError(f"{TIME_LIMIT}: this system has no timer for it")
    if _watch is not None:  # else SIGALRM would end the process
        _watch.limited = True
        signal.setitimer(signal.ITIMER_REAL, seconds)
