"""BERT with its two pre-training heads, and their losses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertpt.batch import Batch, LossTerm
from bertpt.config.schema import Model as ModelConfig
from bertpt.model.bert import Bert, DenseGelu, initialize
from bertpt.model.masked_loss import decode, masked_cross_entropy


class PredictionTransform(DenseGelu):
    """Dense, GELU, LayerNorm before the decoder: [M, H] -> [M, H]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.LayerNorm(super().forward(hidden))  # type: ignore[no-any-return]


class Predictions(nn.Module):
    """MLM head; the decoder is the token embedding (tied) with a bias of its own."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.transform = PredictionTransform(config)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """[M, H] and the embedding [>= V, H] -> logits [M, V]; padded rows of the embedding take no part."""
        return decode(self.transform(hidden), embedding, self.bias)


class Heads(nn.Module):
    """Both heads, or the MLM head alone when rows are not pairs."""

    def __init__(self, config: ModelConfig, vocab_size: int, *, nsp: bool) -> None:
        super().__init__()
        self.predictions = Predictions(config, vocab_size)
        self.seq_relationship = nn.Linear(config.hidden_size, 2) if nsp else None


@dataclass(frozen=True)
class PreTrainingOutput:
    """What the heads make of a batch. The logits of the vocabulary are made where they are asked for."""

    masked: Tensor  # [M, H], transformed
    embedding: Tensor  # [>= V, H]
    bias: Tensor  # [V]
    nsp_logits: Tensor | None  # [B, 2], index 0 = B follows A

    @cached_property
    def mlm_logits(self) -> Tensor:
        """Logits [M, V] at the masked positions."""
        return decode(self.masked, self.embedding, self.bias)


class BertForPreTraining(nn.Module):
    """BERT with MLM and (for pairs) NSP head. Only heads in use are built: every parameter gets a gradient."""

    def __init__(self, config: ModelConfig, vocab_size: int, *, nsp: bool = True) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.bert = Bert(config, vocab_size, pooler=nsp)
        self.cls = Heads(config, vocab_size, nsp=nsp)
        self.apply(lambda module: initialize(module, config.initializer_range))

    def forward(self, batch: Batch) -> PreTrainingOutput:
        """Both heads at the masked positions of ``batch`` and, with pairs, for its rows."""
        assert batch.masked_positions is not None
        hidden = self.bert(batch)
        head = self.cls.predictions
        masked = head.transform(hidden.index_select(0, batch.masked_positions))
        nsp_logits = None
        if self.bert.pooler is not None and self.cls.seq_relationship is not None:
            nsp_logits = self.cls.seq_relationship(self.bert.pooler(hidden, batch))
        return PreTrainingOutput(masked, self.bert.embeddings.word_embeddings.weight, head.bias, nsp_logits)


class PreTrainingLosses(NamedTuple):
    """Loss terms and right predictions (int64 scalars) of both objectives; ``None`` for NSP without pairs."""

    mlm: LossTerm
    nsp: LossTerm | None
    mlm_right: Tensor
    nsp_right: Tensor | None


def pretraining_losses(output: PreTrainingOutput, batch: Batch) -> PreTrainingLosses:
    """Cross entropies in nats, summed; each objective has its own count (no shared ignore label)."""
    assert batch.masked_labels is not None
    loss, right = masked_cross_entropy(output.masked, output.embedding, output.bias, batch.masked_labels)
    mlm = LossTerm(loss, batch.predictions)
    label = batch.next_sentence_label
    if output.nsp_logits is None or label is None:
        return PreTrainingLosses(mlm, None, right, None)
    nsp = LossTerm(F.cross_entropy(output.nsp_logits.float(), label, reduction="sum"), batch.rows)
    return PreTrainingLosses(mlm, nsp, right, (output.nsp_logits.argmax(-1) == label).sum())
