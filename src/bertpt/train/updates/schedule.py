"""Learning rate of each update: pure functions."""

from __future__ import annotations

import math

from bertpt.config.schema import Schedule


def learning_rate(update: int, total: int, schedule: Schedule, peak: float) -> float:
    """Rate of update ``update`` (from 0) of ``total``: above 0 for each, at most ``peak``.

    Warm-up rises in equal steps and reaches the peak with its last update; what follows begins with the first update
    after it at the peak. Decays reach 0 at ``total``, so the last update has the smallest rate that is not 0: linear,
    peak / (total - warm-up). (The released code decays from step 0, with a drop at the end of its warm-up.) Past the
    end the last rate stays.
    """
    warmup = schedule.warmup(total)
    update = min(update, total - 1)
    if update < warmup:
        return peak * (update + 1) / warmup
    return peak * _decay(update, warmup, total, schedule)


def rate_at(share: float, total: int, schedule: Schedule, peak: float) -> float:
    """Rate of an update that begins when ``share`` (0 to 1) of the run is over: :func:`learning_rate`, continued.

    For runs that are measured by time or by tokens. Decays reach 0 at 1. Beyond, the rate at 1 stays.
    """
    warmup, update = schedule.warmup(total), min(share, 1.0) * total
    if update < warmup:
        return peak * min(1.0, (update + 1) / warmup)
    return peak * _decay(update, warmup, total, schedule)


def _decay(update: float, warmup: int, total: int, schedule: Schedule) -> float:
    """Share of the peak after the warm-up."""
    left = (total - update) / (total - warmup)
    match schedule.kind:
        case "linear":
            return left
        case "cosine":
            return 0.5 - 0.5 * math.cos(math.pi * left)
        case "polynomial":
            return float(left**schedule.power)
        case "trapezoid":
            return min(1.0, (total - update) / min(schedule.decay_ratio * total, total - warmup))
        case "inverse_sqrt":
            return math.sqrt(max(1, warmup) / max(1, warmup, update))
        case "constant":
            return 1.0
