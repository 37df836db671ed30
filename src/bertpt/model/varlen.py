"""Attention of packed rows on CUDA without padding: torch's Flash Attention for rows of any length.

It has no dropout, and computes in 16 bits alone. Whether it does on a device what the grid does is tried once, forward
and backward, before it is used there; where it does not, or is missing, attention stays on the grid.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_log = logging.getLogger(__name__)
_TRIAL = [5, 1, 33, 16]  # lengths of the rows that it is tried on
_TOLERANCE = 0.05  # of values near 1 in bf16, whose steps are 0.008


def varlen_attention(qkv: Tensor, attention_mask: Tensor, heads: int) -> Tensor:
    """Multi-head attention within each row, scaled by 1 / sqrt(head size): [T, 3H] -> [T, H].

    Args:
        qkv: query, key and value side by side, in 16 bits.
        attention_mask: bool [B, L], of the T tokens.
        heads: into which H is divided.
    """
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = qkv.view(qkv.shape[0], 3, heads, -1).unbind(1)
    ends = F.pad(attention_mask.sum(1).cumsum(0), (1, 0)).to(torch.int32)  # on the device: nothing waits for it
    longest = attention_mask.shape[1]
    out = varlen_attn(query, key, value, ends, ends, longest, longest)
    assert isinstance(out, Tensor)  # a pair only where more is asked for
    return out.reshape(qkv.shape[0], -1)


def can_be_varlen(qkv: Tensor, heads: int) -> bool:
    """Whether :func:`varlen_attention` takes such input on its device, by a trial that is made once."""
    if qkv.device.type != "cuda" or qkv.dtype not in (torch.bfloat16, torch.float16):
        return False
    good: bool = _agrees(qkv.device, qkv.dtype, qkv.shape[1] // 3 // heads)
    return good


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _agrees(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    return _tried(device, dtype, size)


@lru_cache
def _tried(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Whether the outcome and the gradient are those of the plain formula, row by row."""
    heads = 2
    draw = torch.Generator().manual_seed(0)
    # The first attention without dropout may be that of an evaluation, in inference mode.
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        packed = torch.randn(sum(_TRIAL), 3 * heads * size, generator=draw).to(device, dtype).requires_grad_()
        mask = (torch.arange(max(_TRIAL)) < torch.tensor(_TRIAL)[:, None]).to(device)
        weights = torch.randn(sum(_TRIAL), heads * size, generator=draw).to(device, dtype)
        try:
            found = varlen_attention(packed, mask, heads)
            (by_varlen,) = torch.autograd.grad((found * weights).sum(), packed)
        except (ImportError, RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            _log.debug("varlen attention is not to be had on %s in %s: %s", device, dtype, reason)
            return False
        wanted = torch.cat([_plain(row, heads) for row in torch.split(packed, _TRIAL)])
        (by_plain,) = torch.autograd.grad((wanted * weights).sum(), packed)
    pairs = (found.detach(), wanted.detach()), (by_varlen, by_plain)
    apart = max(float((a.float() - b.float()).abs().max()) for a, b in pairs)
    good = apart <= _TOLERANCE * max(1.0, float(by_plain.abs().max()))
    if not good:
        _log.warning("varlen attention on %s in %s is %.2g off the plain formula: it is not used", device, dtype, apart)
    return good


def _plain(row: Tensor, heads: int) -> Tensor:
    """Attention of one row, [length, 3H] -> [length, H], in fp32."""
    query, key, value = row.float().view(row.shape[0], 3, heads, -1).permute(1, 2, 0, 3)
    weights = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1)
    context = torch.bmm(weights, value)
    return context.transpose(0, 1).reshape(row.shape[0], -1).to(row.dtype)
