"""Small models, batches, and the mapping to the reference implementation's parameters."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor

from bertpt.batch import Batch
from bertpt.config.schema import Model

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def small(**changes: Any) -> Model:
    """A model of a few thousand parameters without dropout."""
    values: dict[str, Any] = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 32,
    }
    return Model(**(values | NO_DROPOUT | changes))


def padded_rows(
    vocab_size: int, lengths: list[int], *, seed: int = 0, padded_length: int | None = None
) -> dict[str, Tensor]:
    """Rows of random ids as a tokenizer pads them: ``input_ids``, ``attention_mask``, ``token_type_ids`` [B, L]."""
    draw = torch.Generator().manual_seed(seed)
    size = (len(lengths), padded_length or max(lengths))
    mask = torch.arange(size[1]) < torch.tensor(lengths)[:, None]
    types = torch.arange(size[1]) >= torch.tensor(lengths)[:, None] // 2
    return {
        "input_ids": torch.randint(5, vocab_size, size, generator=draw) * mask,
        "attention_mask": mask.long(),
        "token_type_ids": types * mask.long(),
    }


def labels(rows: dict[str, Tensor], vocab_size: int, *, each: int = 3, seed: int = 1) -> dict[str, Tensor]:
    """Up to ``each`` predictions a row and a pair label: the fields of a batch, positions among the T tokens."""
    draw = torch.Generator().manual_seed(seed)
    lengths = rows["attention_mask"].sum(1).tolist()
    positions, begin = [], 0
    for length in lengths:
        chosen = torch.randperm(length, generator=draw)[: min(each, length)].sort().values
        positions.append(begin + chosen)
        begin += length
    joined = torch.cat(positions)
    return {
        "masked_positions": joined,
        "masked_labels": torch.randint(5, vocab_size, (len(joined),), generator=draw),
        "next_sentence_label": torch.randint(0, 2, (len(lengths),), generator=draw),
    }


def packed(rows: dict[str, Tensor], targets: dict[str, Tensor]) -> Batch:
    """The rows as our batch."""
    return Batch.from_padded(rows["input_ids"], rows["attention_mask"], rows["token_type_ids"], **targets)


def grid_labels(rows: dict[str, Tensor], targets: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same targets as [B, L] labels with -100 elsewhere, as the reference takes them."""
    mask = rows["attention_mask"].bool()
    flat = torch.full((int(mask.sum()),), -100)
    flat[targets["masked_positions"]] = targets["masked_labels"]
    grid = torch.full(mask.shape, -100)
    grid[mask] = flat
    return {"labels": grid, "next_sentence_label": targets["next_sentence_label"]}


def their_name(name: str) -> list[str]:
    """The reference's parameters that one of ours holds, one above the other."""
    if ".self.qkv." in name:
        return [name.replace("qkv", part) for part in ("query", "key", "value")]
    return [name]


def their_tensors(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors by the reference's names."""
    found: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        names = their_name(name)
        found |= dict(zip(names, tensor.chunk(len(names)), strict=True))
    return found


def reference(config: Model, vocab_size: int, weights: dict[str, Tensor]) -> Any:
    """``transformers.BertForPreTraining`` with our weights and no dropout."""
    from transformers import BertConfig, BertForPreTraining

    theirs = BertForPreTraining(
        BertConfig(
            vocab_size=vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.ffn_size,
            hidden_act=config.hidden_act,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=config.max_position_embeddings,
            type_vocab_size=config.type_vocab_size,
            layer_norm_eps=config.layer_norm_eps,
        )
    )
    result = theirs.load_state_dict(their_tensors(weights), strict=False)
    assert result.unexpected_keys == []
    # Tied to what was loaded.
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "bert.embeddings.position_ids"}
    assert set(result.missing_keys) <= tied
    return theirs.train()
