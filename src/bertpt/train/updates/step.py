"""One update, for pre-training and fine-tuning alike."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from bertpt.batch import Batch, LossTerm
from bertpt.train.ranks import ALONE, Ranks
from bertpt.train.updates.optim import own_part
from bertpt.train.updates.skips import not_finite


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
    """Sums over updates and processes, kept on the device until they are logged, so that no step waits for it.

    Losses, right predictions and their counts are of updates that were made; rows and tokens of all.
    """

    losses: dict[str, Tensor]
    correct: dict[str, Tensor]
    counts: dict[str, float | Tensor]
    rows: int = 0
    tokens: int = 0
    grid: int = 0
    gradient_norm: Tensor | None = None

    @classmethod
    def empty(cls) -> Totals:
        """Nothing summed yet."""
        return cls({}, {}, {})

    def add(self, terms: Terms) -> None:
        """Add what an objective says of one micro-batch; its counts and size are known before."""
        for name, term in terms.losses.items():
            # float64: an interval's sum must not depend on how it was cut into micro-batches
            self.losses[name] = self.losses.get(name, 0.0) + term.sum.detach().double()
        for name, correct in terms.correct.items():
            self.correct[name] = self.correct.get(name, 0) + correct

    def add_up(self, ranks: Ranks) -> None:
        """Make losses and right predictions those of all processes."""
        sums = iter(ranks.device_sums([*self.losses.values(), *self.correct.values()]))
        self.losses = {name: next(sums) for name in self.losses}
        self.correct = {name: next(sums) for name in self.correct}

    def add_update(self, update: Totals, skipped: Tensor) -> None:
        """Add the sums of one update; of a ``skipped`` one (bool []) its size alone."""
        made = (~skipped).double()
        for name, total in update.losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + torch.where(skipped, 0.0, total)
            self.counts[name] = self.counts.get(name, 0) + made * update.counts[name]
        for name, correct in update.correct.items():
            self.correct[name] = self.correct.get(name, 0) + torch.where(skipped, 0, correct)
        self.rows += update.rows
        self.tokens += update.tokens
        self.grid += update.grid
        self.gradient_norm = update.gradient_norm

    def state(self) -> dict[str, Any]:
        """Plain numbers for a checkpoint, so that a mean goes on over a stop. Waits for the device."""
        return {
            "losses": {name: float(value) for name, value in self.losses.items()},
            "correct": {name: float(value) for name, value in self.correct.items()},
            "counts": {name: float(value) for name, value in self.counts.items()},
            "rows": self.rows,
            "tokens": self.tokens,
            "grid": self.grid,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device) -> Totals:
        """The inverse of :meth:`state`."""

        def sums(key: str) -> dict[str, Any]:
            made = {name: torch.tensor(value, dtype=torch.float64) for name, value in state[key].items()}
            return {name: tensor.to(device) for name, tensor in made.items()}

        size = {key: state[key] for key in ("rows", "tokens", "grid")}
        return cls(sums("losses"), sums("correct"), sums("counts"), **size)

    def means(self) -> dict[str, float]:
        """Mean loss (``<name>_loss``, nats) and accuracy (``<name>_accuracy``) of each objective; NaN of nothing."""
        counts = {name: float(count) or math.nan for name, count in self.counts.items()}
        values = {f"{name}_loss": float(total) / counts[name] for name, total in self.losses.items()}
        values |= {f"{name}_accuracy": float(total) / counts[name] for name, total in self.correct.items()}
        return values


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """16 bits for matrix products; LayerNorm, softmax and losses stay in fp32. Weights are fp32 always."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


@contextlib.contextmanager
def subnormals_flushed() -> Iterator[None]:
    """Subnormal numbers (Adam's moments of rare tokens) are many times slower on CPUs and mean nothing.

    Afterwards they count again: the setting is the thread's, and other code may need them.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Sequence[Batch],
    objective: Objective,
    count_terms: CountTerms,
    totals: Totals,
    *,
    weights: Mapping[str, float],
    lr: float | Tensor,
    clip: float,
    precision: str,
    scaler: GradScaler | None = None,
    ranks: Ranks = ALONE,
) -> Tensor:
    """One update from the micro-batches of a global batch, or from this process's share of them.

    Each loss is a sum over all micro-batches and processes divided once by its global count, so that the result does
    not depend on how the batch is cut (a mean of means would: masks are unequally many).

    Args:
        model: of several processes, what ``ranks.model`` made of it.
        weights: weight of each loss term.
        totals: receives the sums for logging.
        lr: learning rate of this update; clip: largest global gradient norm.
        scaler: of fp16: gradients are multiplied by its scale while they are computed, lest they vanish. It is lowered
            when one of them overflows, by which the update is left out.
        ranks: the processes that make this update.

    Returns:
        bool []: whether the update was left out, for a loss or the gradient were not finite. Weights and the
        optimizer's state are then untouched. It is on the device, and nothing here waits for it.
    """
    update = _sizes(batches, count_terms, ranks)
    for number, batch in enumerate(batches, 1):
        with ranks.kept_apart(model, apart=number < len(batches)):
            with autocast(batch.input_ids.device, precision):
                terms = objective(model, batch)
            # DDP divides by the number of processes.
            scale = {name: weights[name] * ranks.size / max(update.counts[name], 1) for name in terms.losses}
            loss = torch.stack([scale[name] * term.sum for name, term in terms.losses.items()]).sum()
            (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        update.add(terms)

    update.add_up(ranks)
    if scaler is not None:
        scaler.unscale_(optimizer)
        scaler.update()  # by what it has just seen; on the device
    update.gradient_norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    skipped = not_finite([update.gradient_norm, *update.losses.values()])
    totals.add_update(update, skipped)
    for group in optimizer.param_groups:
        group["lr"] = lr
    own = own_part(optimizer)
    if getattr(own, "_step_supports_amp_scaling", False):  # the fused ones: told on the device
        own.found_inf = skipped.float()  # type: ignore[attr-defined]
        optimizer.step()
    elif not bool(skipped):  # this waits for a GPU
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return skipped


def _sizes(batches: Sequence[Batch], count_terms: CountTerms, ranks: Ranks) -> Totals:
    """Sums of an update that are known before it is computed: counts of the loss terms, rows, tokens, padded tokens."""
    counts: dict[str, int] = {}
    for batch in batches:
        for name, count in count_terms(batch).items():
            counts[name] = counts.get(name, 0) + count
    size = [
        sum(batch.rows for batch in batches),
        sum(batch.tokens for batch in batches),
        sum(batch.attention_mask.numel() for batch in batches),
    ]
    rows, tokens, grid, *numbers = ranks.sums([*size, *counts.values()])
    return Totals({}, {}, dict(zip(counts, numbers, strict=True)), rows, tokens, grid)
