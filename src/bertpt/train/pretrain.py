"""Pre-training: the loop over phases and updates, with logging, evaluation and checkpoints."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from bertpt.batch import Batch
from bertpt.config import Config, plain
from bertpt.config.schema import Phase
from bertpt.data.baselines import unigram_entropy, unigram_probabilities
from bertpt.data.loader import BatchStream
from bertpt.data.locate import finished_store, tokenizer_dir
from bertpt.data.paircheck import check_pairs
from bertpt.data.store import TokenStore
from bertpt.data.wordpiece import load_tokenizer
from bertpt.errors import BertptError, RequestError, Stopped
from bertpt.model.pretraining import BertForPreTraining, pretraining_losses
from bertpt.progress import Progress
from bertpt.progress import say as say_stderr
from bertpt.train.checkpoint import newest_checkpoint, restore, save_checkpoint
from bertpt.train.evaluate import EVALUATION_SEED, heldout_scores, predict_heldout
from bertpt.train.initial import InitialWeights, checked_start, start_from
from bertpt.train.logs import MetricsLog
from bertpt.train.optim import build_optimizer
from bertpt.train.rundir import Run, create_or_resume
from bertpt.train.schedule import learning_rate
from bertpt.train.signals import StopFlag
from bertpt.train.step import Terms, Totals, train_step


def pretraining_objective(model: BertForPreTraining, batch: Batch) -> Terms:
    """MLM and (with pairs) NSP loss terms and right predictions."""
    output = model(batch)
    losses = pretraining_losses(output, batch)
    terms = {"mlm": losses.mlm}
    correct = {"mlm": (output.mlm_logits.argmax(-1) == batch.masked_labels).sum()}
    if losses.nsp is not None and output.nsp_logits is not None:
        terms["nsp"] = losses.nsp
        correct["nsp"] = (output.nsp_logits.argmax(-1) == batch.next_sentence_label).sum()
    return Terms(terms, correct)


def pretraining_counts(batch: Batch) -> dict[str, int]:
    """Counts of the loss terms of ``pretraining_objective``."""
    counts = {"mlm": batch.predictions}
    return counts if batch.next_sentence_label is None else counts | {"nsp": batch.rows}


def choose_device(name: str) -> torch.device:
    """``auto`` is a GPU when there is one.

    Raises:
        RequestError: ``cuda`` was asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise RequestError("train.device: cuda was asked for, and torch sees no CUDA device; set auto or cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_precision(name: str, device: torch.device) -> str:
    """``auto`` is bf16 on a GPU that computes in it, else fp32."""
    if name != "auto":
        return name
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def _processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _PutOff(Exception):
    """A signal came during an evaluation."""


@dataclass
class _Position:
    """Where a run stands: everything that a resume needs besides tensors."""

    step: int = 0
    starts: list[list[int]] = field(default_factory=list)  # of each phase: rows before each epoch so far
    evaluation_due: bool = False  # put off by a signal


class Pretraining:
    """One run: what ``pretrain`` sets up, and its loop."""

    def __init__(
        self, run: Run, store: TokenStore, say: Callable[[str], None], initial: InitialWeights | None = None
    ) -> None:
        config = run.config
        self.run, self.config, self.store, self.say = run, config, store, say
        self.device = choose_device(config.train.device)
        self.precision = choose_precision(config.train.precision, self.device)
        # Subnormal numbers (Adam's moments of rare tokens) are many times slower on CPUs and mean nothing.
        torch.set_flush_denormal(True)
        torch.manual_seed(config.train.seed)
        self.model = BertForPreTraining(config.model, store.vocab_size, nsp=config.pairs.rule != "none").to(self.device)
        self.initial = initial
        self.optimizer: Optimizer = build_optimizer(self.model, config.train.optimizer)
        self.position = _Position(starts=[[0] for _ in config.train.phases])
        self.total = sum(phase.steps for phase in config.train.phases)
        self._resume()

    def _resume(self) -> None:
        checkpoint = newest_checkpoint(self.run.directory, self.say)
        if checkpoint is None:
            self._start()
            return
        restore(checkpoint, self.model, self.optimizer)
        state = checkpoint.state
        self.position = _Position(checkpoint.step, state["starts"], state.get("evaluation_due", False))
        if not self.finished:
            self.say(f"going on from {checkpoint.directory} (update {checkpoint.step} of {self.total})")

    def _start(self) -> None:
        """Take the initial weights, where there are any."""
        if self.initial is not None:
            for line in start_from(self.model, self.initial, load_tokenizer(self.run.tokenizer)):
                self.say(line)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.position.step >= self.total and not self.position.evaluation_due

    def train(self, *, progress: bool = True) -> None:
        """All updates that are left; ``progress`` shows them on stderr.

        Raises:
            Stopped: a signal came; the position was saved.
            BertptError: loss or gradient are no longer finite; the last checkpoint is as it was.
        """
        if self.finished:
            return
        with (
            MetricsLog(self.run.directory, self.position.step) as log,
            StopFlag() as stop,
            Progress("pretrain", total=self.total, unit="updates", start=self.position.step, shown=progress) as bar,
        ):
            end = 0
            for index, phase in enumerate(self.config.train.phases):
                begin, end = end, end + phase.steps
                if self.position.evaluation_due and self.position.step <= end:
                    self._evaluate(phase, log, stop)
                    self._save_and_leave(stop.requested)
                if self.position.step < end:
                    self._train_phase(index, phase, begin, log, stop, bar)

    def _train_phase(
        self, index: int, phase: Phase, begin: int, log: MetricsLog, stop: StopFlag, progress: Progress
    ) -> None:
        settings = self.config.train
        stream = self.stream(phase, self.position.starts[index])
        totals, clock = Totals.empty(), time.perf_counter()
        for batches in self._updates(stream, phase, self.position.step - begin):
            update = self.position.step
            rate = learning_rate(update, self.total, settings.schedule, settings.optimizer.lr)
            train_step(
                self.model,
                self.optimizer,
                batches,
                pretraining_objective,  # type: ignore[arg-type]
                pretraining_counts,
                totals,
                weights={"mlm": 1.0, "nsp": settings.nsp_weight},
                lr=rate,
                clip=settings.clip,
                precision=self.precision,
            )
            self.position.step = step = update + 1
            last = step == self.total
            if step % settings.log_every == 0 or step == begin + phase.steps:
                self._log(log, progress, totals, rate, time.perf_counter() - clock)
                totals, clock = Totals.empty(), time.perf_counter()
            else:
                progress.add()
            paused = time.perf_counter()
            self.position.evaluation_due = last or (settings.eval_every > 0 and step % settings.eval_every == 0)
            save = last or step % settings.save_every == 0
            signal = stop.requested  # read once: what comes later is for the next update
            if save or signal or self.position.evaluation_due:
                self._check_finite(totals)
            if self.position.evaluation_due:
                self._evaluate(phase, log, stop)
                signal = signal or stop.requested
            if save or signal:
                stream.plans.locate((step - begin) * phase.batch_size)  # rows before each epoch, if workers planned it
                self.position.starts[index] = list(stream.plans.starts)
                self._save_and_leave(signal)
            clock += time.perf_counter() - paused

    def _evaluate(self, phase: Phase, log: MetricsLog, stop: StopFlag) -> None:
        """Log the held-out scores; a signal puts them off until the run goes on."""

        def leave_off() -> None:
            if stop.requested:
                raise _PutOff

        with suppress(_PutOff):
            log.write("heldout", self.position.step, self.evaluate(phase, leave_off))
            self.position.evaluation_due = False

    def _save_and_leave(self, signal: str | None) -> None:
        """Save, and leave for a signal unless all is done."""
        path = self.save()
        if signal and not self.finished:
            step = self.position.step
            raise Stopped(f"stopped by {signal} after update {step}; saved {path}; the same command goes on")

    def stream(self, phase: Phase, starts: list[int]) -> BatchStream:
        """Training rows of a phase, one micro-batch an item."""
        return BatchStream.create(
            self.store,
            "train",
            pairs=self.config.pairs,
            masking=self.config.masking,
            length=phase.length,
            batch_size=phase.batch_size // phase.accumulate,
            seed=self.config.train.seed,
            cache=self.run.directory / "plans",
            starts=list(starts),
        )

    def _updates(self, stream: BatchStream, phase: Phase, done: int) -> Iterator[list[Batch]]:
        """The micro-batches of each update that is left in the phase, on the device."""
        batches = stream.batches(
            done * phase.accumulate,
            phase.steps * phase.accumulate,
            workers=min(self.config.train.workers, _processors()),  # more would be slower, and torch warns
            pin=self.device.type == "cuda",
        )
        while micro := [batch.to(self.device) for batch in islice(batches, phase.accumulate)]:
            yield micro

    def _log(self, log: MetricsLog, progress: Progress, totals: Totals, rate: float, seconds: float) -> None:
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
        shown = {"mlm": f"{values['mlm_loss']:.3f}", "tokens/s": f"{values['tokens_per_second']:,.0f}"}
        if "nsp_accuracy" in values:
            shown["nsp"] = f"{values['nsp_accuracy']:.1%}"
        progress.add(1, **shown)

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

    def evaluate(self, phase: Phase, before_batch: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Scores on the held-out rows at the phase's length; what ``before_batch`` raises ends the evaluation."""
        stream = heldout_stream(self.store, self.config, phase.length)
        predictions = predict_heldout(
            self.model,
            stream,
            max_rows=self.config.evaluate.max_rows,
            precision=self.precision,
            before_batch=before_batch,
        )
        return heldout_scores(predictions)

    def save(self) -> Path:
        """Write a checkpoint of the present position."""
        state: dict[str, Any] = {
            "starts": self.position.starts,
            "evaluation_due": self.position.evaluation_due,
            "model": plain(self.config.model),
            "vocab_size": self.store.vocab_size,
            "nsp": self.config.pairs.rule != "none",
        }
        return save_checkpoint(
            self.run.directory, self.position.step, self.model, self.optimizer, state, keep=self.config.train.keep
        )


def heldout_stream(store: TokenStore, config: Config, length: int) -> BatchStream:
    """The fixed rows and masks of an evaluation; they do not depend on the run's seed or masking rate.

    15% with 80/10/10 whatever training does: otherwise losses cannot be compared between runs.
    """
    return BatchStream.create(
        store,
        "heldout",
        pairs=config.pairs,
        masking=type(config.masking)(),
        length=length,
        batch_size=config.evaluate.batch_size,
        seed=EVALUATION_SEED,
    )


def pretrain(
    config: Config,
    *,
    initial: InitialWeights | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = say_stderr,
    progress: bool = True,
) -> Run:
    """Train the model of a configuration, or go on with the run of its name.

    Args:
        config: the configuration.
        initial: the weights that ``model.init_from`` names (``interop.continuing.pretrain`` reads them).
        overwrite: start again where a run of that name is.
        say: gets lines for people.
        progress: show progress on stderr.

    Returns:
        The run, trained to its last update.

    Raises:
        RequestError: inputs are missing (names the command that makes them), or the run's directory
            holds another configuration.
        Stopped: interrupted after saving.
    """
    store = TokenStore.open(finished_store(config))
    check_pairs(store.manifest, config.pairs.rule)
    choose_device(config.train.device)  # refuses before anything is written
    tokenizer = tokenizer_dir(config)
    facts = {"store": store.manifest["fingerprint"]}
    if initial is not None or config.model.init_from is not None:
        config = checked_start(config, initial, load_tokenizer(tokenizer))
        facts |= {} if initial is None else {"initial": initial.fingerprint()}
    run = create_or_resume(config, facts, tokenizer, overwrite=overwrite)
    training = Pretraining(run, store, say, initial)
    if training.finished:
        say(f"{run.directory}: finished ({training.total} updates); nothing to do")
        return run
    special = torch.tensor(sorted(store.special_ids.values())).numpy()
    entropy = unigram_entropy(unigram_probabilities(store.unigram, special))
    say(
        f"{run.directory}: {sum(p.numel() for p in training.model.parameters()):,} parameters on {training.device},"
        f" {len(store.train.ids):,} tokens; a model without context ends near the unigram entropy {entropy:.2f} nats"
    )
    training.train(progress=progress)
    return run
