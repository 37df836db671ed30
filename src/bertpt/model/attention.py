"""Attention of packed rows: on the padded grid, row by row for training on a CPU, and by a kernel of torch on CUDA."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertpt.batch import Batch
from bertpt.model.dropout import dropped_256ths, kept
from bertpt.model.varlen import can_be_varlen, varlen_attention


def attend(qkv: Tensor, batch: Batch, heads: int, dropout: float) -> Tensor:
    """Multi-head attention within each row, scaled by 1 / sqrt(head size): [T, 3H] -> [T, H].

    With gradients on a CPU, rows are done one by one. ``scaled_dot_product_attention`` leaves its fused kernel there
    as soon as it drops anything, and needs the grid; without dropout it was slower as well. On CUDA in 16 bits, without
    dropout, rows are left as they are too (``varlen``).

    Args:
        qkv: query, key and value side by side.
        dropout: on the probabilities.
    """
    dropped = 0 if dropout == 0 else dropped_256ths(dropout)
    exact = qkv.dtype in (torch.float32, torch.float64)
    if dropout == 0 and not batch.is_full and can_be_varlen(qkv, heads):
        return varlen_attention(qkv, batch.attention_mask, heads)
    if qkv.device.type != "cpu" or dropped is None or not exact or not torch.is_grad_enabled():
        return grid_attention(qkv, batch, heads, dropout)
    lengths = batch.attention_mask.sum(1).tolist()
    return _RowAttention.apply(qkv, lengths, heads, dropped)  # type: ignore[no-any-return, no-untyped-call]


def grid_attention(qkv: Tensor, batch: Batch, heads: int, dropout: float) -> Tensor:
    """As :func:`attend`, by scattering the tokens into the [B, L] grid and back."""
    rows, length = batch.attention_mask.shape
    size = qkv.shape[1] // 3
    mask = None
    if not batch.is_full:
        qkv = qkv.new_zeros(rows * length, 3 * size).index_copy(0, batch.grid_index, qkv)
        mask = batch.attention_mask[:, None, None, :]
    query, key, value = qkv.view(rows, length, 3, heads, size // heads).permute(2, 0, 3, 1, 4)
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    context = context.transpose(1, 2).reshape(rows * length, size)
    return context if batch.is_full else context.index_select(0, batch.grid_index)


class _RowAttention(torch.autograd.Function):
    """Each row's tokens are a slice of the packed ones: no padding, no mask, no copies, and a row fits a cache.

    With P the probabilities, M the mask of dropout (0 or 1) and c its scale, O = c (P M) V. By the rules of products,
    dS = P M c (dO V^T) - P D, where D = rowsum(dO O).
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, lengths: Sequence[int], heads: int, dropped: int) -> Tensor:
        query, key, value = _by_head(qkv, 3 * heads).chunk(3)
        scale, inverse = 1 / math.sqrt(query.shape[2]), 256 / (256 - dropped)
        out = qkv.new_empty(qkv.shape[0], qkv.shape[1] // 3)
        context = _by_head(out, heads)
        probabilities = qkv.new_empty(sum(heads * length * length for length in lengths))
        thinned = kept(probabilities, dropped) if dropped else probabilities
        for row, p, t in _rows(lengths, heads, probabilities, thinned):
            torch.baddbmm(p, query[:, row], key[:, row].mT, beta=0, alpha=scale, out=p)
            torch.softmax(p, -1, out=p)
            if dropped:
                t.mul_(p)
            o = context[:, row]
            torch.baddbmm(o, t, value[:, row], beta=0, alpha=inverse, out=o)
        ctx.save_for_backward(qkv, out, probabilities, thinned)
        ctx.shape = lengths, heads, scale, inverse
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, probabilities, thinned = ctx.saved_tensors
        lengths, heads, scale, inverse = ctx.shape
        query, key, value = _by_head(qkv, 3 * heads).chunk(3)
        result = torch.empty_like(qkv)
        by_query, by_key, by_value = _by_head(result, 3 * heads).chunk(3)
        by_context = _by_head(gradient.contiguous(), heads)
        along = _by_head(gradient * out, heads).sum(2, keepdim=True)
        buffer = qkv.new_empty(heads * max(lengths, default=0) ** 2)
        for row, p, t in _rows(lengths, heads, probabilities, thinned):
            o, s = by_context[:, row], buffer[: p.numel()].view_as(p)
            torch.baddbmm(by_value[:, row], t.mT, o, beta=0, alpha=inverse, out=by_value[:, row])
            torch.baddbmm(s, o, value[:, row].mT, beta=0, alpha=inverse, out=s)
            s.mul_(t).addcmul_(p, along[:, row], value=-1)
            torch.baddbmm(by_query[:, row], s, key[:, row], beta=0, alpha=scale, out=by_query[:, row])
            torch.baddbmm(by_key[:, row], s.mT, query[:, row], beta=0, alpha=scale, out=by_key[:, row])
        return result, None, None, None


def _by_head(packed: Tensor, heads: int) -> Tensor:
    """[T, heads * size] -> [heads, T, size], a view."""
    return packed.view(packed.shape[0], heads, -1).transpose(0, 1)


def _rows(lengths: Sequence[int], heads: int, *flat: Tensor) -> Iterator[tuple[Any, ...]]:
    """The tokens of each row as a slice, and its [heads, length, length] part of each flat tensor."""
    token = begin = 0
    for length in lengths:
        end = begin + heads * length * length
        if length:
            yield slice(token, token + length), *(part[begin:end].view(heads, length, length) for part in flat)
        token, begin = token + length, end
