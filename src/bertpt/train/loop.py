"""The loop over updates that pre-training and fine-tuning share: logging, evaluation, checkpoints, resume, signals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from bertpt.batch import Batch
from bertpt.config.schema import Train
from bertpt.errors import BertptError, Stopped
from bertpt.progress import Progress
from bertpt.signals import StopFlag
from bertpt.train.checkpoint import Checkpoint, newest_checkpoint, restore, save_checkpoint
from bertpt.train.logs import MetricsLog
from bertpt.train.optim import build_optimizer
from bertpt.train.schedule import learning_rate
from bertpt.train.step import Terms, Totals, train_step


class Work(Protocol):
    """What a loop trains: a model, its batches, its objective, its scores."""

    @property
    def model(self) -> nn.Module:
        """The model, on its device."""

    @property
    def total(self) -> int:
        """Updates of the whole run."""

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """Weight of each loss term."""

    def objective(self, model: Any, batch: Batch) -> Terms:
        """Loss terms and right predictions of a micro-batch."""

    def count_terms(self, batch: Batch) -> Mapping[str, int]:
        """Counts of the loss terms of a batch, known before the forward pass."""

    def updates(self, done: int) -> Iterator[Sequence[Batch]]:
        """The micro-batches of each update after the first ``done``, on the device."""

    def is_boundary(self, step: int) -> bool:
        """Whether the data change in kind after update ``step``: logged means do not reach over it."""

    def evaluate(self, step: int, before_batch: Callable[[], None]) -> dict[str, float]:
        """Held-out scores after update ``step``; what ``before_batch`` raises ends the evaluation."""

    def state(self, step: int) -> dict[str, Any]:
        """Plain data for the checkpoint of ``step``: the position in the data, and what a reader of it must know."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave."""

    def shown(self, values: Mapping[str, float]) -> dict[str, str]:
        """The logged values that stand beside the progress."""


class _PutOff(Exception):
    """A signal came during an evaluation."""


@dataclass
class _Position:
    step: int = 0
    evaluation_due: bool = False  # put off by a signal


@contextmanager
def _subnormals_flushed() -> Iterator[None]:
    """Subnormal numbers (Adam's moments of rare tokens) are many times slower on CPUs and mean nothing.

    Afterwards they count again: the setting is the thread's, and other code may need them.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class Loop:
    """One run in its directory: from the newest intact checkpoint, or from the start, to the last update.

    Args:
        directory: of the run.
        work: what is trained.
        settings: how; its phases are the work's own matter.
        precision: ``fp32`` or ``bf16``.
        say: gets lines for people.
    """

    def __init__(
        self, directory: Path, work: Work, settings: Train, *, precision: str, say: Callable[[str], None]
    ) -> None:
        self.directory, self.work, self.settings, self.precision = directory, work, settings, precision
        self.optimizer: Optimizer = build_optimizer(work.model, settings.optimizer)
        self.position = _Position()
        if (checkpoint := newest_checkpoint(directory, say)) is not None:
            self._resume(checkpoint, say)

    def _resume(self, checkpoint: Checkpoint, say: Callable[[str], None]) -> None:
        restore(checkpoint, self.work.model, self.optimizer)
        self.work.load_state(checkpoint.state)
        self.position = _Position(checkpoint.step, checkpoint.state.get("evaluation_due", False))
        if not self.finished:
            say(f"going on from {checkpoint.directory} (update {checkpoint.step} of {self.work.total})")

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.position.step >= self.work.total and not self.position.evaluation_due

    def train(self, what: str, *, progress: bool = True) -> None:
        """All updates that are left; ``progress`` shows them on stderr as ``what``.

        Raises:
            Stopped: a signal came; the position was saved.
            BertptError: loss or gradient are no longer finite; the last checkpoint is as it was.
        """
        if self.finished:
            return
        with (
            _subnormals_flushed(),
            MetricsLog(self.directory, self.position.step) as log,
            StopFlag() as stop,
            Progress(what, total=self.work.total, unit="updates", start=self.position.step, shown=progress) as bar,
        ):
            if self.position.evaluation_due:
                self._evaluate(log, stop)
                self._save_and_leave(stop.requested)
            self._train(log, stop, bar)

    def _train(self, log: MetricsLog, stop: StopFlag, bar: Progress) -> None:
        work, settings = self.work, self.settings
        totals, clock = Totals.empty(), time.perf_counter()
        for batches in work.updates(self.position.step):
            rate = learning_rate(self.position.step, work.total, settings.schedule, settings.optimizer.lr)
            train_step(
                work.model,
                self.optimizer,
                batches,
                work.objective,
                work.count_terms,
                totals,
                weights=work.loss_weights,
                lr=rate,
                clip=settings.clip,
                precision=self.precision,
            )
            self.position.step += 1
            step, last = self.position.step, self.position.step == work.total
            if step % settings.log_every == 0 or last or work.is_boundary(step):
                self._log(log, bar, totals, rate, time.perf_counter() - clock)
                totals, clock = Totals.empty(), time.perf_counter()
            else:
                bar.add()
            paused = time.perf_counter()
            self.position.evaluation_due = last or (settings.eval_every > 0 and step % settings.eval_every == 0)
            save = last or step % settings.save_every == 0
            signal = stop.requested  # read once: what comes later is for the next update
            if save or signal or self.position.evaluation_due:
                self._check_finite(totals)
            if self.position.evaluation_due:
                self._evaluate(log, stop)
                signal = signal or stop.requested
            if save or signal:
                self._save_and_leave(signal)
            clock += time.perf_counter() - paused

    def _evaluate(self, log: MetricsLog, stop: StopFlag) -> None:
        """Log the held-out scores; a signal puts them off until the run goes on."""

        def leave_off() -> None:
            if stop.requested:
                raise _PutOff

        with suppress(_PutOff):
            log.write("heldout", self.position.step, self.work.evaluate(self.position.step, leave_off))
            self.position.evaluation_due = False

    def _save_and_leave(self, signal: str | None) -> None:
        """Save, and leave for a signal unless all is done."""
        step = self.position.step
        state = self.work.state(step) | {"evaluation_due": self.position.evaluation_due}
        path = save_checkpoint(self.directory, step, self.work.model, self.optimizer, state, keep=self.settings.keep)
        if signal and not self.finished:
            raise Stopped(f"stopped by {signal} after update {step}; saved {path}; the same command goes on")

    def _log(self, log: MetricsLog, bar: Progress, totals: Totals, rate: float, seconds: float) -> None:
        assert totals.gradient_norm is not None
        values = totals.means() | {
            "lr": rate,
            "gradient_norm": float(totals.gradient_norm),
            "tokens_per_second": totals.tokens / seconds,
            "rows_per_second": totals.rows / seconds,
            "padding_share": 1 - totals.tokens / totals.grid,
        }
        log.write("train", self.position.step, values)
        self._check_finite(totals)
        bar.add(1, **self.work.shown(values))

    def _check_finite(self, totals: Totals) -> None:
        """Weights that are no longer numbers are never saved. Waits for the device.

        The last gradient and the losses tell: one that was not finite before it shows in every loss after it.
        """
        values = totals.means()
        if totals.gradient_norm is not None:
            values["gradient_norm"] = float(totals.gradient_norm)
        if not all(math.isfinite(value) for value in values.values()):
            raise BertptError(
                f"update {self.position.step}: loss or gradient are not finite ({values}); lower train.optimizer.lr or"
                " lengthen the warm-up; the last checkpoint is as it was"
            )
