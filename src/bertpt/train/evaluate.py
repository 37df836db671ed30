"""Held-out evaluation: fixed rows and masks, means by count, dropout off, nothing of training touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertpt.data.rows.loader import BatchStream
from bertpt.model.pretraining import BertForPreTraining
from bertpt.progress import Progress
from bertpt.train.updates.step import autocast

# Rows and masks of an evaluation follow from this, never from the run's seed: runs can be compared.
EVALUATION_SEED = 20181011


@dataclass(frozen=True, slots=True)
class Predictions:
    """What the model says of the held-out rows, to be scored and set beside baselines.

    Attributes:
        rows: [R] the planned rows (``plan.ROW``).
        predictions_per_row: int64 [R]; labels: int64 [M]; positions of the M follow the rows' order.
        in_second: bool [M], whether in the second segment; whole_word: bool [M], whether a word of one piece.
        mlm_nll: float64 [M], -log p of the original token, nats; mlm_right: bool [M].
        nsp_nll: float64 [R] and nsp_right: bool [R]; empty without pairs.
    """

    rows: NDArray[Any]
    predictions_per_row: NDArray[np.int64]
    in_second: NDArray[np.bool_]
    whole_word: NDArray[np.bool_]
    labels: NDArray[np.int64]
    mlm_nll: NDArray[np.float64]
    mlm_right: NDArray[np.bool_]
    nsp_nll: NDArray[np.float64]
    nsp_right: NDArray[np.bool_]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off and no gradients inside; the mode before it is restored."""
    mode = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(mode)


def predict_heldout(
    model: BertForPreTraining,
    stream: BatchStream,
    *,
    max_rows: int,
    precision: str = "fp32",
    before_batch: Callable[[], None] = lambda: None,
    shown: bool = False,
) -> Predictions:
    """Run the first epoch of a held-out stream, or ``max_rows`` of it; the last batch may be smaller.

    Args:
        before_batch: is called before each batch; what it raises ends the evaluation.
        shown: whether progress is.
    """
    plan = stream.plans.epoch(0)[:max_rows]
    device = next(model.parameters()).device
    per_row, second, whole, labels = [], [], [], []
    continues = torch.from_numpy(stream.masker.continues_word)
    mlm_nll, mlm_right, nsp_nll, nsp_right = [], [], [], []
    with evaluating(model), Progress("evaluate", total=len(plan), shown=shown) as progress:
        for start in range(0, len(plan), stream.batch_size):
            before_batch()
            host = stream.rows(start, min(stream.batch_size, len(plan) - start))
            batch = host.to(device)
            with autocast(device, precision):
                output = model(batch)
                logits = output.mlm_logits.float()
            assert host.masked_positions is not None
            assert host.masked_labels is not None
            assert batch.masked_labels is not None
            mlm_nll.append(nn.functional.cross_entropy(logits, batch.masked_labels, reduction="none").double().cpu())
            mlm_right.append((logits.argmax(-1) == batch.masked_labels).cpu())
            row = torch.bucketize(host.masked_positions, host.first, right=True) - 1
            per_row.append(torch.bincount(row, minlength=host.rows))
            progress.add(host.rows)
            second.append(host.token_type_ids[host.masked_positions] == 1)
            ids = host.input_ids.index_copy(0, host.masked_positions, host.masked_labels)
            inner = continues[ids]
            # A row ends with [SEP]: every masked token has one after it.
            whole.append(~inner[host.masked_positions] & ~inner[host.masked_positions + 1])
            labels.append(host.masked_labels)
            if output.nsp_logits is not None and batch.next_sentence_label is not None:
                nsp = output.nsp_logits.float()
                nll = nn.functional.cross_entropy(nsp, batch.next_sentence_label, reduction="none")
                nsp_nll.append(nll.double().cpu())
                nsp_right.append((nsp.argmax(-1) == batch.next_sentence_label).cpu())
    return Predictions(
        rows=np.asarray(plan),
        predictions_per_row=torch.cat(per_row).numpy(),
        in_second=torch.cat(second).numpy(),
        whole_word=torch.cat(whole).numpy(),
        labels=torch.cat(labels).numpy(),
        mlm_nll=torch.cat(mlm_nll).numpy(),
        mlm_right=torch.cat(mlm_right).numpy(),
        nsp_nll=torch.cat(nsp_nll).numpy() if nsp_nll else np.empty(0),
        nsp_right=torch.cat(nsp_right).numpy() if nsp_right else np.empty(0, np.bool_),
    )


def heldout_scores(predictions: Predictions) -> dict[str, float]:
    """Mean losses (nats), perplexity (``inf`` above e**709) and accuracies, each weighted by its own count."""
    loss = _mean(predictions.mlm_nll)
    with np.errstate(over="ignore"):
        perplexity = float(np.exp(loss))
    scores = {
        "mlm_loss": loss,
        "mlm_perplexity": perplexity,
        "mlm_accuracy": _mean(predictions.mlm_right),
    }
    if len(predictions.nsp_nll):
        scores["nsp_loss"] = _mean(predictions.nsp_nll)
        scores["nsp_accuracy"] = _mean(predictions.nsp_right)
    return scores


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")
