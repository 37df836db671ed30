"""What the loop trains, as it sees it: pre-training and the tasks each bring one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from bertpt.batch import Batch
from bertpt.train.reports.board import Board
from bertpt.train.updates.step import Terms, Totals


class Work(Protocol):
    """What a loop trains: a model, its batches, its objective, its scores."""

    @property
    def model(self) -> nn.Module:
        """The model, on its device."""

    @property
    def total(self) -> int:
        """Updates of the whole run."""

    def way(self, step: int) -> float:
        """Share of the run, 0 to 1, that ``step`` updates are, as the schedule counts it."""

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """Weight of each loss term."""

    def objective(self, model: Any, batch: Batch) -> Terms:
        """Loss terms and right predictions of a micro-batch."""

    def count_terms(self, batch: Batch) -> Mapping[str, int]:
        """Counts of the loss terms of a batch, known before the forward pass."""

    def flops(self, totals: Totals) -> float:
        """Floating point operations of the updates in ``totals`` (``cost.training_flops``)."""

    def updates(self, done: int) -> Iterator[Sequence[Batch]]:
        """The micro-batches of each update after the first ``done``, on the device."""

    def is_boundary(self, step: int) -> bool:
        """Whether the data change in kind after update ``step``: logged means do not reach over it."""

    def evaluate(self, step: int, before_batch: Callable[[], None]) -> dict[str, float]:
        """Held-out scores after update ``step``; what ``before_batch`` raises ends the evaluation."""

    def introduce(self, board: Board) -> None:
        """Show what is known of the run before its first update, or before it goes on."""

    def show(self, board: Board, step: int) -> None:
        """Show more of the evaluation after update ``step`` than its scores."""

    def state(self, step: int) -> dict[str, Any]:
        """Plain data for the checkpoint of ``step``: the position in the data, and what a reader of it must know."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave."""

    def shown(self, values: Mapping[str, float]) -> dict[str, str]:
        """The logged values that stand beside the progress."""
