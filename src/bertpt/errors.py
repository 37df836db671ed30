"""The errors that reach a user, and the exit code that each of them means."""

from __future__ import annotations

from collections.abc import Sequence


class BertptError(Exception):
    """Work failed. One line says what, where and what to do; the CLI exits with ``exit_code``."""

    exit_code = 1


class RequestError(BertptError):
    """The request was wrong (config, data, arguments) and nothing was written.

    Several faults are reported together, one line each, so that a user mends them in one go.
    """

    exit_code = 2

    def __init__(self, faults: str | Sequence[str]) -> None:
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        super().__init__("\n".join(self.faults))


class Stopped(BertptError):
    """Stopped by a signal or a time limit after saving; the same command goes on from there."""

    exit_code = 3


class Told(BertptError):
    """Another process of the same training has said what is wrong; this one ends with its exit code, and in silence."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__("another process has said why")
