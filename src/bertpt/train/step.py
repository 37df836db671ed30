"""One update, for pre-training and fine-tuning alike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bertpt.batch import Batch, LossTerm


@dataclass(frozen=True, slots=True)
class Terms:
    """What an objective says of one (micro-)batch.

    Attributes:
        losses: loss terms by name, in nats, summed.
        correct: number of right predictions by name, int64 scalar tensors.
    """

    losses: Mapping[str, LossTerm]
    correct: Mapping[str, Tensor]


Objective = Callable[[nn.Module, Batch], Terms]
"""Forward pass to loss terms. Its counts must follow from the batch alone (see ``CountTerms``)."""

CountTerms = Callable[[Batch], Mapping[str, int]]
"""Counts of the loss terms of a batch, known before the forward pass."""


@dataclass(slots=True)
class Totals:
    """Sums over updates, kept on the device until they are logged, so that no step waits for it."""

    losses: dict[str, Tensor]
    correct: dict[str, Tensor]
    counts: dict[str, int]
    rows: int = 0
    tokens: int = 0
    grid: int = 0
    gradient_norm: Tensor | None = None

    @classmethod
    def empty(cls) -> Totals:
        """Nothing summed yet."""
        return cls({}, {}, {})

    def add(self, terms: Terms, batch: Batch) -> None:
        """Add one micro-batch."""
        for name, term in terms.losses.items():
            # float64: an interval's sum must not depend on how it was cut into micro-batches
            self.losses[name] = self.losses.get(name, 0.0) + term.sum.detach().double()
            self.counts[name] = self.counts.get(name, 0) + term.count
        for name, correct in terms.correct.items():
            self.correct[name] = self.correct.get(name, 0) + correct
        self.rows += batch.rows
        self.tokens += batch.tokens
        self.grid += batch.attention_mask.numel()

    def means(self) -> dict[str, float]:
        """Mean loss (``<name>_loss``, nats) and accuracy (``<name>_accuracy``) of each objective."""
        values = {f"{name}_loss": float(total) / self.counts[name] for name, total in self.losses.items()}
        values |= {f"{name}_accuracy": float(total) / self.counts[name] for name, total in self.correct.items()}
        return values


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """bf16 for matrix products; LayerNorm, softmax and losses stay in fp32. Weights are fp32 always."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Sequence[Batch],
    objective: Objective,
    count_terms: CountTerms,
    totals: Totals,
    *,
    weights: Mapping[str, float],
    lr: float,
    clip: float,
    precision: str,
) -> None:
    """One update from the micro-batches of a global batch.

    Each loss is a sum over all micro-batches divided once by its global count, so that the result does
    not depend on how the batch is cut (a mean of means would: masks are unequally many).

    Args:
        weights: weight of each loss term.
        totals: receives the sums for logging.
        lr: learning rate of this update; clip: largest global gradient norm.
    """
    counts: dict[str, int] = {}
    for batch in batches:
        for name, count in count_terms(batch).items():
            counts[name] = counts.get(name, 0) + count

    for batch in batches:
        with autocast(batch.input_ids.device, precision):
            terms = objective(model, batch)
        parts = [weights[name] / max(counts[name], 1) * term.sum for name, term in terms.losses.items()]
        torch.stack(parts).sum().backward()  # type: ignore[no-untyped-call]
        totals.add(terms, batch)

    totals.gradient_norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
