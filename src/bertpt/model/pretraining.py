"""BERT with its two pre-training heads, and their losses."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertpt.batch import Batch, LossTerm
from bertpt.config.schema import Model as ModelConfig
from bertpt.model.bert import Bert, DenseGelu, initialize


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
        return F.linear(self.transform(hidden), embedding[: self.bias.shape[0]], self.bias)


class Heads(nn.Module):
    """Both heads, or the MLM head alone when rows are not pairs."""

    def __init__(self, config: ModelConfig, vocab_size: int, *, nsp: bool) -> None:
        super().__init__()
        self.predictions = Predictions(config, vocab_size)
        self.seq_relationship = nn.Linear(config.hidden_size, 2) if nsp else None


class PreTrainingOutput(NamedTuple):
    """Logits at the masked positions, and of the pair label where there is one."""

    mlm_logits: Tensor  # [M, V]
    nsp_logits: Tensor | None  # [B, 2], index 0 = B follows A


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
        """Logits for the masked positions of ``batch`` and, with pairs, for its rows."""
        assert batch.masked_positions is not None
        hidden = self.bert(batch)
        masked = hidden.index_select(0, batch.masked_positions)
        mlm_logits = self.cls.predictions(masked, self.bert.embeddings.word_embeddings.weight)
        if self.bert.pooler is None or self.cls.seq_relationship is None:
            return PreTrainingOutput(mlm_logits, None)
        return PreTrainingOutput(mlm_logits, self.cls.seq_relationship(self.bert.pooler(hidden, batch)))


class PreTrainingLosses(NamedTuple):
    """Loss terms of both objectives; ``nsp`` is ``None`` without pairs."""

    mlm: LossTerm
    nsp: LossTerm | None


def pretraining_losses(output: PreTrainingOutput, batch: Batch) -> PreTrainingLosses:
    """Cross entropies in nats, summed; each objective has its own count (no shared ignore label)."""
    assert batch.masked_labels is not None
    mlm = LossTerm(F.cross_entropy(output.mlm_logits.float(), batch.masked_labels, reduction="sum"), batch.predictions)
    if output.nsp_logits is None or batch.next_sentence_label is None:
        return PreTrainingLosses(mlm, None)
    nsp = F.cross_entropy(output.nsp_logits.float(), batch.next_sentence_label, reduction="sum")
    return PreTrainingLosses(mlm, LossTerm(nsp, batch.rows))
