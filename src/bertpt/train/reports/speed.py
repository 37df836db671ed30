"""What a line of the log says of speed and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

from bertpt.progress import peak_memory
from bertpt.train.cost import find_device
from bertpt.train.updates.step import Totals

T = TypeVar("T")


@dataclass(slots=True)
class Waits:
    """Seconds that were spent waiting for data: host time, so no device is waited for.

    A GPU may still be busy meanwhile with what it was given before: the share of this time bounds what a faster loader
    could gain.
    """

    seconds: float = 0.0

    def over(self, items: Iterator[T], clock: Callable[[], float] = time.perf_counter) -> Iterator[T]:
        """The items, counting the time that each takes to come."""
        while True:
            begun = clock()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.seconds += clock() - begun
            yield item


def peak_speed(device: torch.device) -> float | None:
    """Matrix products that a known GPU makes in bf16, operations per second (``cost.DEVICES``); else ``None``."""
    if device.type != "cuda":
        return None
    found = find_device(torch.cuda.get_device_name(device))
    return None if found is None else found[1]


def peak_memory_bytes(device: torch.device) -> int | None:
    """Most bytes so far: those torch held on a GPU, on a CPU those of the process; ``None`` where nobody tells."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory()


def speed_numbers(
    totals: Totals, flops: float, seconds: float, waited: float, device: torch.device, devices: int = 1
) -> dict[str, float]:
    """The numbers of speed and memory in a line of the log.

    Args:
        totals: of the line's updates, on all devices.
        flops: of these updates (``cost.training_flops``: without padding, recomputation not counted).
        seconds: that they took; waited: of these, for data.
        device: one of the devices; devices: how many there are.

    Returns:
        ``tokens_per_second`` (real ones), ``rows_per_second``, ``padding_share``, ``data_wait_share``,
        ``tflops_per_second`` (in all, 10^12), ``mfu`` of a known GPU (share of its speed in 16 bits, whatever the
        precision), ``peak_memory_gib`` (2^30 bytes of this process's device).
    """
    values = {
        "tokens_per_second": totals.tokens / seconds,
        "rows_per_second": totals.rows / seconds,
        "padding_share": 1 - totals.tokens / totals.grid,
        "data_wait_share": waited / seconds,
        "tflops_per_second": flops / seconds / 1e12,
    }
    if (peak := peak_speed(device)) is not None:
        values["mfu"] = flops / seconds / (devices * peak)
    if (memory := peak_memory_bytes(device)) is not None:
        values["peak_memory_gib"] = memory / 2**30
    return values
