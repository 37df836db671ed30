"""A run on a budget of time: its clock, and what follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bertpt.config.schema import Schedule
from bertpt.train.updates.schedule import rate_at


def now() -> float:
    """Seconds of a clock that nobody sets."""
    return time.monotonic()


@dataclass(slots=True)
class Clock:
    """Seconds that a run has been trained: those before this start (``spent``), and those since."""

    spent: float = 0.0
    begun: float = field(default_factory=lambda: now())

    def __call__(self) -> float:
        """So far."""
        return self.spent + now() - self.begun


@dataclass(frozen=True, slots=True)
class Budget:
    """How far a run is by the time of its budget, or by its updates where those come to an end first.

    The greater of both counts: the rate is at its lowest where the run ends, whichever ends it.

    Attributes:
        seconds: of the whole run.
        total: most updates.
        way: share of the run that a number of updates is.
    """

    seconds: float
    total: int
    way: Callable[[int], float]

    def share(self, step: int, spent: float) -> float:
        """Part of the run that is over after ``step`` updates and ``spent`` seconds."""
        return max(spent / self.seconds, self.way(step))

    def rate(self, step: int, spent: float, schedule: Schedule, peak: float) -> float:
        """Learning rate of the update that begins now; one that is left out takes its time all the same."""
        return rate_at(self.share(step, spent), self.total, schedule, peak)
