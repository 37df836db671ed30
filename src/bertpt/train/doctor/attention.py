"""A check of this device: the attention that training uses beside the plain formula."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bertpt.batch import Batch
from bertpt.config.schema import Model
from bertpt.model.attention import attend

# Values are of size 1; bf16 has 8 bits: an error of 0.4% in each factor.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2}
_LONGEST = 512


@dataclass(frozen=True, slots=True)
class AttentionCheck:
    """Largest differences from softmax(Q K^T / sqrt(d)) V in float64, of the values and of the gradient."""

    device: str
    dtype: str
    forward: float
    evaluation: float
    gradient: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether all are within the tolerance; NaN is not."""
        return all(value <= self.tolerance for value in (self.forward, self.evaluation, self.gradient))


def check_attention(model: Model, device: torch.device, precision: str, length: int) -> AttentionCheck:
    """Compare on rows of unlike length, without dropout, with a graph (training) and without (evaluation).

    Args:
        model: its heads and width.
        precision: ``fp32`` or ``bf16``.
        length: of the longest row; above 512 it shows nothing more.
    """
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    longest = min(length, _LONGEST)
    lengths = torch.tensor([longest, max(longest // 2, 1), 3, 1])
    tokens = int(lengths.sum())
    draw = torch.Generator().manual_seed(0)
    qkv = torch.randn(tokens, 3 * model.hidden_size, generator=draw).to(dtype)
    weight = torch.randn(tokens, model.hidden_size, generator=draw).to(dtype)
    nothing = torch.zeros(tokens, dtype=torch.int64)
    batch = Batch.from_lengths(nothing, nothing, lengths).to(device)

    exact = qkv.double().requires_grad_()
    expected = _plain(exact, lengths.tolist(), model.num_attention_heads)
    (expected * weight.double()).sum().backward()  # type: ignore[no-untyped-call]
    ours = qkv.to(device).requires_grad_()
    found = attend(ours, batch, model.num_attention_heads, 0.0)
    (found * weight.to(device)).sum().backward()  # type: ignore[no-untyped-call]
    with torch.inference_mode():
        evaluated = attend(ours.detach(), batch, model.num_attention_heads, 0.0)
    assert exact.grad is not None
    assert ours.grad is not None
    return AttentionCheck(
        str(device),
        str(dtype).removeprefix("torch."),
        _difference(found, expected),
        _difference(evaluated, expected),
        _difference(ours.grad, exact.grad),
        TOLERANCE[dtype],
    )


def _plain(qkv: Tensor, lengths: list[int], heads: int) -> Tensor:
    """[T, 3H] -> [T, H], row by row as the formula is written."""
    rows = []
    for row in torch.split(qkv, lengths):
        query, key, value = (part.reshape(len(part), heads, -1).transpose(0, 1) for part in row.chunk(3, dim=1))
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        rows.append((scores.softmax(-1) @ value).transpose(0, 1).flatten(1))
    return torch.cat(rows)


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double().cpu() - expected.detach()).abs().max())
