"""The work of fine-tuning for the shared loop: whole epochs of rows, the best epoch by the score on dev."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertpt.batch import Batch
from bertpt.config.finetune.common import TaskTrain
from bertpt.config.schema import Model, Optimizer, Phase, Schedule, Train
from bertpt.tasks.encode import epoch_order
from bertpt.tasks.rundir import CONFIG
from bertpt.train.checkpoints.saving import save_weights
from bertpt.train.cost import training_flops
from bertpt.train.reports.board import Board, code
from bertpt.train.rundir import BEST
from bertpt.train.updates.step import CountTerms, Objective, Terms, Totals


@dataclass(frozen=True, slots=True)
class Parts:
    """What a task brings.

    Attributes:
        model: on its device.
        rows: training rows.
        batch: rows by number, int64 [B] -> batch.
        objective: loss terms and right predictions.
        count_terms: counts of the loss terms of a batch.
        loss_weights: by loss term.
        scores: on dev; calls its argument before each batch.
        metric: the score that chooses the best epoch; higher is better.
        facts: plain data that a reader of the weights needs.
    """

    model: nn.Module
    rows: int
    batch: Callable[[NDArray[np.int64]], Batch]
    objective: Objective
    count_terms: CountTerms
    loss_weights: Mapping[str, float]
    scores: Callable[[Callable[[], None]], dict[str, float]]
    metric: str
    facts: Mapping[str, Any]


@dataclass
class FineTuning:
    """Epochs over the rows in an order that is a pure function of (seed, epoch).

    Attributes:
        directory: of the run; the best epoch's weights go to ``best/`` in it.
        parts: of the task.
        settings: of the training.
        device: where batches go.
        best: epoch and score of the best one so far.
    """

    directory: Path
    parts: Parts
    settings: TaskTrain
    device: torch.device
    best: dict[str, float] | None = field(default=None)

    @property
    def model(self) -> nn.Module:
        """The model, on its device."""
        return self.parts.model

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """Weight of each loss term."""
        return self.parts.loss_weights

    @property
    def per_epoch(self) -> int:
        """Updates in an epoch; the last one has the rows that are left."""
        return -(-self.parts.rows // self.settings.batch_size)

    @property
    def total(self) -> int:
        """Updates of the whole run."""
        return self.settings.epochs * self.per_epoch

    def way(self, step: int) -> float:
        """Share of the run that ``step`` updates are."""
        return step / self.total

    def objective(self, model: Any, batch: Batch) -> Terms:
        """Loss terms and right predictions of a batch."""
        return self.parts.objective(model, batch)

    def count_terms(self, batch: Batch) -> Mapping[str, int]:
        """Counts of the loss terms of a batch."""
        return self.parts.count_terms(batch)

    def flops(self, totals: Totals) -> float:
        """Operations of the encoder; the head's are too few to matter."""
        shape = Model(**self.parts.facts["model"])
        vocab_size = self.parts.facts["vocab_size"]
        return training_flops(shape, vocab_size, rows=totals.rows, tokens=totals.tokens, predictions=0, pairs=False)

    def updates(self, done: int) -> Iterator[list[Batch]]:
        """The batches of each update after the first ``done``."""
        size, order, of = self.settings.batch_size, None, -1
        for step in range(done, self.total):
            epoch, place = divmod(step, self.per_epoch)
            if order is None or of != epoch:
                order, of = epoch_order(self.settings.seed, epoch, self.parts.rows), epoch
            rows = order[place * size : (place + 1) * size]
            parts = np.array_split(rows, min(self.settings.accumulation, len(rows)))
            yield [self.parts.batch(part).to(self.device) for part in parts]

    def is_boundary(self, step: int) -> bool:
        """Whether an epoch ends with update ``step``."""
        return step % self.per_epoch == 0

    def evaluate(self, step: int, before_batch: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Scores on dev after update ``step``; the weights are kept when they are the best so far.

        A score that is no number is never the best; of equal ones the first is.
        """
        scores = self.parts.scores(before_batch)
        value = scores[self.parts.metric]
        if math.isfinite(value) and (self.best is None or value > self.best["score"]):
            self.best = {"step": step, "epoch": step // self.per_epoch, "score": value}
            save_weights(self.directory / BEST, step, self.model, self.state(step))
        return scores

    def introduce(self, board: Board) -> None:
        """The configuration of the run."""
        board.text("run/config", code((self.directory / CONFIG).read_text(encoding="utf-8")))

    def show(self, board: Board, step: int) -> None:
        """The scores say it all."""

    def state(self, step: int) -> dict[str, Any]:
        """The best epoch so far, and the facts by which the weights can be read."""
        return {"best": self.best, **self.parts.facts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave."""
        self.best = state["best"]

    def shown(self, values: Mapping[str, float]) -> dict[str, str]:
        """Losses and speed."""
        losses = {name.removesuffix("_loss"): f"{v:.3f}" for name, v in values.items() if name.endswith("_loss")}
        return losses | {"rows/s": f"{values['rows_per_second']:,.0f}"}

    def loop_settings(self) -> Train:
        """The settings as the loop takes them: dev is scored, and a checkpoint saved, after each epoch."""
        settings = self.settings
        return Train(
            phases=[Phase(length=max(8, settings.max_length), steps=self.total, batch_size=settings.batch_size)],
            optimizer=Optimizer(lr=settings.lr, weight_decay=settings.weight_decay),
            schedule=Schedule(kind=settings.schedule, warmup_ratio=settings.warmup_ratio),
            clip=settings.clip,
            precision=settings.precision,
            device=settings.device,
            seed=settings.seed,
            log_every=settings.log_every,
            eval_every=self.per_epoch,
            save_every=settings.save_every or self.per_epoch,
            keep=settings.keep,
        )
