"""Which rows an update takes, and how micro-batches and processes share them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.utils.data import Sampler

from bertpt.config.check import nearest_divisor, nearest_proper_divisor
from bertpt.config.schema import Phase
from bertpt.errors import RequestError


def micro_batches(phase: Phase, step: int) -> Iterator[tuple[int, int]]:
    """Start in the phase's sequence of rows, and number of rows, of each micro-batch of update ``step`` (from 0).

    All are as large as those of a full update but the last one of an update of a ramp.
    """
    start, rows, most = phase.rows_before(step), phase.rows(step), phase.batch_size // phase.parts
    for begin in range(0, rows, most):
        yield start + begin, min(most, rows - begin)


@dataclass(frozen=True)
class Cuts(Sampler[tuple[int, int]]):
    """One process's share of every micro-batch of a phase, after the first ``done`` updates: start and rows.

    A micro-batch is dealt out in equal stretches, one process after the other.
    """

    phase: Phase
    done: int = 0
    rank: int = 0
    size: int = 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in range(self.done, self.phase.steps):
            for start, rows in micro_batches(self.phase, step):
                share = rows // self.size
                yield start + self.rank * share, share


def share(where: str, batch_size: int, accumulate: int, size: int) -> int:
    """Rows of one micro-batch of one process.

    Args:
        where: the key of the phase, for the message.

    Raises:
        RequestError: the rows of an update cannot be dealt out equally.
    """
    rows, rest = divmod(batch_size, accumulate * size)
    if not rest:
        return rows
    if batch_size % size == 0:
        what = f"set {where}.accumulate={nearest_divisor(batch_size // size, accumulate)}"
    else:
        unit = accumulate * size
        values = [value for value in (batch_size // unit * unit, (batch_size // unit + 1) * unit) if value]
        fitting = [n for n in range(1, size) if batch_size % (n * accumulate) == 0]
        what = f"set {where}.batch_size={' or '.join(map(str, values))}" + (
            f", or start {fitting[-1]} {'process' if fitting[-1] == 1 else 'processes'}" if fitting else ""
        )
    raise RequestError(
        f"{where}.batch_size: {batch_size} rows cannot be dealt out to {size} processes in micro-batches of equal size"
        f" (accumulate {accumulate}); {what}"
    )


def check_shares(where: str, phase: Phase, size: int) -> None:
    """Check that every micro-batch of a phase can be dealt out equally to ``size`` processes.

    Raises:
        RequestError: it cannot; names the key ``where`` and what to set.
    """
    share(where, phase.batch_size, phase.parts, size)
    if phase.ramp is not None and phase.ramp.batch_size % size:
        share_of_one = nearest_proper_divisor(phase.batch_size // size, phase.ramp.batch_size / size)
        raise RequestError(
            f"{where}.ramp.batch_size: {phase.ramp.batch_size} rows cannot be dealt out equally to {size} processes;"
            + (" leave ramp out" if share_of_one is None else f" the nearest that can is {size * share_of_one}")
        )
