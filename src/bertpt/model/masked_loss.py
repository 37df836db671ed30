"""Cross entropy of the masked positions over the vocabulary: plain, and in one pass for the CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_LEAST_ROWS = 128


def decode(hidden: Tensor, embedding: Tensor, bias: Tensor) -> Tensor:
    """[M, H], [>= V, H] and [V] -> logits [M, V]; padded rows of the embedding take no part."""
    return F.linear(hidden, embedding[: bias.shape[0]], bias)


def masked_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross entropy in nats of the words at M positions, and how many of them have the highest logit.

    Training on a CPU takes the one-pass form: the plain one makes and reads [M, V] numbers six times over. On CUDA
    each of those passes is one kernel near the memory's speed, where chunks would only add launches; under autocast
    the products are not in fp32. Both keep the plain form, and so does whoever needs no gradient.

    Args:
        hidden: [M, H], transformed.
        weight: [>= V, H], the token embedding; rows after V are padding and take no part.
        bias: [V]; labels: int64 [M].

    Returns:
        Loss (scalar, fp32 or better) and right predictions (int64 scalar). A word that shares the highest logit
        with another is no right prediction in the one-pass form, and is where it comes first in the plain one.
    """
    reduced = hidden.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(hidden.device.type)
    if hidden.is_cuda or reduced or not torch.is_grad_enabled():
        return plain_cross_entropy(hidden, weight, bias, labels)
    return _ChunkedCrossEntropy.apply(hidden, weight, bias, labels)  # type: ignore[no-any-return, no-untyped-call]


def plain_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`masked_cross_entropy`, by the logits of all M positions."""
    logits = decode(hidden, weight, bias)
    loss = F.cross_entropy(logits if logits.dtype is torch.float64 else logits.float(), labels, reduction="sum")
    return loss, (logits.argmax(-1) == labels).sum()


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Loss and gradients in the forward pass, a chunk of the predictions at a time; backward scales them.

    With l the logits of a chunk, e = exp(l - max l) and z = sum e are made in place. The gradient by the logits is
    e / z, less one at the label. There e becomes e - z, so that it is this gradient times z in each row, and 1 / z
    is multiplied into the thin matrices that come out. A label's logit is set aside before the maximum is taken:
    the prediction is right if it exceeds all others.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        (count, size), words = hidden.shape, bias.shape[0]
        # Each chunk reads the weight and adds to its gradient, H numbers a word: smaller chunks cost more than that.
        chunks = max(1, -(-count // max(_LEAST_ROWS, size)))
        rows = -(-count // chunks)
        buffer = hidden.new_empty(rows, words)
        by_hidden, by_bias, by_weight = torch.empty_like(hidden), torch.zeros_like(bias), torch.empty_like(weight)
        by_weight[words if count else 0 :] = 0
        decoder, by_decoder = weight[:words], by_weight[:words]
        loss, right = hidden.new_zeros(()), labels.new_zeros(())
        for begin in range(0, count, max(1, rows)):
            part, label = hidden[begin : begin + rows], labels[begin : begin + rows, None]
            e = torch.addmm(bias, part, decoder.t(), out=buffer[: len(part)])
            own = e.gather(1, label)
            others = e.scatter_(1, label, -torch.inf).amax(1, keepdim=True)
            highest = torch.maximum(own, others)
            right += (own > others).sum()
            e.sub_(highest).exp_()
            at_label = (own - highest).exp_()
            z = e.sum(1, keepdim=True).add_(at_label)
            loss += (z.log() + highest - own).sum()
            e.scatter_(1, label, at_label - z)
            share = z.reciprocal_()
            torch.mm(e, decoder, out=by_hidden[begin : begin + rows]).mul_(share)
            by_decoder.addmm_(e.t(), part * share, beta=1 if begin else 0)
            by_bias.addmv_(e.t(), share[:, 0])
        ctx.save_for_backward(by_hidden, by_weight, by_bias)
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        by_hidden, by_weight, by_bias = ctx.saved_tensors
        return by_hidden * scale, by_weight * scale, by_bias * scale, None
