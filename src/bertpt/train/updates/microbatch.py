"""Micro-batches as large as a GPU's memory allows (``accumulate: auto``)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.config import Config
from bertpt.config.schema import AUTO
from bertpt.errors import BertptError
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train.ranks import Ranks
from bertpt.train.updates.step import Objective, autocast


def random_rows(rows: int, length: int, vocab_size: int, *, rate: float, pairs: bool) -> Batch:
    """Rows of random tokens, each ``length`` long, with the predictions of a masking rate."""
    draw = torch.Generator().manual_seed(0)
    tokens = rows * length
    ids = torch.randint(vocab_size, (tokens,), generator=draw)
    masked = torch.rand(tokens, generator=draw).argsort()[: max(1, int(rate * tokens))].sort().values
    labels: dict[str, Any] = {"masked_positions": masked, "masked_labels": ids[masked]}
    if pairs:
        labels["next_sentence_label"] = torch.randint(2, (rows,), generator=draw)
    return Batch.from_lengths(ids, torch.zeros(tokens, dtype=torch.long), torch.full((rows,), length), **labels)


def fewest_parts(rows: int, fits: Callable[[int], bool]) -> int | None:
    """The fewest equal parts of ``rows`` that fit, where each try at least halves the part; ``None``: not even a row.

    Args:
        fits: whether a micro-batch of so many rows does; asked for fewer and fewer.
    """
    tried = 0
    for parts in (parts for parts in range(1, rows + 1) if rows % parts == 0):
        if parts >= 2 * tried or parts == rows:
            if fits(rows // parts):
                return parts
            tried = parts
    return None


def passes(model: nn.Module, objective: Objective, batch: Batch, precision: str) -> bool:
    """Whether memory holds forward and backward pass of a batch beside gradients and the optimizer's two moments.

    Weights, gradients and random state are then as before.
    """
    device = next(model.parameters()).device
    moments: list[Tensor] = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            moments += [torch.empty_like(parameter) for parameter in model.parameters() for _ in range(2)]
            for _ in range(2):  # a second micro-batch meets the gradients of the first
                with autocast(device, precision):
                    terms = objective(model, batch.to(device))
                torch.stack([term.sum for term in terms.losses.values()]).sum().backward()  # type: ignore[no-untyped-call]
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            moments.clear()
            model.zero_grad(set_to_none=True)


def with_micro_batches(
    config: Config,
    vocab_size: int,
    objective: Objective,
    device: torch.device,
    precision: str,
    ranks: Ranks,
    say: Callable[[str], None],
) -> Config:
    """The configuration with each ``accumulate: auto`` chosen: the same for all processes; 1 on a CPU.

    Rows without padding are tried, which no batch exceeds.

    Raises:
        BertptError: not even one row fits.
    """
    phases = list(config.train.phases)
    pairs = config.pairs.rule != "none"
    model: BertForPreTraining | None = None
    for index, phase in enumerate(phases):
        if phase.accumulate != AUTO:
            continue
        parts = 1
        if device.type == "cuda":
            if model is None:
                with torch.device(device):
                    model = BertForPreTraining(config.model, vocab_size, nsp=pairs)
                model.bert.encoder.recompute = config.train.activation_checkpointing
            rows = phase.batch_size // ranks.size
            tries = partial(_tried, model, objective, phase.length, config.masking.rate, pairs, precision)
            found = fewest_parts(rows, tries) or 0
            counts = [int(count) for count in ranks.stacked(torch.tensor([found]))]
            parts = max(counts) if all(counts) else 0
            say(f"train.phases.{index}.accumulate: auto: {parts} x {rows // max(1, parts):,} rows")
        if parts == 0:
            raise BertptError(
                f"train.phases.{index}.accumulate: auto: the memory of {torch.cuda.get_device_name(device)} does not"
                f" hold one row of {phase.length} tokens; set train.activation_checkpointing=true, or a smaller model"
            )
        phases[index] = phase.model_copy(update={"accumulate": parts})
    return config.model_copy(update={"train": config.train.model_copy(update={"phases": phases})})


def _tried(
    model: BertForPreTraining,
    objective: Objective,
    length: int,
    rate: float,
    pairs: bool,
    precision: str,
    rows: int,
) -> bool:
    batch = random_rows(rows, length, model.vocab_size, rate=rate, pairs=pairs)
    good = passes(model, objective, batch, precision)
    gc.collect()  # frames of the exception held tensors
    torch.cuda.empty_cache()
    return good
