"""Dropout by random bytes, and attention row by row: what they keep, and that they compute the plain thing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_helpers import labels, packed, padded_rows, small
from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.model.attention import attend, grid_attention
from bertpt.model.dropout import Dropout, dropped_256ths, kept
from bertpt.model.pretraining import BertForPreTraining, pretraining_losses


def dropout(x: Tensor, p: float, *, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return Dropout(p)(x)  # type: ignore[no-any-return]


# --- which share ----------------------------------------------------------------------------------------------------


@given(st.floats(0, 1))
@settings(deadline=None)
def test_bytes_are_used_only_where_they_come_near(p: float) -> None:
    dropped = dropped_256ths(p)
    if dropped is None:
        assert abs(round(p * 256) / 256 - p) > 0.02 * p or round(p * 256) in (0, 256)
    else:
        assert 1 <= dropped <= 255
        assert abs(dropped / 256 - p) <= 0.02 * p


@pytest.mark.parametrize("p", [0.05, 0.1, 0.2, 0.25, 0.3, 0.5])
def test_common_rates_are_near_enough(p: float) -> None:
    assert dropped_256ths(p) is not None


@pytest.mark.parametrize("p", [0.01, 0.1, 0.25, 0.5, 0.9])
def test_the_share_that_is_dropped_and_the_mean(p: float) -> None:
    x = torch.ones(400, 1001)
    y = dropout(x, p)
    share = p if dropped_256ths(p) is None else (dropped_256ths(p) or 0) / 256
    spread = math.sqrt(share * (1 - share) / x.numel())
    assert float((y == 0).double().mean()) == pytest.approx(share, abs=5 * spread)
    assert y.unique().tolist() == [0.0, pytest.approx(1 / (1 - share), rel=1e-6)]
    assert float(y.double().mean()) == pytest.approx(1, abs=5 * spread / (1 - share))


def test_elements_are_dropped_independently() -> None:
    keep = kept(torch.empty(512, 512), 64).double() - 0.75
    for shift in (1, 2, 7, 8, 64, 511):  # within a draw of eight bytes and across
        flat = keep.flatten()
        assert abs(float((flat[shift:] * flat[:-shift]).mean())) < 5 * 0.1875 / 512
    bytes_within = (keep.reshape(-1, 8) == 0.25).double().mean(0)
    assert bytes_within.sub(0.75).abs().max() < 5 * math.sqrt(0.1875 / 32768)


# --- a function of the seed, with gradients -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (7,), (8, 3), (3, 0, 2), (5, 4, 3)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    assert dropout(x, 0.5).shape == shape
    assert dropout(x.mT if len(shape) > 1 else x, 0.5).shape == (x.mT if len(shape) > 1 else x).shape


def test_the_seed_and_the_saved_state_give_the_same_again() -> None:
    x = torch.randn(50, 30)
    assert torch.equal(dropout(x, 0.1), dropout(x, 0.1))
    assert not torch.equal(dropout(x, 0.1), dropout(x, 0.1, seed=1))
    state = torch.get_rng_state()
    first, second = Dropout(0.1)(x), Dropout(0.1)(x)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(Dropout(0.1)(x), first)


def test_the_number_of_threads_does_not_change_what_is_dropped() -> None:
    x, threads = torch.ones(1000, 100), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = dropout(x, 0.1)
        torch.set_num_threads(3)
        assert torch.equal(dropout(x, 0.1), one)
    finally:
        torch.set_num_threads(threads)


def test_the_gradient_is_dropped_where_the_value_is() -> None:
    x = torch.randn(40, 30, requires_grad=True)
    y = dropout(x, 0.25)
    weight = torch.randn_like(x)
    (y * weight).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.detach(), y.detach() * weight)
    z = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda value: dropout(value, 0.3), (z,))


@pytest.mark.parametrize("module", [Dropout(0.1).eval(), Dropout(0.0)])
def test_evaluation_and_a_rate_of_0_give_the_value_itself(module: nn.Module) -> None:
    x = torch.randn(5, 4)
    state = torch.get_rng_state()
    assert module(x) is x or torch.equal(module(x), x)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_rate_that_bytes_are_too_coarse_for_is_torchs_own() -> None:
    x = torch.randn(50, 30)
    found = dropout(x, 0.011)
    torch.manual_seed(0)
    assert torch.equal(found, nn.functional.dropout(x, 0.011))


# --- attention ------------------------------------------------------------------------------------------------------


def tokens(lengths: list[int], size: int, *, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Batch]:
    draw = torch.Generator().manual_seed(len(lengths))
    count = sum(lengths)
    ids = torch.zeros(count, dtype=torch.long)
    batch = Batch.from_lengths(ids, ids, torch.tensor(lengths))
    return torch.randn(count, 3 * size, generator=draw, dtype=dtype).requires_grad_(), batch


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), st.sampled_from([(8, 2), (6, 1), (12, 4)]))
@settings(deadline=None, max_examples=60)
def test_rows_one_by_one_equal_the_grid(lengths: list[int], shape: tuple[int, int]) -> None:
    size, heads = shape
    qkv, batch = tokens(lengths, size)
    weight = torch.randn(qkv.shape[0], size)
    found = attend(qkv, batch, heads, 0.0)
    wanted = grid_attention(qkv, batch, heads, 0.0)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)
    (one,) = torch.autograd.grad(found, qkv, weight)
    (other,) = torch.autograd.grad(wanted, qkv, weight)
    torch.testing.assert_close(one, other, rtol=0, atol=5e-6)


def test_the_rows_form_is_the_one_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    qkv, batch = tokens([4, 3], 8)
    called: list[float] = []
    monkeypatch.setattr("bertpt.model.attention.grid_attention", lambda *a: called.append(a[-1]))
    attend(qkv, batch, 2, 0.1)
    assert called == []
    attend(qkv, batch, 2, 0.011)  # too fine for bytes
    attend(qkv.bfloat16(), batch, 2, 0.0)
    with torch.no_grad():
        attend(qkv, batch, 2, 0.0)
    assert called == [0.011, 0.0, 0.0]


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
def test_gradients_of_attention_agree_with_differences(p: float) -> None:
    qkv, batch = tokens([4, 1, 0, 3], 4, dtype=torch.float64)

    def seeded(value: Tensor) -> Tensor:
        torch.manual_seed(3)
        return attend(value, batch, 2, p)

    assert torch.autograd.gradcheck(seeded, (qkv,))


def test_attention_drops_probabilities_and_scales_the_rest() -> None:
    """One-hot values read the thinned probabilities off."""
    length, heads = 64, 2
    qkv, batch = tokens([length], heads * length)
    with torch.no_grad():
        qkv[:, 2 * heads * length :] = torch.eye(length).repeat(1, heads)
    plain, thinned = attend(qkv, batch, heads, 0.0), attend(qkv, batch, heads, 0.25)
    dropped = thinned == 0
    assert float(dropped.double().mean()) == pytest.approx(0.25, abs=5 * math.sqrt(0.1875 / dropped.numel()))
    torch.testing.assert_close(thinned[~dropped], plain[~dropped] / 0.75)


def test_the_mean_over_many_masks_is_attention_without_dropout() -> None:
    qkv, batch = tokens([9, 5], 8)
    wanted = attend(qkv, batch, 2, 0.0)
    mean = torch.stack([attend(qkv, batch, 2, 0.1).detach() for _ in range(3000)]).mean(0)
    torch.testing.assert_close(mean, wanted.detach(), rtol=0, atol=0.04)


# --- the model ------------------------------------------------------------------------------------------------------


def test_a_training_step_with_dropout_is_a_function_of_the_random_state() -> None:
    config = small(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    torch.manual_seed(0)
    model = BertForPreTraining(config, 90)
    rows = padded_rows(90, [17, 5, 12, 3])
    batch = packed(rows, labels(rows, 90))

    def gradients(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        model.zero_grad()
        losses = pretraining_losses(model(batch), batch)
        losses.mlm.sum.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    first = gradients(1)
    assert all(torch.equal(a, b) for a, b in zip(first, gradients(1), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, gradients(2), strict=True))
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(batch).mlm_logits, model(batch).mlm_logits)
