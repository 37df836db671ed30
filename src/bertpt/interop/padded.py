"""The same network on a padded [B, L] grid, without gathering: shapes that other runtimes can be given."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertpt.model.bert import Layer
from bertpt.model.pretraining import BertForPreTraining


class PaddedEncoder(nn.Module):
    """Ids, mask and segments [B, L] -> hidden states [B, L, H] and, where there is a pooler, its output [B, H].

    It holds the modules of the model that it is made of. What it gives at padding means nothing.
    """

    def __init__(self, model: BertForPreTraining, *, pooler: bool) -> None:
        super().__init__()
        self.embeddings = model.bert.embeddings
        self.layers = model.bert.encoder.layer
        self.pooler = model.bert.pooler if pooler else None

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        parts = self.embeddings
        hidden = parts.word_embeddings(input_ids) + parts.token_type_embeddings(token_type_ids)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = parts.LayerNorm(hidden + parts.position_embeddings(positions))
        # A finite bias, so that a row of padding alone gives no NaN.
        bias = (1.0 - attention_mask[:, None, None, :].to(hidden.dtype)) * torch.finfo(hidden.dtype).min
        for layer in self.layers:
            assert isinstance(layer, Layer)
            hidden = self._layer(layer, hidden, bias)
        if self.pooler is None:
            return hidden  # type: ignore[no-any-return]
        return hidden, torch.tanh(self.pooler.dense(hidden[:, 0]))

    @staticmethod
    def _layer(layer: Layer, hidden: Tensor, bias: Tensor) -> Tensor:
        attention = layer.attention
        qkv = attention.self.qkv(hidden).unflatten(-1, (3, attention.self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=bias).transpose(1, 2).flatten(2)
        hidden = attention.output(context, hidden)
        return layer.output(layer.intermediate(hidden), hidden)  # type: ignore[no-any-return]


class PaddedMaskedWords(nn.Module):
    """Ids, mask and segments [B, L] -> logits of the vocabulary at every position [B, L, V]."""

    def __init__(self, model: BertForPreTraining) -> None:
        super().__init__()
        self.encoder = PaddedEncoder(model, pooler=False)
        self.predictions = model.cls.predictions

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        hidden = self.encoder(input_ids, attention_mask, token_type_ids)
        return self.predictions(hidden, self.encoder.embeddings.word_embeddings.weight)  # type: ignore[no-any-return]
