"""Numbers gone bad: updates that are left out, the rate that waits for them, and losses that jump.

Whether a loss or gradient is finite is told on the device, and the optimizer leaves the update out there, by the
``found_inf`` that gradient scalers use: no step waits for the device.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bertpt.config.schema import Schedule
from bertpt.train.updates.schedule import learning_rate, rate_at

_RECENT, _FEWEST, _JUMP = 20, 5, 1.3  # logged losses a jump is measured by; how many are needed; how far it goes


def not_finite(values: Iterable[Tensor]) -> Tensor:
    """Bool []: whether any of the numbers (0-dim tensors) is NaN or infinite."""
    return ~torch.stack([torch.isfinite(value).all() for value in values]).all()


@dataclass(slots=True)
class Skips:
    """Updates that were left out: int64 [] on the device. Weights, moments and schedule are as if they had not been."""

    total: Tensor
    in_a_row: Tensor

    @classmethod
    def of(cls, device: torch.device, total: int = 0, in_a_row: int = 0) -> Skips:
        """From the numbers of a checkpoint."""
        return cls(torch.tensor(total, device=device), torch.tensor(in_a_row, device=device))

    def note(self, skipped: Tensor) -> None:
        """Count one update; ``skipped`` is bool []."""
        self.total = self.total + skipped
        self.in_a_row = (self.in_a_row + 1) * skipped

    def state(self) -> dict[str, int]:
        """Plain numbers for a checkpoint. Waits for the device."""
        return {"skipped": int(self.total), "skipped_in_a_row": int(self.in_a_row)}


class Rates:
    """The learning rate by the number of updates that were made, skipped ones left out.

    On a GPU that number is known there alone, so the rates lie there as well: fp32 [total], as the fused optimizer
    takes them.

    Args:
        total: updates of the run.
        schedule: their rates, the highest of which is ``peak``.
        device: of the weights.
        way: share of the run that a number of updates is, where the schedule does not go over updates.
    """

    def __init__(
        self,
        total: int,
        schedule: Schedule,
        peak: float,
        device: torch.device,
        way: Callable[[int], float] | None = None,
    ) -> None:
        self._total, self._schedule, self._peak = total, schedule, peak
        self._way = None if schedule.over == "updates" else way
        self._table = None if device.type == "cpu" else self.table().to(device)

    def table(self) -> Tensor:
        """The rates of all updates."""
        return torch.tensor([self._rate(update) for update in range(self._total)], dtype=torch.float32)

    def _rate(self, update: int) -> float:
        if self._way is None:
            return learning_rate(update, self._total, self._schedule, self._peak)
        return rate_at(self._way(min(update, self._total - 1)), self._total, self._schedule, self._peak)

    def __call__(self, step: int, skips: Skips) -> float | Tensor:
        """The rate of the update after ``step`` ones, of which ``skips.total`` were left out."""
        made = step - skips.total
        if self._table is None:
            return self._rate(int(made))
        return self._table[made]


class Jumps:
    """Tells a loss that jumps: more than 1.3 times the median of the last 20 logged ones."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._said = False

    def note(self, loss: float) -> str | None:
        """A line when the loss has jumped, once until it is back; of a NaN nothing is said."""
        line = None
        if len(self._recent) >= _FEWEST:
            usual = statistics.median(self._recent)
            jumped = loss > _JUMP * usual
            if jumped and not self._said:
                line = f"the loss jumped to {loss:.3f}, from {usual:.3f} over the last {len(self._recent)} lines"
            self._said = jumped
        if loss == loss:
            self._recent.append(loss)
        return line
