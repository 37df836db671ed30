"""The one-pass cross entropy over the vocabulary equals the plain one, in value, in gradients and in what it counts."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from model_helpers import labels, packed, padded_rows, small
from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.model.masked_loss import masked_cross_entropy, plain_cross_entropy
from bertpt.model.pretraining import BertForPreTraining, pretraining_losses

# count, width, words, padded words: one chunk, several of unlike length, a chunk of one row; padding; one word
SIZES = [(1, 8, 50, 50), (200, 16, 97, 128), (385, 24, 61, 61), (129, 4, 7, 8), (300, 200, 31, 31), (5, 3, 1, 4)]


def inputs(
    count: int, width: int, words: int, rows: int, *, dtype: torch.dtype = torch.float32, spread: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(count)
    make = [(count, width), (rows, width), (words,)]
    hidden, weight, bias = (torch.randn(size, generator=draw, dtype=dtype) * spread for size in make)
    target = torch.randint(0, words, (count,), generator=draw)
    return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), target


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))


@pytest.mark.parametrize("spread", [0.3, 4.0], ids=["flat", "sharp"])
@pytest.mark.parametrize(("count", "width", "words", "rows"), SIZES)
def test_loss_gradients_and_right_predictions_equal_those_of_cross_entropy(
    count: int, width: int, words: int, rows: int, spread: float
) -> None:
    hidden, weight, bias, target = inputs(count, width, words, rows, spread=spread)
    loss, right = masked_cross_entropy(hidden, weight, bias, target)
    (loss * 0.37).backward()
    found = [hidden.grad, weight.grad, bias.grad]
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias)]
    logits = F.linear(exact[0], exact[1][:words], exact[2])
    wanted = F.cross_entropy(logits, target, reduction="sum")
    (wanted * 0.37).backward()
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=1e-6, abs=1e-6)
    assert right.dtype is torch.int64
    assert int(right) == int((logits.argmax(-1) == target).sum())
    for gradient, tensor in zip(found, exact, strict=True):
        assert gradient is not None
        assert tensor.grad is not None
        if words > 1:
            assert relative(gradient.double(), tensor.grad) < 5e-6
        else:
            torch.testing.assert_close(gradient.double(), tensor.grad, rtol=0, atol=1e-6)
    assert weight.grad is not None
    assert bool((weight.grad[words:] == 0).all())


def test_gradients_agree_with_differences() -> None:
    hidden, weight, bias, target = inputs(150, 2, 5, 7, dtype=torch.float64)
    picked = torch.arange(0, 150, 37)  # of both chunks; numerical differences in all would take long

    def loss(part: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return masked_cross_entropy(hidden.detach().index_copy(0, picked, part), weight, bias, target)[0]

    part = hidden.detach()[picked].requires_grad_()
    assert torch.autograd.gradcheck(loss, (part, weight, bias))


def test_no_prediction_gives_no_loss_and_no_gradient() -> None:
    hidden, weight, bias, target = inputs(0, 8, 50, 64)
    loss, right = masked_cross_entropy(hidden, weight, bias, target)
    loss.backward()
    assert (float(loss.detach()), int(right)) == (0.0, 0)
    for tensor in (hidden, weight, bias):
        assert tensor.grad is not None
        assert float(tensor.grad.abs().sum()) == 0


def test_logits_far_from_zero_do_not_overflow() -> None:
    hidden, weight, bias, target = inputs(20, 8, 50, 50)
    with torch.no_grad():
        hidden.mul_(1e3)
    loss, _ = masked_cross_entropy(hidden, weight, bias, target)
    wanted, _ = plain_cross_entropy(hidden, weight, bias, target)
    assert math.isfinite(float(loss.detach()))
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)


def test_a_tie_is_no_right_prediction() -> None:
    """A model whose output is 0 gives every word the same logit; it would be right everywhere."""
    hidden, weight, bias, target = inputs(30, 8, 50, 50)
    with torch.no_grad():
        hidden.zero_()
        bias.zero_()
    assert int(masked_cross_entropy(hidden, weight, bias, target)[1]) == 0
    with torch.no_grad():
        bias[7] = 1e-6
    _, right = masked_cross_entropy(hidden, weight, bias, target.fill_(7))
    assert int(right) == 30


@pytest.mark.parametrize("where", ["hidden", "weight", "bias"])
def test_what_is_not_a_number_shows_in_the_loss_and_is_not_right(where: str) -> None:
    hidden, weight, bias, target = inputs(30, 8, 50, 50)
    with torch.no_grad():
        {"hidden": hidden, "weight": weight, "bias": bias}[where][7] = math.nan
    loss, right = masked_cross_entropy(hidden, weight, bias, target)
    assert math.isnan(float(loss.detach()))
    others = torch.arange(30) != 7 if where == "hidden" else torch.zeros(30, dtype=torch.bool)
    logits = nn.functional.linear(hidden, weight, bias)
    assert int(right) == int((logits.argmax(-1) == target)[others].sum())


def test_a_second_backward_pass_gives_the_same_again() -> None:
    hidden, weight, bias, target = inputs(140, 8, 50, 50)
    loss, _ = masked_cross_entropy(hidden, weight, bias, target)
    first = torch.autograd.grad(loss, (hidden, weight, bias), torch.tensor(3.0), retain_graph=True)
    second = torch.autograd.grad(loss, (hidden, weight, bias), torch.tensor(3.0))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def model_and_batch() -> tuple[BertForPreTraining, Batch]:
    torch.manual_seed(0)
    model = BertForPreTraining(small(pad_vocab_to_multiple_of=64), 90)
    rows = padded_rows(90, [17, 5, 12, 3])
    return model, packed(rows, labels(rows, 90))


def test_training_never_holds_the_logits_and_evaluation_does_not_take_the_one_pass_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, batch = model_and_batch()
    asked: list[str] = []
    real = F.cross_entropy

    def recorded(logits: Tensor, target: Tensor, **options: str) -> Tensor:
        asked.append(str(tuple(logits.shape)))
        return real(logits, target, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(F, "cross_entropy", recorded)
    pretraining_losses(model(batch), batch)
    assert asked == ["(4, 2)"]  # the pairs'
    with torch.no_grad():
        pretraining_losses(model(batch), batch)
    with torch.autocast("cpu", torch.bfloat16):
        pretraining_losses(model(batch), batch)
    assert asked == ["(4, 2)", *[f"({batch.predictions}, 90)", "(4, 2)"] * 2]


def test_both_forms_train_the_whole_model_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied embedding, NSP beside it, weights of the losses, two micro-batches."""
    gradients = []
    for form in (masked_cross_entropy, plain_cross_entropy):
        monkeypatch.setattr("bertpt.model.pretraining.masked_cross_entropy", form)
        model, batch = model_and_batch()
        for scale in (0.5, 0.125):
            losses = pretraining_losses(model(batch), batch)
            assert losses.nsp is not None
            (scale * losses.mlm.sum + 0.25 * losses.nsp.sum).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, wanted in gradients[1].items():
        found = gradients[0][name]
        assert found is not None
        assert wanted is not None
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6, msg=name)
