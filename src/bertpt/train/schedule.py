"""Learning rate of each update: pure functions."""

from __future__ import annotations

from bertpt.config.schema import Schedule


def learning_rate(update: int, total: int, schedule: Schedule, peak: float) -> float:
    """Rate of update ``update`` (from 0) of ``total``: above 0 for each, at most ``peak``.

    Warm-up rises in equal steps and reaches the peak with its last update; linear decay falls in equal steps from
    the first update after it to peak / (total - warm-up) at the last. (The released code decays
    from step 0, with a drop at the end of its warm-up.) Past the end the last rate stays.
    """
    warmup = schedule.warmup(total)
    update = min(update, total - 1)
    if update < warmup:
        return peak * (update + 1) / warmup
    if schedule.kind == "constant":
        return peak
    return peak * (total - update) / (total - warmup)
