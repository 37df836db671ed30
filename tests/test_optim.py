"""Parameter groups, the optimizer without bias correction, and the learning rate."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from model_helpers import small
from torch import nn

from bertpt.config.schema import Optimizer as OptimizerConfig
from bertpt.config.schema import Schedule
from bertpt.model.bert import SelfAttention
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train.updates.optim import UncorrectedAdamW, build_optimizer, parameter_groups
from bertpt.train.updates.schedule import learning_rate

KINDS = ["linear", "cosine", "polynomial", "trapezoid", "inverse_sqrt", "constant"]

# --- groups ---------------------------------------------------------------------------------------------------------


def test_weights_of_dense_and_embedding_decay_and_nothing_else() -> None:
    model = BertForPreTraining(small(num_hidden_layers=1), 50)
    decayed, plain = parameter_groups(model, 0.01)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.01, 0.0)
    assert sorted(names[id(p)] for p in decayed["params"]) == [
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.token_type_embeddings.weight",
        "bert.embeddings.word_embeddings.weight",
        "bert.encoder.layer.0.attention.output.dense.weight",
        "bert.encoder.layer.0.attention.self.qkv.weight",
        "bert.encoder.layer.0.intermediate.dense.weight",
        "bert.encoder.layer.0.output.dense.weight",
        "bert.pooler.dense.weight",
        "cls.predictions.transform.dense.weight",
        "cls.seq_relationship.weight",
    ]


def test_each_parameter_is_in_one_group_once() -> None:
    model = BertForPreTraining(small(), 50)
    grouped = [id(p) for group in parameter_groups(model, 0.01) for p in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in model.parameters()}
    assert grouped.count(id(model.bert.embeddings.word_embeddings.weight)) == 1


def test_names_play_no_part_in_the_groups() -> None:
    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias_layer = nn.Linear(3, 3)
            self.scale = nn.LayerNorm(3)
            self.norm_table = nn.Embedding(4, 3)
            self.tied = nn.Linear(3, 4, bias=False)
            self.tied.weight = self.norm_table.weight
            self.frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)

    module = Renamed()
    decayed, plain = parameter_groups(module, 0.1)
    assert {id(p) for p in decayed["params"]} == {id(module.bias_layer.weight), id(module.norm_table.weight)}
    assert len(decayed["params"]) == 2
    assert {id(p) for p in plain["params"]} == {id(module.bias_layer.bias), *map(id, module.scale.parameters())}


# --- updates --------------------------------------------------------------------------------------------------------


def released_formula(
    weight: np.ndarray, gradients: list[np.ndarray], rates: list[float], decay: float, config: OptimizerConfig
) -> np.ndarray:
    """``AdamWeightDecayOptimizer.apply_gradients`` of the released code, in numpy."""
    beta1, beta2 = config.betas
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for gradient, rate in zip(gradients, rates, strict=True):
        first = beta1 * first + (1.0 - beta1) * gradient
        second = beta2 * second + (1.0 - beta2) * gradient * gradient
        update = first / (np.sqrt(second) + config.eps)
        update = update + decay * weight
        weight = weight - rate * update
    return weight


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_without_bias_correction_it_is_the_released_optimizer(eps: float) -> None:
    torch.manual_seed(0)
    config = OptimizerConfig(bias_correction=False, weight_decay=0.1, eps=eps, betas=(0.8, 0.99))
    layer = nn.Linear(5, 4).double()
    before = {name: p.detach().numpy().copy() for name, p in layer.named_parameters()}
    optimizer = build_optimizer(layer, config)
    assert isinstance(optimizer, UncorrectedAdamW)
    rates = [1e-3 * (step + 1) for step in range(20)]
    gradients: dict[str, list[np.ndarray]] = {name: [] for name in before}
    for rate in rates:
        for name, parameter in layer.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            gradients[name].append(parameter.grad.numpy().copy())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    for name, parameter in layer.named_parameters():
        decay = 0.1 if name == "weight" else 0.0
        expected = released_formula(before[name], gradients[name], rates, decay, config)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=0, atol=1e-12)


def test_with_bias_correction_the_first_step_is_the_learning_rate() -> None:
    """The correction makes m / sqrt(v) of the first step the gradient's sign; without it, 3.16 times that."""
    for correction, size in ((True, 1.0), (False, 0.1 / 0.001**0.5)):
        layer = nn.Linear(3, 3)
        config = OptimizerConfig(lr=1e-2, weight_decay=0.0, bias_correction=correction)
        before = layer.weight.detach().clone()
        layer.weight.grad = torch.tensor([[1.0, -2.0, 3.0]] * 3)
        build_optimizer(layer, config).step()
        moved = (before - layer.weight.detach()) / 1e-2
        torch.testing.assert_close(moved, layer.weight.grad.sign() * size, rtol=1e-3, atol=0)


def test_a_parameter_without_gradient_stays() -> None:
    layer = nn.Linear(2, 2)
    optimizer = build_optimizer(layer, OptimizerConfig(bias_correction=False))
    layer.bias.grad = torch.ones(2)
    before = layer.weight.detach().clone()
    optimizer.step()
    assert torch.equal(before, layer.weight.detach())
    assert set(optimizer.state) == {layer.bias}


def lamb_formula(
    weight: np.ndarray, gradients: list[np.ndarray], rates: list[float], decay: float, config: OptimizerConfig
) -> np.ndarray:
    """Algorithm 2 of You et al. 2020 for one matrix or vector, in numpy; no ratio without decay."""
    beta1, beta2 = config.betas
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        by = (1 - beta1**step, 1 - beta2**step) if config.bias_correction else (1, 1)
        update = (first / by[0]) / (np.sqrt(second / by[1]) + config.eps) + decay * weight
        ratio = np.linalg.norm(weight) / np.linalg.norm(update) if decay and np.linalg.norm(weight) else 1.0
        weight = weight - rate * ratio * update
    return weight


@pytest.mark.parametrize("correction", [True, False])
def test_lamb_is_its_formula_and_query_key_and_value_have_ratios_of_their_own(correction: bool) -> None:
    torch.manual_seed(0)
    config = OptimizerConfig(kind="lamb", bias_correction=correction, weight_decay=0.1, betas=(0.8, 0.99))
    attention = SelfAttention(small()).double()
    attention.extra = nn.Linear(3, 2).double()
    nn.init.zeros_(attention.extra.weight)  # a norm of 0
    before = {name: p.detach().numpy().copy() for name, p in attention.named_parameters()}
    optimizer = build_optimizer(attention, config)
    rates = [1e-3 * (step + 1) for step in range(12)]
    gradients: dict[str, list[np.ndarray]] = {name: [] for name in before}
    for rate in rates:
        for name, parameter in attention.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            gradients[name].append(parameter.grad.numpy().copy())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    for name, parameter in attention.named_parameters():
        decay = 0.1 if name.endswith("weight") else 0.0
        parts = 3 if name == "qkv.weight" else 1
        pieces = [np.split(each, parts) for each in gradients[name]]
        expected = [
            lamb_formula(part, [piece[index] for piece in pieces], rates, decay, config)
            for index, part in enumerate(np.split(before[name], parts))
        ]
        np.testing.assert_allclose(parameter.detach().numpy(), np.concatenate(expected), rtol=0, atol=1e-12)


# --- schedule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (2, 1), (7, 0), (10, 3), (10, 9), (10, 10), (1000, 100)])
def test_the_rate_is_above_zero_at_most_the_peak_and_does_not_jump(kind: str, total: int, warmup: int) -> None:
    schedule = Schedule(kind=kind, warmup_steps=warmup)  # type: ignore[arg-type]
    rates = [learning_rate(update, total, schedule, 0.5) for update in range(total)]
    assert all(0 < rate <= 0.5 for rate in rates)
    assert max(rates) == 0.5
    if warmup:
        assert rates[warmup - 1] == 0.5
        np.testing.assert_allclose(np.diff([0.0, *rates[:warmup]]), 0.5 / warmup)
    after = rates[max(warmup - 1, 0) :]
    left = max(total - warmup, 1)
    # How much steeper than linear each may be: a cosine pi / 2, a square 2, a fall within a fifth of the updates 5.
    largest = {"linear": 1.0, "constant": 0.0, "cosine": 1.58, "polynomial": 2.0, "trapezoid": 5.0}
    largest["inverse_sqrt"] = left
    assert all(0 <= before - now <= 0.5 * largest[kind] / left + 1e-12 for before, now in pairwise(after))
    if kind == "linear" and total > warmup:
        assert rates[-1] == pytest.approx(0.5 / (total - warmup))


@pytest.mark.parametrize("kind", ["linear", "constant"])
def test_past_the_end_the_last_rate_stays(kind: str) -> None:
    schedule = Schedule(kind=kind, warmup_steps=2)  # type: ignore[arg-type]
    last = learning_rate(9, 10, schedule, 0.5)
    assert [learning_rate(update, 10, schedule, 0.5) for update in (10, 11, 10**9)] == [last] * 3


@pytest.mark.parametrize("kind", ["linear", "cosine", "polynomial", "inverse_sqrt"])
def test_after_the_warm_up_the_rate_is_that_of_transformers(kind: str) -> None:
    import transformers

    total, warmup, schedule = 50, 7, Schedule(kind=kind, warmup_steps=7, power=3.0)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = {
        "linear": lambda: transformers.get_linear_schedule_with_warmup(optimizer, warmup, total),
        "cosine": lambda: transformers.get_cosine_schedule_with_warmup(optimizer, warmup, total),
        "polynomial": lambda: transformers.get_polynomial_decay_schedule_with_warmup(
            optimizer, warmup, total, lr_end=0.0, power=3.0
        ),
        "inverse_sqrt": lambda: transformers.get_inverse_sqrt_schedule(optimizer, warmup),
    }[kind]()
    for update in range(total):
        if update >= warmup:
            assert learning_rate(update, total, schedule, 0.5) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        theirs.step()


def test_a_trapezoid_is_flat_until_its_last_share() -> None:
    schedule = Schedule(kind="trapezoid", warmup_steps=2, decay_ratio=0.4)
    rates = [learning_rate(update, 10, schedule, 1.0) for update in range(10)]
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_a_warm_up_given_as_a_share_follows_the_number_of_updates() -> None:
    for total in (40, 400):
        by_share = [learning_rate(u, total, Schedule(warmup_ratio=0.1), 0.5) for u in range(total)]
        by_number = [learning_rate(u, total, Schedule(warmup_steps=total // 10), 0.5) for u in range(total)]
        assert by_share == by_number
