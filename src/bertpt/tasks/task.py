"""What a task of ``bertpt finetune`` is: how it reads, encodes, learns, predicts and scores; the rest is shared.

A task holds no state. What a run knows beside its weights are its *facts*: plain data by which another process
builds the same model again and names what it predicts. They are saved with the run and with every checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.config.schema import Model
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.tasks.encode import Rows
from bertpt.train.evaluate import evaluating
from bertpt.train.updates.step import Objective, autocast

EVALUATION_ROWS = 64  # in a batch

Facts = dict[str, Any]


def nothing() -> None:
    """Do nothing: the usual ``before_batch``."""


@dataclass(slots=True)
class Examples:
    """The examples of one file, and what was found in reading.

    Attributes:
        rows: in the order of the file; each knows its ``place``, for people.
        faults: one line for each malformed example.
        counts: what was passed over or looks odd, by a name of ``Task.count_words``.
        notes: one line for each example that looks odd or was left out; the first are shown.
    """

    rows: list[Any]
    faults: list[str]
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Encoded:
    """Rows for the model: one for each example, or several windows of one.

    Attributes:
        rows: the tokens, and the marked ones where the task predicts tokens.
        full: int64 [examples], tokens that each would have in one uncut row.
        cut: examples that do not fit a row.
        labels: [rows] or [rows, ...], where the task predicts something for each row and the labels are known.
        mark_labels: [marked tokens], where it predicts tokens and the labels are known.
        counts: what was cut or looks odd once it is tokens, by a name of ``Task.count_words``.
    """

    rows: Rows
    full: NDArray[np.int64]
    cut: int
    labels: Tensor | None = None
    mark_labels: Tensor | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """The batch of these rows, in this order."""
        labels = None if self.labels is None else self.labels[torch.from_numpy(indices)]
        return self.rows.batch(indices, labels, self.mark_labels)


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of predictions.

    Attributes:
        scores: by name.
        baseline: of the same names, what a rule scores that does not look at the text.
        details: plain data for ``eval.json``: a confusion matrix, scores by class.
    """

    scores: dict[str, float]
    baseline: dict[str, float]
    details: dict[str, Any]


class Task(ABC):
    """One kind of task. ``config`` is always the configuration of that kind, ``facts`` what :meth:`facts` gave."""

    #: what the baseline beside each score is.
    baseline: ClassVar[str] = "without text"
    #: what examples are called.
    unit: ClassVar[str] = "rows"
    #: what becomes of an example that does not fit a row; the row's tokens follow.
    overflow: ClassVar[str] = "cut to"
    #: what each count of :class:`Examples` says.
    count_words: ClassVar[Mapping[str, str]] = {"blank": "blank lines passed over"}

    @abstractmethod
    def read(self, path: str, config: Any) -> Examples:
        """The examples of a file; malformed ones are collected, not raised.

        Raises:
            RequestError: no such file, not text, or not of the format at all.
        """

    def part(self, found: Mapping[str, Examples], config: Any) -> Mapping[str, Examples]:
        """What each split keeps of what was read: of one file for several, of copies in two of them.

        Train may be absent, so what dev and test keep must not depend on it.
        """
        return found

    @abstractmethod
    def facts(self, config: Any, train: Sequence[Any]) -> Facts:
        """The task's own facts, from all examples of train.

        Raises:
            RequestError: they cannot be learnt from, e.g. have a single label.
        """

    def trainable(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Those of train that can be learnt from."""
        return examples

    def unfit(self, examples: Sequence[Any], facts: Facts) -> list[str]:
        """A line for each example of another file that does not fit the facts."""
        return []

    @abstractmethod
    def build(self, model: Model, facts: Facts) -> nn.Module:
        """The model with random weights; its encoder is ``bert``."""

    @abstractmethod
    def encode(self, examples: Sequence[Any], tokenizer: WordPieceTokenizer, facts: Facts, *, known: bool) -> Encoded:
        """Rows of the examples; with their labels where these are ``known``."""

    def fit(self, encoded: Encoded, facts: Facts) -> str:
        """How many examples do not fit a row, for people: ``3 of them cut to 128 tokens``; and what else is odd."""
        cut = f"{encoded.cut:,} of them {self.overflow} {facts['max_length']} tokens" if encoded.cut else "none cut"
        return ", ".join([cut, *(f"{count:,} {self.count_words[name]}" for name, count in encoded.counts.items())])

    @abstractmethod
    def objective(self, config: Any, facts: Facts, train: Sequence[Any]) -> Objective:
        """Loss terms and right predictions of a batch.

        Raises:
            RequestError: settings of the loss do not fit the facts.
        """

    @abstractmethod
    def count_terms(self, batch: Batch) -> dict[str, int]:
        """Counts of the loss terms of a batch."""

    @abstractmethod
    def predict(
        self,
        model: nn.Module,
        encoded: Encoded,
        facts: Facts,
        *,
        precision: str = "fp32",
        before_batch: Callable[[], None] = nothing,
    ) -> Any:
        """What the model says: a sequence or array with an item for each example, in their order."""

    @abstractmethod
    def score(self, examples: Sequence[Any], predictions: Any, facts: Facts) -> Scored:
        """Scores of predictions on examples whose labels are known."""

    @abstractmethod
    def describe(self, examples: Sequence[Any], predictions: Any, facts: Facts) -> Iterator[dict[str, Any]]:
        """Each example and what is predicted for it, as plain data for a JSON line."""

    @abstractmethod
    def truth(self, example: Any) -> Any:
        """What should have been predicted, as plain data."""

    def detail_lines(self, split: str, details: Mapping[str, Any], facts: Facts) -> Iterator[str]:
        """``Scored.details`` as lines of text."""
        yield from ()

    @abstractmethod
    def key(self, example: Any) -> tuple[str, ...]:
        """What two examples share that are the same but for their label."""

    def source(self, example: Any) -> str | None:
        """A text that several examples may be about, so that knowing it from train flatters; ``None``: no such text."""
        return None

    @abstractmethod
    def label_counts(self, examples: Sequence[Any], facts: Facts) -> dict[str, float]:
        """Labels and how often each stands there, or what else describes them; facts may be empty."""


def outputs(
    model: nn.Module,
    encoded: Encoded,
    *,
    precision: str = "fp32",
    before_batch: Callable[[], None] = nothing,
) -> Iterator[tuple[NDArray[np.int64], Batch, Any]]:
    """Row numbers, batch and the model's output, batch by batch; rows of like length are computed together."""
    order = np.argsort(encoded.rows.lengths, kind="stable")
    device = next(model.parameters()).device
    for begin in range(0, len(order), EVALUATION_ROWS):
        before_batch()
        indices = order[begin : begin + EVALUATION_ROWS]
        batch = encoded.batch(indices).to(device)
        with evaluating(model), autocast(device, precision):
            output = model(batch)
        yield indices, batch, output
