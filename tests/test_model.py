"""The model is BERT: the numbers of the reference implementation on copied weights, and what padding may not change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_helpers import grid_labels, labels, packed, padded_rows, reference, small, their_tensors
from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.config.schema import Model
from bertpt.config.schema import Optimizer as OptimizerConfig
from bertpt.model.pretraining import BertForPreTraining, pretraining_losses
from bertpt.model.sequence import BertForSequenceClassification
from bertpt.model.token import BertForTokenClassification
from bertpt.train.updates.optim import build_optimizer

SHAPES = {
    "odd vocabulary": (997, small()),
    "narrow feed-forward": (200, small(intermediate_size=31, num_hidden_layers=3)),
    "one layer, one head": (64, small(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)),
    "wide, padded vocabulary": (130, small(hidden_size=64, num_attention_heads=8, pad_vocab_to_multiple_of=64)),
}
PADDED, FULL = [17, 5, 12, 3], [14, 14, 14]


def model_of(config: Model, vocab_size: int, *, seed: int = 0, nsp: bool = True) -> BertForPreTraining:
    """A model whose every parameter differs from its initial value: biases of 0 would hide faults."""
    torch.manual_seed(seed)
    model = BertForPreTraining(config, vocab_size, nsp=nsp)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def trimmed(tensors: dict[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
    """Without the padded rows of the token embedding."""
    name = "bert.embeddings.word_embeddings.weight"
    return tensors | {name: tensors[name][:vocab_size]}


def total_loss(model: BertForPreTraining, batch: Batch) -> Tensor:
    losses = pretraining_losses(model(batch), batch)
    assert losses.nsp is not None
    return losses.mlm.sum / losses.mlm.count + losses.nsp.sum / losses.nsp.count


# --- parity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
@pytest.mark.parametrize("lengths", [PADDED, FULL], ids=["padded", "full"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_losses_and_gradients_equal_the_reference(shape: str, lengths: list[int], act: str) -> None:
    vocab_size, config = SHAPES[shape][0], SHAPES[shape][1].model_copy(update={"hidden_act": act})
    model = model_of(config, vocab_size)
    theirs = reference(config, vocab_size, trimmed(dict(model.state_dict()), vocab_size))
    rows = padded_rows(vocab_size, lengths)
    targets = labels(rows, vocab_size)
    batch = packed(rows, targets)

    output = model(batch)
    losses = pretraining_losses(output, batch)
    expected = theirs(**rows, **grid_labels(rows, targets))
    mask = rows["attention_mask"].bool()
    close = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(
        output.mlm_logits, expected.prediction_logits[mask][targets["masked_positions"]], **close
    )
    torch.testing.assert_close(output.nsp_logits, expected.seq_relationship_logits, **close)
    assert losses.nsp is not None
    total = losses.mlm.sum / losses.mlm.count + losses.nsp.sum / losses.nsp.count
    torch.testing.assert_close(total, expected.loss, **close)
    for name, ours, logits, label in (
        ("mlm", losses.mlm, expected.prediction_logits[mask][targets["masked_positions"]], targets["masked_labels"]),
        ("nsp", losses.nsp, expected.seq_relationship_logits, targets["next_sentence_label"]),
    ):
        mean = nn.functional.cross_entropy(logits, label)
        assert float(ours.sum.detach()) / ours.count == pytest.approx(float(mean.detach()), abs=1e-5), name

    total.backward()
    expected.loss.backward()
    found = their_tensors(trimmed({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, vocab_size))
    wanted = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert gradient is not None, name
        difference = (found[name] - gradient).norm()
        # The key's bias shifts all scores of a query alike: its true gradient is 0, what is left is rounding.
        floor = 1e-6 if name.endswith("key.bias") else 0.0
        assert difference <= 1e-4 * gradient.norm() + floor, f"{name}: {difference} of {gradient.norm()}"


def test_fifty_updates_give_the_losses_of_the_reference() -> None:
    vocab_size, config = 101, small(hidden_size=16, num_attention_heads=2)
    model = model_of(config, vocab_size)
    theirs = reference(config, vocab_size, dict(model.state_dict()))
    settings = OptimizerConfig(lr=1e-3, weight_decay=0.01)
    optimizer = build_optimizer(model, settings)
    norms = {id(m.weight) for m in theirs.modules() if isinstance(m, nn.LayerNorm)}
    plain = [p for n, p in theirs.named_parameters() if n.endswith("bias") or id(p) in norms]
    decayed = [p for p in theirs.parameters() if all(p is not other for other in plain)]
    their_optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        lr=1e-3, betas=settings.betas, eps=settings.eps, foreach=False, fused=False,
    )  # fmt: skip
    found, wanted = [], []
    for step in range(50):
        rows = padded_rows(vocab_size, [9, 12, 4, 7], seed=step % 5)
        targets = labels(rows, vocab_size, seed=step % 5)
        loss = total_loss(model, packed(rows, targets))
        loss.backward()
        their_loss = theirs(**rows, **grid_labels(rows, targets)).loss
        their_loss.backward()
        for either in (optimizer, their_optimizer):
            either.step()
            either.zero_grad()
        found.append(float(loss.detach()))
        wanted.append(float(their_loss.detach()))
    assert found == pytest.approx(wanted, abs=1e-4)
    assert found[-1] < found[0] - 0.5  # they did learn


# --- padding --------------------------------------------------------------------------------------------------------


def test_the_content_of_padding_changes_nothing() -> None:
    model = model_of(small(), 90).eval()
    rows = padded_rows(90, PADDED, padded_length=20)
    targets = labels(rows, 90)
    before = model(packed(rows, targets))
    outside = ~rows["attention_mask"].bool()
    changed = rows | {
        "input_ids": torch.where(outside, 77, rows["input_ids"]),
        "token_type_ids": torch.where(outside, 1, rows["token_type_ids"]),
    }
    after = model(packed(changed, targets))
    assert torch.equal(before.mlm_logits, after.mlm_logits)
    assert torch.equal(before.nsp_logits, after.nsp_logits)


def test_more_padding_and_other_rows_do_not_change_a_row() -> None:
    model = model_of(small(), 90).eval()
    rows = padded_rows(90, PADDED)
    hidden = model.bert(packed(rows, {})).split(PADDED)
    for index, length in enumerate(PADDED):
        alone = {name: tensor[index : index + 1, :length] for name, tensor in rows.items()}
        torch.testing.assert_close(model.bert(packed(alone, {})), hidden[index], rtol=0, atol=1e-5)
    wider = padded_rows(90, PADDED, padded_length=31)
    wider["input_ids"][:, : max(PADDED)] = rows["input_ids"]
    torch.testing.assert_close(model.bert(packed(wider, {})), torch.cat(hidden), rtol=0, atol=1e-5)


@pytest.mark.parametrize("lengths", [[6, 0, 4], [0, 6, 4], [6, 4, 0], [6, 0, 0]], ids=str)
def test_an_empty_row_gives_no_nan_and_leaves_the_others(lengths: list[int]) -> None:
    model = model_of(small(), 90)
    rows = padded_rows(90, lengths)
    targets = labels(rows, 90)
    batch = packed(rows, targets)
    output = model(batch)
    loss = total_loss(model, batch)
    loss.backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
    assert bool(torch.isfinite(loss))
    full = [index for index, length in enumerate(lengths) if length]
    alone = packed({name: tensor[full] for name, tensor in rows.items()}, {
        "masked_positions": targets["masked_positions"], "masked_labels": targets["masked_labels"],
    })  # fmt: skip
    expected = model(alone)
    torch.testing.assert_close(output.mlm_logits, expected.mlm_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(output.nsp_logits[full], expected.nsp_logits, rtol=0, atol=1e-5)


def test_padding_costs_no_work_outside_attention() -> None:
    model = model_of(small(), 90)
    seen: list[int] = []
    model.bert.encoder.layer[0].intermediate.register_forward_hook(lambda m, inputs, out: seen.append(len(inputs[0])))
    model.cls.predictions.transform.register_forward_hook(lambda m, inputs, out: seen.append(len(inputs[0])))
    rows = padded_rows(90, PADDED)
    model(packed(rows, labels(rows, 90, each=2)))
    assert seen == [sum(PADDED), 2 * len(PADDED)]


# --- the heads ------------------------------------------------------------------------------------------------------


def test_padded_rows_of_the_vocabulary_are_never_predicted() -> None:
    model = model_of(small(pad_vocab_to_multiple_of=64), 70)
    embedding = model.bert.embeddings.word_embeddings.weight
    assert embedding.shape[0] == 128
    with torch.no_grad():
        embedding[70:] = 1e3  # would win by far
    rows = padded_rows(70, PADDED)
    batch = packed(rows, labels(rows, 70))
    output = model(batch)
    assert output.mlm_logits.shape == (batch.predictions, 70)
    total_loss(model, batch).backward()
    assert embedding.grad is not None
    assert bool((embedding.grad[70:] == 0).all())
    assert bool((embedding.grad[:70].abs().sum(1) > 0).all())


def test_a_label_or_word_elsewhere_does_not_enter_the_loss_of_a_masked_position() -> None:
    """Only masked positions carry a loss: the same positions and labels give the same sum, whatever else is asked."""
    model = model_of(small(), 90).eval()
    rows = padded_rows(90, [8, 8])
    one = {"masked_positions": torch.tensor([2]), "masked_labels": torch.tensor([50])}
    two = {"masked_positions": torch.tensor([2, 11]), "masked_labels": torch.tensor([50, 60])}
    both = pretraining_losses(model(packed(rows, two)), packed(rows, two)).mlm
    alone = pretraining_losses(model(packed(rows, one)), packed(rows, one)).mlm
    other = {"masked_positions": torch.tensor([11]), "masked_labels": torch.tensor([60])}
    rest = pretraining_losses(model(packed(rows, other)), packed(rows, other)).mlm
    torch.testing.assert_close(both.sum, alone.sum + rest.sum, rtol=0, atol=1e-5)
    assert (both.count, alone.count) == (2, 1)
    # With one masked position the other positions' outputs have no influence on the loss at all.
    hidden: list[Tensor] = []
    handle = model.bert.encoder.register_forward_hook(lambda m, i, out: hidden.append(out) or out.retain_grad())
    output = model(packed(rows, one))
    handle.remove()
    pretraining_losses(output, packed(rows, one)).mlm.sum.backward()
    gradient = hidden[0].grad
    assert gradient is not None
    assert gradient.abs().sum(1).nonzero().flatten().tolist() == [2]


def test_both_pair_labels_count_alike() -> None:
    model = model_of(small(), 90).eval()
    rows = padded_rows(90, [8, 8])
    targets = labels(rows, 90)
    for label in (0, 1):
        batch = packed(rows, targets | {"next_sentence_label": torch.tensor([label, label])})
        term = pretraining_losses(model(batch), batch).nsp
        assert term is not None
        assert term.count == 2
        assert float(term.sum.detach()) > 0.1


@pytest.mark.parametrize("nsp", [True, False])
def test_every_parameter_gets_a_gradient(nsp: bool) -> None:
    model = model_of(small(), 90, nsp=nsp)
    rows = padded_rows(90, PADDED)
    targets = labels(rows, 90)
    if not nsp:
        del targets["next_sentence_label"]
    batch = packed(rows, targets)
    losses = pretraining_losses(model(batch), batch)
    assert (losses.nsp is None) == (not nsp)
    (losses.mlm.sum + (losses.nsp.sum if losses.nsp else 0)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name
    assert any("pooler" in name or "seq_relationship" in name for name, _ in model.named_parameters()) == nsp


def test_the_decoder_is_the_token_embedding() -> None:
    model = BertForPreTraining(small(), 90)
    names = [name for name, tensor in model.state_dict().items() if 90 in tensor.shape]
    assert names == ["bert.embeddings.word_embeddings.weight", "cls.predictions.bias"]


# --- the beginning --------------------------------------------------------------------------------------------------


Head = Callable[[int], tuple[Any, nn.Linear]]


def token_head(outputs: int) -> tuple[Any, nn.Linear]:
    model = BertForTokenClassification(WIDE, 100, outputs)
    return model, model.classifier


def sequence_head(outputs: int) -> tuple[Any, nn.Linear]:
    model = BertForSequenceClassification(WIDE, 100, outputs)
    assert isinstance(model.classifier, nn.Linear)
    return model, model.classifier


WIDE = Model(hidden_size=256, num_hidden_layers=1, num_attention_heads=4)


def test_initial_weights_are_a_truncated_normal() -> None:
    torch.manual_seed(0)
    model = BertForPreTraining(small(hidden_size=96, num_attention_heads=4, max_position_embeddings=512), 3000)
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            assert bool((module.weight == 1).all()), name
            assert bool((module.bias == 0).all()), name
        elif isinstance(module, nn.Linear | nn.Embedding):
            weight = module.weight
            assert float(weight.detach().abs().max()) <= 0.04, name
            if weight.numel() > 5000:
                # A normal of 0.02 cut at two deviations has 0.8796 of its deviation left.
                assert float(weight.detach().std()) == pytest.approx(0.0176, rel=0.04), name
                assert abs(float(weight.detach().mean())) < 0.001, name
                assert float(weight.detach().abs().max()) > 0.039, name
            if isinstance(module, nn.Linear):
                assert bool((module.bias == 0).all()), name
    assert bool((model.cls.predictions.bias == 0).all())
    covered = {id(p) for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding | nn.LayerNorm)
               for p in m.parameters(recurse=False)}  # fmt: skip
    assert [n for n, p in model.named_parameters() if id(p) not in covered] == ["cls.predictions.bias"]


@pytest.mark.parametrize("head", [token_head, sequence_head], ids=["token", "sequence"])
def test_a_new_head_is_drawn_as_transformers_draws_it_and_the_encoder_as_google_does(head: Head) -> None:
    """From a cut distribution (deviation 0.0176) a head of NER learnt more slowly than that of transformers."""
    import transformers

    torch.manual_seed(0)
    model, classifier = head(64)
    config = transformers.BertConfig(hidden_size=256, num_labels=64, num_hidden_layers=1, num_attention_heads=4)
    other = transformers.BertForTokenClassification(config).classifier.weight
    own = classifier.weight
    assert own.std().item() == pytest.approx(other.std().item(), rel=0.02)  # a cut one: 12% less
    assert own.abs().max() > 0.05 < other.abs().max()
    assert not classifier.bias.any()
    assert max(p.abs().max() for n, p in model.bert.named_parameters() if "weight" in n and p.dim() > 1) <= 0.04


@pytest.mark.parametrize("vocab_size", [97, 4001])
def test_the_first_loss_is_that_of_a_guess(vocab_size: int) -> None:
    torch.manual_seed(0)
    model = BertForPreTraining(small(), vocab_size)
    rows = padded_rows(vocab_size, [30] * 20)
    batch = packed(rows, labels(rows, vocab_size, each=5))
    losses = pretraining_losses(model(batch), batch)
    assert float(losses.mlm.sum.detach()) / losses.mlm.count == pytest.approx(math.log(vocab_size), abs=0.1)
    assert losses.nsp is not None
    assert float(losses.nsp.sum.detach()) / losses.nsp.count == pytest.approx(math.log(2), abs=0.05)


def test_dropout_stands_where_the_original_has_it() -> None:
    """All places: after the embeddings' LayerNorm, on attention probabilities, after both sublayers' dense."""
    config = small(num_hidden_layers=1, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.25)
    model = BertForPreTraining(config, 90)
    seen: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda m, i, out, name=name: seen.update({name: (m.p, i[0], out)}))
    rows = padded_rows(90, [30] * 8)
    batch = packed(rows, {})
    hidden = model.bert(batch)
    assert set(seen) == {
        "bert.embeddings.dropout",
        "bert.encoder.layer.0.attention.output.dropout",
        "bert.encoder.layer.0.output.dropout",
    }
    for name, (p, before, after) in seen.items():
        assert p == 0.25, name
        assert float((after == 0).double().mean()) == pytest.approx(0.25, abs=0.05), name
        assert float((before == 0).double().mean()) < 0.01, name
    normed = model.bert.embeddings.LayerNorm
    before = seen["bert.embeddings.dropout"][1]
    torch.testing.assert_close(before.mean(1), torch.zeros(len(before)), atol=1e-5, rtol=0)
    assert normed.eps == 1e-12
    # Attention's own: with the other dropouts off, two passes still differ in training and agree in evaluation.
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    assert not torch.equal(model.bert(batch), model.bert(batch))
    assert not torch.equal(hidden, model.bert(batch))
    model.eval()
    assert torch.equal(model.bert(batch), model.bert(batch))


# --- the batch ------------------------------------------------------------------------------------------------------


def test_a_batch_says_where_its_tokens_stand() -> None:
    rows = padded_rows(50, [3, 1, 4], padded_length=5)
    batch = packed(rows, {})
    grid = torch.zeros(15, dtype=torch.long)
    grid[batch.grid_index] = batch.input_ids
    assert torch.equal(grid.view(3, 5), rows["input_ids"])
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert batch.first.tolist() == [0, 3, 4]
    assert torch.equal(batch.attention_mask, rows["attention_mask"].bool())
    assert (batch.rows, batch.tokens, batch.predictions, batch.is_full) == (3, 8, 0, False)
    assert packed(padded_rows(50, [4, 4]), {}).is_full
