"""One update: accumulation, clipping, precision, and whether the objectives are learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from model_helpers import small
from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.config.schema import Model
from bertpt.config.schema import Optimizer as OptimizerConfig
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train.pretrain import pretraining_counts, pretraining_objective
from bertpt.train.updates.optim import build_optimizer
from bertpt.train.updates.step import Totals, autocast, train_step

VOCAB = 60
BOTH = {"mlm": 1.0, "nsp": 1.0}


def rows(lengths: Sequence[int], *, seed: int = 0) -> list[tuple[Tensor, Tensor, Tensor, int]]:
    """Random rows with 1, 2, 3, ... predictions: ids, positions, labels, pair label of each."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for number, length in enumerate(lengths):
        ids = torch.randint(5, VOCAB, (length,), generator=draw)
        positions = torch.randperm(length, generator=draw)[: 1 + number % (length // 2)].sort().values
        made.append((ids, positions, torch.randint(5, VOCAB, (len(positions),), generator=draw), number % 2))
    return made


def batch_of(items: Sequence[tuple[Tensor, Tensor, Tensor, int]]) -> Batch:
    lengths = torch.tensor([len(ids) for ids, *_ in items])
    begins = (lengths.cumsum(0) - lengths).tolist()
    return Batch.from_lengths(
        torch.cat([ids for ids, *_ in items]),
        torch.cat([(torch.arange(len(ids)) >= len(ids) // 2).long() for ids, *_ in items]),
        lengths,
        masked_positions=torch.cat([item[1] + begin for item, begin in zip(items, begins, strict=True)]),
        masked_labels=torch.cat([item[2] for item in items]),
        next_sentence_label=torch.tensor([item[3] for item in items]),
    )


def fresh(config: Model | None = None, *, seed: int = 0) -> BertForPreTraining:
    torch.manual_seed(seed)
    return BertForPreTraining(config or small(), VOCAB)


def step(
    model: BertForPreTraining,
    batches: Sequence[Batch],
    *,
    weights: Mapping[str, float] = BOTH,
    lr: float = 1.0,
    clip: float = 1e9,
    precision: str = "fp32",
) -> Totals:
    """One update by plain gradient descent: with ``lr`` 1 the weights move by the gradient."""
    totals = Totals.empty()
    train_step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        batches,
        pretraining_objective,  # type: ignore[arg-type]
        pretraining_counts,
        totals,
        weights=weights,
        lr=lr,
        clip=clip,
        precision=precision,
    )
    return totals


def moved(model: BertForPreTraining, start: BertForPreTraining) -> dict[str, Tensor]:
    return {
        name: before.detach() - after.detach()
        for (name, before), after in zip(start.named_parameters(), model.parameters(), strict=True)
    }


# --- accumulation ---------------------------------------------------------------------------------------------------

EIGHT = [12, 7, 20, 5, 9, 16, 4, 11]


def test_an_update_does_not_depend_on_how_it_is_cut_into_micro_batches() -> None:
    items = rows(EIGHT)
    counts = {len(item[1]) for item in items}
    assert len(counts) >= 4  # unequal, or a mean of means would pass
    found, logged = [], []
    for size in (8, 4, 2, 1):
        model = fresh()
        totals = step(model, [batch_of(items[i : i + size]) for i in range(0, 8, size)])
        found.append(moved(model, fresh()))
        logged.append(totals.means())
        assert (totals.rows, totals.tokens) == (8, sum(EIGHT))
    for other in found[1:]:
        for name, gradient in found[0].items():
            torch.testing.assert_close(other[name], gradient, rtol=0, atol=1e-6, msg=name)
    for values in logged[1:]:
        assert values == pytest.approx(logged[0], abs=1e-6)


def test_an_uneven_cut_is_weighted_rightly_as_well() -> None:
    items = rows(EIGHT)
    whole, cut = fresh(), fresh()
    step(whole, [batch_of(items)])
    step(cut, [batch_of(items[:5]), batch_of(items[5:6]), batch_of(items[6:])])
    for name, gradient in moved(whole, fresh()).items():
        torch.testing.assert_close(moved(cut, fresh())[name], gradient, rtol=0, atol=1e-6, msg=name)


def test_the_logged_means_equal_a_computation_by_hand_over_several_updates() -> None:
    model = fresh().eval()
    totals = Totals.empty()
    batches = [batch_of(rows(EIGHT[:3])), batch_of(rows(EIGHT[3:], seed=1))]
    nll, right, pair_nll, pair_right = [], [], [], []
    for batch in batches:
        with torch.no_grad():
            output = model(batch)
        nll += nn.functional.cross_entropy(output.mlm_logits, batch.masked_labels, reduction="none").tolist()
        right += (output.mlm_logits.argmax(-1) == batch.masked_labels).tolist()
        pair_nll += nn.functional.cross_entropy(output.nsp_logits, batch.next_sentence_label, reduction="none").tolist()
        pair_right += (output.nsp_logits.argmax(-1) == batch.next_sentence_label).tolist()
        train_step(
            model, torch.optim.SGD(model.parameters(), lr=0.0), [batch], pretraining_objective, pretraining_counts,
            totals, weights=BOTH, lr=0.0, clip=1.0, precision="fp32",
        )  # fmt: skip
    assert totals.means() == pytest.approx(
        {
            "mlm_loss": sum(nll) / len(nll),
            "mlm_accuracy": sum(right) / len(right),
            "nsp_loss": sum(pair_nll) / len(pair_nll),
            "nsp_accuracy": sum(pair_right) / len(pair_right),
        },
        abs=1e-6,
    )
    assert totals.grid == sum(batch.attention_mask.numel() for batch in batches)


# --- clipping and weights -------------------------------------------------------------------------------------------


def norm(gradients: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(g.double().pow(2).sum()) for g in gradients.values()))


def test_the_gradient_is_clipped_by_its_global_norm_over_all_micro_batches() -> None:
    items = rows(EIGHT)
    free, clipped = fresh(), fresh()
    wide = step(free, [batch_of(items)])
    true_norm = norm(moved(free, fresh()))
    assert wide.gradient_norm is not None
    assert float(wide.gradient_norm) == pytest.approx(true_norm, rel=1e-4)
    narrow = step(clipped, [batch_of(items[:4]), batch_of(items[4:])], clip=true_norm / 3)
    assert narrow.gradient_norm is not None
    assert float(narrow.gradient_norm) == pytest.approx(true_norm, rel=1e-4)  # what is logged is the norm before
    for name, gradient in moved(free, fresh()).items():
        torch.testing.assert_close(moved(clipped, fresh())[name], gradient / 3, rtol=1e-3, atol=1e-6, msg=name)


def test_the_gradient_is_the_weighted_sum_of_those_of_the_objectives() -> None:
    batch = batch_of(rows(EIGHT))
    parts = {}
    for name, weights in {
        "mlm": {"mlm": 1.0, "nsp": 0.0},
        "nsp": {"mlm": 0.0, "nsp": 1.0},
        "both": {"mlm": 1.0, "nsp": 0.25},
    }.items():
        model = fresh()
        step(model, [batch], weights=weights)
        parts[name] = moved(model, fresh())
    assert float(parts["mlm"]["cls.seq_relationship.weight"].abs().sum()) == 0
    assert float(parts["nsp"]["cls.predictions.bias"].abs().sum()) == 0
    for name, gradient in parts["both"].items():
        expected = parts["mlm"][name] + 0.25 * parts["nsp"][name]
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6, msg=name)


def test_gradients_do_not_leak_into_the_next_update() -> None:
    model = fresh()
    step(model, [batch_of(rows(EIGHT))])
    assert all(parameter.grad is None for parameter in model.parameters())


# --- precision ------------------------------------------------------------------------------------------------------


def test_bf16_is_near_fp32_and_keeps_weights_and_losses_in_fp32() -> None:
    batch = batch_of(rows(EIGHT))
    plain, mixed = fresh(), fresh()
    expected, found = step(plain, [batch]), step(mixed, [batch], precision="bf16")
    assert found.means()["mlm_loss"] == pytest.approx(expected.means()["mlm_loss"], rel=0.01)
    assert found.means()["mlm_loss"] != expected.means()["mlm_loss"]  # it was not fp32
    assert found.means()["nsp_loss"] == pytest.approx(expected.means()["nsp_loss"], rel=0.02)
    assert {parameter.dtype for parameter in mixed.parameters()} == {torch.float32}
    wanted, gradients = moved(plain, fresh()), moved(mixed, fresh())
    difference = norm({name: gradients[name] - gradient for name, gradient in wanted.items()})
    assert difference < 0.03 * norm(wanted)
    normed: set[torch.dtype] = set()
    for module in mixed.bert.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_hook(lambda m, i, out: normed.add(out.dtype))
    with autocast(torch.device("cpu"), "bf16"):
        terms = pretraining_objective(mixed, batch)
    assert normed == {torch.float32}
    assert {term.sum.dtype for term in terms.losses.values()} == {torch.float32}


# --- learning -------------------------------------------------------------------------------------------------------


def pairs(count: int) -> Batch:
    """Pairs with fixed masks: random text, so that only remembering them helps."""
    return batch_of(rows([16 + number % 5 for number in range(count)], seed=3))


def train(weights: Mapping[str, float], updates: int) -> dict[str, float]:
    """The last update's means of a model that sees 20 pairs again and again."""
    model = fresh(small(hidden_size=64, num_attention_heads=4, num_hidden_layers=2))
    optimizer = build_optimizer(model, OptimizerConfig(lr=2e-3, weight_decay=0.0))
    batch = pairs(20)
    for _ in range(updates):
        totals = Totals.empty()
        train_step(
            model, optimizer, [batch], pretraining_objective, pretraining_counts, totals,
            weights=weights, lr=2e-3, clip=1.0, precision="fp32",
        )  # fmt: skip
    return totals.means()


def test_both_heads_remember_twenty_pairs() -> None:
    values = train(BOTH, 80)
    assert values["mlm_accuracy"] >= 0.95
    assert values["nsp_accuracy"] >= 0.95


@pytest.mark.parametrize("name", ["mlm", "nsp"])
def test_each_objective_alone_drives_its_own_loss_below_chance_and_leaves_the_other(name: str) -> None:
    values = train(BOTH | {"mlm": 0.0, "nsp": 0.0} | {name: 1.0}, 40)
    chance = {"mlm": math.log(VOCAB), "nsp": math.log(2)}
    other = "nsp" if name == "mlm" else "mlm"
    assert values[f"{name}_loss"] < 0.7 * chance[name]
    assert values[f"{other}_loss"] > 0.85 * chance[other]
