"""BERT that marks where an answer begins and ends."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.config.schema import Model as ModelConfig
from bertpt.model.bert import Bert, initialize_with_head


class BertForQuestionAnswering(nn.Module):
    """A linear layer on every token, without a pooler (as in transformers)."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config, vocab_size, pooler=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        initialize_with_head(self, self.bert, config.initializer_range)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [T, 2]: an answer begins here, ends here."""
        return self.qa_outputs(self.bert(batch))  # type: ignore[no-any-return]


def row_grid(logits: Tensor, batch: Batch) -> Tensor:
    """Logits [T, 2] as [B, 2, L], minus infinity at padding, so that a softmax over L is over a row's tokens."""
    rows, length = batch.attention_mask.shape
    grid = logits.new_full((rows * length, 2), float("-inf")).index_copy(0, batch.grid_index, logits)
    return grid.view(rows, length, 2).transpose(1, 2)


def span_loss(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Half the sum of both cross entropies, summed over rows, and how many rows are right in both.

    Args:
        logits: [T, 2].
        batch: its ``row_labels`` are int64 [B, 2], positions in the row.

    Returns:
        A float scalar, in nats, and an int64 scalar.
    """
    assert batch.row_labels is not None
    grid = row_grid(logits.float(), batch)
    loss = F.cross_entropy(grid.flatten(0, 1), batch.row_labels.flatten(), reduction="sum") / 2
    return loss, (grid.argmax(-1) == batch.row_labels).all(-1).sum()
