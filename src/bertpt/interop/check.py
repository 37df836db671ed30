"""What a model says of a few rows, so that two forms of it can be compared."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bertpt.batch import Batch
from bertpt.errors import BertptError
from bertpt.interop.pretrained import Pretrained, build
from bertpt.train.evaluate import evaluating

TOLERANCE = 1e-4
_LENGTHS = (64, 11, 37, 3)


def sample_rows(pretrained: Pretrained, *, seed: int = 0) -> dict[str, Tensor]:
    """Four rows of random tokens, three of them padded, as transformers takes them; each int64 [B, L]."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([min(length, pretrained.model.max_position_embeddings) for length in _LENGTHS])
    grid = torch.arange(int(lengths.max()))
    mask = grid < lengths[:, None]
    second = (grid >= lengths[:, None] // 2) & mask
    return {
        "input_ids": torch.randint(0, pretrained.vocab_size, mask.shape, generator=draw) * mask,
        "attention_mask": mask.long(),
        "token_type_ids": second.long() * min(1, pretrained.model.type_vocab_size - 1),
    }


def outputs(pretrained: Pretrained, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the model makes of the T real tokens.

    Returns:
        ``hidden`` [T, H] and, as far as the weights have them, ``pooled`` [B, H], ``mlm_logits`` [T, V] and
        ``nsp_logits`` [B, 2].
    """
    model, _ = build(pretrained, nsp=pretrained.pooler or "nsp" in pretrained.heads)
    batch = Batch.from_padded(rows["input_ids"], rows["attention_mask"], rows["token_type_ids"])
    with evaluating(model):
        found = {"hidden": model.bert(batch)}
        if pretrained.pooler and model.bert.pooler is not None:
            found["pooled"] = model.bert.pooler(found["hidden"], batch)
        if "mlm" in pretrained.heads:
            embedding = model.bert.embeddings.word_embeddings.weight
            found["mlm_logits"] = model.cls.predictions(found["hidden"], embedding)
        if "pooled" in found and "nsp" in pretrained.heads and model.cls.seq_relationship is not None:
            found["nsp_logits"] = model.cls.seq_relationship(found["pooled"])
    return found


def largest_difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], what: str) -> float:
    """The largest difference of what both give.

    Raises:
        BertptError: it is above the tolerance; the line says where.
    """
    largest = {name: float((ours[name] - theirs[name]).abs().max()) for name in ours.keys() & theirs.keys()}
    for name, difference in sorted(largest.items()):
        if not difference <= TOLERANCE:
            raise BertptError(f"{what}: {name} differ by {difference:.2g}, more than {TOLERANCE}; nothing was written")
    return max(largest.values())
