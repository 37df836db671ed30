"""The contract between data and model: the fields of a batch, their shapes and dtypes, and loss terms.

Letters used in shapes: B rows, L padded length, T tokens of all rows without padding, M predicted
positions, K tokens that a task predicts, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor


class LossTerm(NamedTuple):
    """A loss as sum and count, so that micro-batches and ranks add up and are divided once.

    ``sum`` is a float scalar tensor (it carries the graph), ``count`` the number of predictions in it.
    """

    sum: Tensor
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows without their padding, one after the other, and where each token stands in the padded grid.

    Everything but attention works on the T tokens; attention alone needs the [B, L] grid, which
    ``grid_index`` leads to and back. All indices are made on the host, so that no device sync is needed.
    """

    input_ids: Tensor  # int64 [T]
    token_type_ids: Tensor  # int64 [T]
    position_ids: Tensor  # int64 [T], from 0 in each row
    grid_index: Tensor  # int64 [T], row * L + position
    first: Tensor  # int64 [B], index of each row's [CLS] among the T tokens
    attention_mask: Tensor  # bool [B, L], True at tokens
    masked_positions: Tensor | None = None  # int64 [M], among the T tokens
    masked_labels: Tensor | None = None  # int64 [M], original ids
    next_sentence_label: Tensor | None = None  # int64 [B], 0 = B follows A, 1 = B is random
    row_labels: Tensor | None = None  # [B, ...], of a task: int64 classes or float32 scores
    token_positions: Tensor | None = None  # int64 [K], among the T tokens: those that a task predicts
    token_counts: Tensor | None = None  # int64 [B], how many of the K each row has
    token_labels: Tensor | None = None  # [K], of a task: int64 classes or float32 scores

    @property
    def rows(self) -> int:
        """B."""
        return self.first.shape[0]

    @property
    def tokens(self) -> int:
        """T, the number of tokens that are not padding."""
        return self.input_ids.shape[0]

    @property
    def predictions(self) -> int:
        """M, the number of masked positions to predict."""
        return 0 if self.masked_labels is None else self.masked_labels.shape[0]

    @property
    def is_full(self) -> bool:
        """Whether no row has padding: then packed and padded order are the same."""
        return self.tokens == self.attention_mask.numel()

    def to(self, device: torch.device) -> Batch:
        """The batch on ``device``; asynchronous from pinned memory."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """In page-locked memory (called by the loader)."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Any) -> Batch:
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: value if value is None else function(value) for name, value in values.items()}
        return Batch(**changed)

    @classmethod
    def from_lengths(
        cls,
        input_ids: Tensor,
        token_type_ids: Tensor,
        lengths: Tensor,
        *,
        padded_length: int | None = None,
        **labels: Any,
    ) -> Batch:
        """Build the index fields for packed rows. Rows may be empty; then their ``first`` is another row's token.

        Args:
            input_ids: int64 [T]; token_type_ids: int64 [T].
            lengths: int64 [B], tokens of each row, on the CPU; they add up to T.
            padded_length: L; the longest row by default.
            labels: the optional fields.
        """
        padded_length = padded_length or int(lengths.max())
        start = torch.cumsum(lengths, 0) - lengths
        place = torch.arange(input_ids.shape[0])
        before = torch.arange(lengths.shape[0]) * padded_length - start  # padding in the rows above
        repeated = partial(torch.repeat_interleave, repeats=lengths, output_size=input_ids.shape[0])
        return cls(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=place - repeated(start),
            grid_index=place + repeated(before),
            first=start.clamp(max=max(input_ids.shape[0] - 1, 0)),  # a last row without tokens has none of its own
            attention_mask=torch.arange(padded_length) < lengths[:, None],
            **labels,
        )

    @classmethod
    def from_padded(cls, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, **labels: Any) -> Batch:
        """From padded [B, L] tensors whose tokens stand at the front of each row (as tokenizers pad).

        ``masked_positions`` among the labels index the T tokens. Rows may be empty.
        """
        mask = attention_mask.bool()
        return cls.from_lengths(
            input_ids[mask], token_type_ids[mask], mask.sum(1), padded_length=input_ids.shape[1], **labels
        )
