"""The loop over updates that pre-training and fine-tuning share: logging, evaluation, checkpoints, resume, signals."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from bertpt.batch import Batch
from bertpt.config.schema import Train
from bertpt.errors import BertptError, Stopped
from bertpt.progress import Progress, counted
from bertpt.signals import StopFlag
from bertpt.train.blame import NOT_AGAIN, blame
from bertpt.train.checkpoints.checkpoint import (
    Checkpoint,
    checkpoint_path,
    newest_checkpoint,
    open_checkpoint,
    restore,
    restore_random,
)
from bertpt.train.checkpoints.saving import Keep, Snapshot, Writer, check_room, remove_halves, write_checkpoint
from bertpt.train.ranks import ALONE, Ranks
from bertpt.train.reports.dynamics import Dynamics
from bertpt.train.reports.logs import MetricsLog
from bertpt.train.reports.speed import Waits, speed_numbers
from bertpt.train.updates.budget import Budget, Clock
from bertpt.train.updates.optim import build_optimizer
from bertpt.train.updates.skips import Jumps, Rates, Skips
from bertpt.train.updates.step import Totals, subnormals_flushed, train_step
from bertpt.train.work import Work

_log = logging.getLogger(__name__)


class _PutOff(Exception):
    """A signal came during an evaluation."""


@dataclass
class _Position:
    """Where the run stands: updates, and what was summed for the log since it was last written."""

    step: int = 0
    evaluation_due: bool = False  # put off by a signal
    budget_passed: bool = False
    totals: Totals = field(default_factory=Totals.empty)
    seconds: float = 0.0  # that the updates in ``totals`` took
    waits: Waits = field(default_factory=Waits)  # of these seconds, for data
    spent: float = 0.0  # seconds of a budget after the last update, as the first process counts them


@contextmanager
def _tf32(wanted: bool) -> Iterator[None]:
    """Products of fp32 matrices in TF32 on GPUs that have it; afterwards as before."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = wanted or before
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class Loop:
    """One run in its directory: from the newest intact checkpoint, or from the start, to the last update.

    Args:
        directory: of the run.
        work: what is trained.
        settings: how; its phases are the work's own matter.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        say: gets lines for people.
        rate_key: what the user calls the learning rate.
        writer: writes the checkpoints, and what the work gives it.
        ranks: the processes that train together; the first alone says, logs, evaluates and writes.
    """

    def __init__(
        self,
        directory: Path,
        work: Work,
        settings: Train,
        *,
        precision: str,
        say: Callable[[str], None],
        rate_key: str = "train.optimizer.lr",
        writer: Writer | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.directory, self.work, self.settings, self.precision = directory, work, settings, precision
        self.say, self.rate_key, self.writer, self.ranks = say, rate_key, writer or Writer(), ranks
        self.device = next(work.model.parameters()).device
        sharded = settings.shard_optimizer and ranks.size > 1
        self.optimizer: Optimizer = build_optimizer(work.model, settings.optimizer, sharded=sharded)
        self.rates = Rates(work.total, settings.schedule, settings.optimizer.lr, self.device, work.way)
        self.scaler = GradScaler(self.device.type) if precision == "fp16" else None
        seconds = settings.budget_seconds
        self.budget = None if seconds is None else Budget(seconds, work.total, work.way)
        self.position, self.clock, self.skips = _Position(), Clock(), Skips.of(self.device)
        self.jumps = Jumps()
        self.dynamics = Dynamics(work.model, self.optimizer, settings.clip)
        if (checkpoint := self._newest()) is not None:
            self._resume(checkpoint)
        elif not ranks.is_main:
            ranks.draw_apart(settings.seed, 0)
        self.model = ranks.model(work.model)

    def _newest(self) -> Checkpoint | None:
        """The newest intact checkpoint, as the first process finds it."""
        found = None
        if self.ranks.is_main:
            remove_halves(self.directory)
            found = newest_checkpoint(self.directory, self.say)
        step = self.ranks.from_main(-1 if found is None else found.step)
        if self.ranks.is_main or step < 0:
            return found
        return open_checkpoint(checkpoint_path(self.directory, step))

    def _resume(self, checkpoint: Checkpoint) -> None:
        restore(checkpoint, self.work.model, self.optimizer)
        if (writers := restore_random(checkpoint, self.ranks.rank, self.ranks.size)) != self.ranks.size:
            self.ranks.draw_apart(self.settings.seed, checkpoint.step)
        self.work.load_state(checkpoint.state)
        loop = checkpoint.state["loop"]
        self.position = _Position(
            checkpoint.step,
            loop["evaluation_due"],
            # With a longer budget the run goes on; older checkpoints know no time.
            self.budget is not None and loop.get("budget_passed", False) and loop["spent"] >= self.budget.seconds,
            Totals.from_state(loop["totals"], self.device),
            loop["seconds"],
            Waits(loop.get("waited", 0.0)),  # older checkpoints have none
        )
        self.clock = Clock(loop.get("spent", 0.0))
        self.skips = Skips.of(self.device, loop["skipped"], loop["skipped_in_a_row"])
        if self.scaler is not None:
            self.scaler.load_state_dict(loop["scaler"])
        if not self.finished:
            self.say(f"going on from {checkpoint.directory} (update {checkpoint.step} of {self.work.total})")
            if writers != (size := self.ranks.size):
                self.say(f"{counted(writers, 'processes')} before, {size} now: the same batches, dropout draws anew")

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        over = self.position.budget_passed or self.position.step >= self.work.total
        return over and not self.position.evaluation_due

    def train(self, what: str, *, progress: bool = True) -> None:
        """All updates that are left; ``progress`` shows them on stderr as ``what``.

        Raises:
            Stopped: a signal came; the position was saved.
            BertptError: too many updates in a row gave no finite numbers, or a checkpoint could not be written; those
                before it are as they were.
        """
        if self.finished:
            return
        with (
            subnormals_flushed(),
            _tf32(self.settings.tf32),
            self._open_log() as log,
            StopFlag() as stop,
            Progress(
                what,
                total=self.work.total if self.budget is None else None,  # nobody knows how many there will be
                unit="updates",
                start=self.position.step,
                shown=progress,
            ) as bar,
            self._written(),
        ):
            if log is not None:
                self.work.introduce(log.board)
            if self.position.evaluation_due:
                self._evaluate(log, stop)
                self._save_and_leave(self.ranks.first(stop.requested))
            if not self.position.budget_passed:
                self._train(log, stop, bar)
            if log is not None:
                log.board.finished()

    def _open_log(self) -> AbstractContextManager[MetricsLog | None]:
        """The log, of the first process."""
        if not self.ranks.is_main:
            return nullcontext()
        position = self.position
        return MetricsLog(self.directory, position.step, self.work.total, again=position.evaluation_due)

    @contextmanager
    def _written(self) -> Iterator[None]:
        """At the end what is being written is waited for; after a fault as well, unless it is a second Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            try:
                self.writer.wait()
            except BertptError as error:
                self.say(str(error))
            raise
        self.writer.wait()

    def _train(self, log: MetricsLog | None, stop: StopFlag, bar: Progress) -> None:
        work, settings, position = self.work, self.settings, self.position
        clock = time.perf_counter() - position.seconds
        for batches in position.waits.over(work.updates(position.step)):
            rate = self._rate()
            self._look(position.step + 1)
            skipped = train_step(
                self.model,
                self.optimizer,
                batches,
                work.objective,
                work.count_terms,
                position.totals,
                weights=work.loss_weights,
                lr=rate,
                clip=settings.clip,
                precision=self.precision,
                scaler=self.scaler,
                ranks=self.ranks,
            )
            self.skips.note(skipped)
            position.step += 1
            position.seconds = time.perf_counter() - clock
            step = position.step
            if self.budget is not None:
                position.spent = self._spent()
                position.budget_passed = position.spent >= self.budget.seconds
            last = step == work.total or position.budget_passed
            if logged := last or self._logs(step):
                if log is not None:
                    self._log(log, bar, rate)
                position.totals, position.seconds, position.waits.seconds = Totals.empty(), 0.0, 0.0
                clock = time.perf_counter()
            else:
                bar.add()
            paused = time.perf_counter()
            self.writer.check()
            if log is not None:
                log.board.histograms(self.dynamics.histograms(), step)
            position.evaluation_due = last or self._evaluates(step)
            save = (
                last or step % settings.save_every == 0 or (settings.keep_every > 0 and step % settings.keep_every == 0)
            )
            signal = self.ranks.first(stop.requested)  # read once: what comes later is for the next update
            if logged or save or signal or position.evaluation_due or self.device.type == "cpu":
                self._check_skips(batches)
            if position.evaluation_due:
                self._evaluate(log, stop)
                signal = signal or self.ranks.first(stop.requested)
            if save or signal:
                self._save_and_leave(signal)
            if last:
                break
            clock += time.perf_counter() - paused

    def _rate(self) -> float | Tensor:
        """The learning rate of the next update."""
        if self.budget is None:
            return self.rates(self.position.step, self.skips)
        return self.budget.rate(self.position.step, self._spent(), self.settings.schedule, self.settings.optimizer.lr)

    def _spent(self) -> float:
        """Seconds of training so far, as the first process counts them: all end with the same update."""
        return self.ranks.from_main(round(1000 * self.clock())) / 1000

    def _logs(self, step: int) -> bool:
        return step % self.settings.log_every == 0 or step == self.work.total or self.work.is_boundary(step)

    def _evaluates(self, step: int) -> bool:
        every = self.settings.eval_every
        return step == self.work.total or (every > 0 and step % every == 0)

    def _look(self, step: int) -> None:
        """Have the first process look at update ``step`` as it is made, where that is logged."""
        histograms = self.settings.histograms and self._evaluates(step)
        self.dynamics.look(norms=self.ranks.is_main and self._logs(step), histograms=self.ranks.is_main and histograms)

    def _evaluate(self, log: MetricsLog | None, stop: StopFlag) -> None:
        """Log the held-out scores, while other processes wait; a signal puts them off until the run goes on."""

        def leave_off() -> None:
            if stop.requested:
                raise _PutOff

        if log is not None:
            begun = time.perf_counter()
            with suppress(_PutOff):
                log.write("heldout", self.position.step, self.work.evaluate(self.position.step, leave_off))
                self.work.show(log.board, self.position.step)
                _log.debug("update %d: evaluated in %.1f s", self.position.step, time.perf_counter() - begun)
                self.position.evaluation_due = False
        self.position.evaluation_due = bool(self.ranks.from_main(self.position.evaluation_due))

    def _save_and_leave(self, signal: str | None) -> None:
        """Save, and leave for a signal unless all is done. Training waits for the copy alone."""
        position, settings = self.position, self.settings
        loop = {
            "evaluation_due": position.evaluation_due,
            "totals": position.totals.state(),
            "seconds": position.seconds,
            "waited": position.waits.seconds,
            "budget_passed": position.budget_passed,
            "spent": self.clock(),
        }
        if self.scaler is not None:
            loop["scaler"] = self.scaler.state_dict()
        state = self.work.state(position.step) | {"loop": loop | self.skips.state()}
        snapshot = Snapshot.of(position.step, self.work.model, self.optimizer, state, self.ranks)
        if self.ranks.is_main:
            check_room(self.directory, snapshot)
            keep = Keep(settings.keep, settings.keep_every)
            self.writer.submit(partial(write_checkpoint, self.directory, snapshot, keep))
        if signal and not self.finished:
            self.writer.wait()
            self.ranks.together()
            path = checkpoint_path(self.directory, position.step)
            raise Stopped(f"stopped by {signal} after update {position.step}; saved {path}; the same command goes on")

    def _log(self, log: MetricsLog, bar: Progress, rate: float | Tensor) -> None:
        totals = self.position.totals
        assert totals.gradient_norm is not None
        skipped = int(self.skips.total)
        means = totals.means()
        values = means | {
            "lr": float(rate),
            "gradient_norm": float(totals.gradient_norm),
            "skipped": skipped,
        }
        values |= speed_numbers(
            totals,
            self.work.flops(totals),
            self.position.seconds,
            self.position.waits.seconds,
            self.device,
            devices=self.ranks.size,
        )
        values |= self.dynamics.values(values["gradient_norm"])
        if self.scaler is not None:
            values["loss_scale"] = self.scaler.get_scale()
        if self.budget is not None:
            values["budget_share"] = self.position.spent / self.budget.seconds  # as it was judged by
        log.write("train", self.position.step, values)
        shown = self.work.shown(values)
        shown |= {"of budget": f"{values['budget_share']:.0%}"} if "budget_share" in values else {}
        shown |= {"MFU": f"{values['mfu']:.1%}"} if "mfu" in values else {}
        bar.add(1, **shown, **({"skipped": f"{skipped:,}"} if skipped else {}))
        loss = sum(
            weight * means[f"{name}_loss"] for name, weight in self.work.loss_weights.items() if name in totals.losses
        )
        if (line := self.jumps.note(loss)) is not None:
            bar.note(f"update {self.position.step}: {line}; if it stays, lower {self.rate_key}", self.say)

    def _check_skips(self, batches: Sequence[Batch]) -> None:
        """Stop when nothing but skipped updates has come for long. Waits for the device."""
        in_a_row, step = int(self.skips.in_a_row), self.position.step
        if in_a_row < min(self.settings.max_skips, self.work.total):
            return
        found = blame(self.work, batches, self.precision)
        fault = self.ranks.first(None if found == NOT_AGAIN else found) or found
        if self.scaler is not None:
            fault += f", with losses scaled by {self.scaler.get_scale():g}"
        raise BertptError(
            f"update {step}: loss or gradient were not finite {in_a_row} times in a row"
            f" ({fault}); none of these updates was made, the last checkpoint is as it was; lower"
            f" {self.rate_key} or lengthen the warm-up"
        )
