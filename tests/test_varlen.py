"""Attention by torch's kernel for rows of any length, with a stand-in for the kernel, which needs CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import varlen as kernel

from bertpt.batch import Batch
from bertpt.model import attention, varlen
from bertpt.model.attention import attend, grid_attention
from bertpt.model.varlen import varlen_attention

LENGTHS = torch.tensor([7, 3, 0, 12, 1])
HEADS, SIZE = 3, 8


def stand_in(
    query: Tensor, key: Tensor, value: Tensor, ends_q: Tensor, ends_k: Tensor, max_q: int, max_k: int
) -> Tensor:
    """What the documentation of ``varlen_attn`` says, a row at a time."""
    assert query.shape == key.shape == value.shape == (int(ends_q[-1]), query.shape[1], query.shape[2])
    assert ends_q.dtype == ends_k.dtype == torch.int32
    assert int(ends_q.diff().max()) <= max_q == max_k
    rows = []
    for begin, end in zip(ends_q.tolist(), ends_q[1:].tolist(), strict=False):
        q, k, v = (part[begin:end].transpose(0, 1) for part in (query, key, value))
        rows.append(F.scaled_dot_product_attention(q, k, v).transpose(0, 1))
    return torch.cat(rows)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    varlen._tried.cache_clear()
    yield
    varlen._tried.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, made: Callable[..., Tensor]) -> None:
    monkeypatch.setattr(kernel, "varlen_attn", made)


def packed(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Batch]:
    tokens = int(LENGTHS.sum())
    qkv = torch.randn(tokens, 3 * HEADS * SIZE, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    ids = torch.zeros(tokens, dtype=torch.int64)
    return qkv, Batch.from_lengths(ids, ids, LENGTHS)


def test_it_is_the_attention_of_the_grid_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in)
    qkv, batch = packed()
    found, wanted = varlen_attention(qkv, batch.attention_mask, HEADS), grid_attention(qkv, batch, HEADS, 0.0)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad(out.square().sum(), qkv, retain_graph=True)[0] for out in (found, wanted)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def test_the_trial_takes_a_kernel_that_is_right_and_leaves_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def agrees(made: Callable[..., Tensor]) -> bool:
        varlen._tried.cache_clear()
        use(monkeypatch, made)
        return varlen._agrees(torch.device("cpu"), torch.bfloat16, SIZE)

    assert agrees(stand_in)
    with torch.inference_mode():  # where an evaluation is the first that asks
        assert agrees(stand_in)
    assert not caplog.records
    assert not agrees(lambda q, k, v, *rest: stand_in(q, k, v.roll(1, 0), *rest))
    assert "off the plain formula" in caplog.text
    # A gradient that is lost, and rows that see each other.
    assert not agrees(lambda q, k, v, *rest: stand_in(q, k.detach(), v, *rest))
    whole = lambda q, k, v, *rest: F.scaled_dot_product_attention(  # noqa: E731
        *(part.transpose(0, 1) for part in (q, k, v))
    ).transpose(0, 1)
    assert not agrees(whole)

    def fails(*arguments: Any) -> Tensor:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")

    assert not agrees(fails)


@pytest.mark.parametrize(("dropout", "good", "taken"), [(0.0, True, True), (0.1, True, False), (0.0, False, False)])
def test_it_is_taken_without_dropout_where_the_trial_was_good(
    monkeypatch: pytest.MonkeyPatch, dropout: float, good: bool, taken: bool
) -> None:
    used: list[int] = []

    def noting(*arguments: Any) -> Tensor:
        used.append(1)
        return stand_in(*arguments)

    use(monkeypatch, noting)
    monkeypatch.setattr(attention, "can_be_varlen", lambda qkv, heads: good)
    qkv, batch = packed()
    attend(qkv, batch, HEADS, dropout)
    assert bool(used) == taken
    full = Batch.from_lengths(*[torch.zeros(12, dtype=torch.int64)] * 2, torch.tensor([6, 6]))
    used.clear()
    attend(qkv[:12], full, HEADS, 0.0)
    assert not used, "rows without padding are best on the grid"


def test_on_a_cpu_and_in_fp32_it_is_not_asked_for() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert not varlen.can_be_varlen(packed(dtype)[0], HEADS)
    assert varlen._tried.cache_info().misses == 0


def test_a_compiler_takes_the_trial_for_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in)
    device = torch.device("cpu")

    def work(value: Tensor) -> Tensor:
        return value + 1 if varlen._agrees(device, torch.bfloat16, SIZE) else value

    compiled = torch.compile(work, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(2)).tolist() == [1, 1]
    torch._dynamo.reset()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_it_is_the_attention_of_the_grid() -> None:
    qkv, batch = packed(torch.bfloat16)
    qkv, batch = qkv.detach().cuda().requires_grad_(), batch.to(torch.device("cuda"))
    if not varlen.can_be_varlen(qkv, HEADS):
        pytest.skip("this device has no such kernel")
    torch.testing.assert_close(
        attend(qkv, batch, HEADS, 0.0), grid_attention(qkv, batch, HEADS, 0.0), rtol=2e-2, atol=2e-2
    )
