"""Batches: where each token stands, with and without padding, and loss terms."""

from __future__ import annotations

import random

import pytest
import torch

from bertpt.batch import Batch, LossTerm
from bertpt.config.schema import Model
from bertpt.model.pretraining import BertForPreTraining

FIELDS = ("input_ids", "token_type_ids", "position_ids", "grid_index", "first", "attention_mask")


def batch_of(lengths: list[int], padded_length: int | None = None) -> Batch:
    total = sum(lengths)
    return Batch.from_lengths(
        torch.arange(total) + 100, torch.arange(total) % 2, torch.tensor(lengths), padded_length=padded_length
    )


def padded(lengths: list[int], width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, mask and types in the [B, L] grid, filled cell by cell."""
    ids, mask, types = (torch.zeros(len(lengths), width, dtype=torch.long) for _ in range(3))
    nth = 0
    for row, length in enumerate(lengths):
        for column in range(length):
            ids[row, column], mask[row, column], types[row, column] = nth + 100, 1, nth % 2
            nth += 1
    return ids, mask, types


@pytest.mark.parametrize("lengths", [[3], [5, 2, 4], [1, 1], [4, 4], [0, 3], [2, 0, 0, 5], [3, 0]])
def test_packed_and_padded_rows_make_the_same_batch(lengths: list[int]) -> None:
    width = max(lengths) + 2
    ids, mask, types = padded(lengths, width)
    one, other = batch_of(lengths, width), Batch.from_padded(ids, mask, types)
    for name in FIELDS:
        assert torch.equal(getattr(one, name), getattr(other, name)), name
        assert getattr(one, name).dtype == (torch.bool if name == "attention_mask" else torch.int64)


def test_the_grid_index_leads_to_the_padded_grid_and_back() -> None:
    draw = random.Random(0)
    lengths = [draw.randint(1, 9) for _ in range(20)]
    ids, mask, _ = padded(lengths, 9)
    batch = batch_of(lengths, 9)
    grid = torch.zeros(20 * 9, dtype=torch.long).index_copy(0, batch.grid_index, batch.input_ids)
    assert torch.equal(grid.view(20, 9), ids)
    assert torch.equal(ids.view(-1)[batch.grid_index], batch.input_ids)
    assert torch.equal(batch.attention_mask, mask.bool())
    assert batch.position_ids.tolist() == [column for length in lengths for column in range(length)]
    assert batch.input_ids[batch.first].tolist() == ids[:, 0].tolist()


def test_the_longest_row_is_the_width_unless_another_is_asked_for() -> None:
    assert batch_of([2, 5, 3]).attention_mask.shape == (3, 5)
    assert batch_of([2, 5, 3], 8).attention_mask.shape == (3, 8)
    assert batch_of([4, 4]).is_full
    assert not batch_of([4, 4], 5).is_full
    assert not batch_of([4, 3]).is_full


def test_counts_and_optional_fields() -> None:
    batch = batch_of([2, 3])
    assert (batch.rows, batch.tokens, batch.predictions) == (2, 5, 0)
    labels = {"masked_positions": torch.tensor([1, 4]), "masked_labels": torch.tensor([7, 8])}
    batch = Batch.from_lengths(torch.arange(5), torch.zeros(5).long(), torch.tensor([2, 3]), **labels)
    assert batch.predictions == 2
    moved = batch.to(torch.device("meta"))
    assert moved.input_ids.device.type == "meta"
    assert moved.masked_labels is not None
    assert moved.next_sentence_label is None


def test_loss_terms_name_their_parts() -> None:
    term = LossTerm(torch.tensor(3.0), 4)
    assert (float(term.sum), term.count) == (3.0, 4)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_empty_row_neither_fails_nor_changes_the_others(place: int) -> None:
    torch.manual_seed(0)
    config = Model(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=8)
    model = BertForPreTraining(config, 120).eval()
    lengths = [4, 3]
    lengths.insert(place, 0)
    without, having = batch_of([4, 3], 5), batch_of(lengths, 5)
    with torch.no_grad():
        assert torch.allclose(model.bert(without), model.bert(having), atol=1e-6)
    model.bert(having).square().sum().backward()
    used = [p.grad for p in model.bert.encoder.parameters()]
    assert all(grad is not None and grad.isfinite().all() for grad in used)
