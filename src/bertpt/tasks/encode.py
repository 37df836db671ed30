"""Texts to rows of ids: [CLS] A [SEP] (B [SEP]), cut to a length, packed without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertpt.batch import Batch
from bertpt.data.random import bits
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer


@dataclass(frozen=True, slots=True)
class Rows:
    """Encoded rows, one after the other.

    Attributes:
        ids: int32 [T]; types: uint8 [T], 1 in a second text.
        offsets: int64 [N + 1].
        marks: int64 [K], positions in their rows of tokens that a task predicts; row after row, rising.
        mark_offsets: int64 [N + 1].
    """

    ids: NDArray[np.int32]
    types: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    marks: NDArray[np.int64] | None = None
    mark_offsets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 [N]."""
        return np.diff(self.offsets)

    def marked(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of all marked tokens are those of these rows, in the order of their batch; int64 [K]."""
        assert self.mark_offsets is not None
        return _gather(self.mark_offsets, indices)[0]

    def batch(
        self, indices: NDArray[np.int64], labels: Tensor | None = None, mark_labels: Tensor | None = None
    ) -> Batch:
        """The batch of these rows, in this order.

        Args:
            indices: int64 [B].
            labels: [B, ...], the labels of these rows.
            mark_labels: [K], of all marked tokens.
        """
        at, lengths, first = _gather(self.offsets, indices)
        marked: dict[str, Any] = {}
        if self.marks is not None and self.mark_offsets is not None:
            of, counts, _ = _gather(self.mark_offsets, indices)
            marked["token_positions"] = torch.from_numpy(self.marks[of] + np.repeat(first, counts))
            marked["token_counts"] = torch.from_numpy(counts)
            marked["token_labels"] = None if mark_labels is None else mark_labels[torch.from_numpy(of)]
        return Batch.from_lengths(
            torch.from_numpy(self.ids[at].astype(np.int64)),
            torch.from_numpy(self.types[at].astype(np.int64)),
            torch.from_numpy(lengths),
            row_labels=labels,
            **marked,
        )


def _gather(
    offsets: NDArray[np.int64], indices: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Places of the items of these rows, how many each has, and where each begins among them."""
    lengths = offsets[indices + 1] - offsets[indices]
    first = np.cumsum(lengths) - lengths
    at = np.repeat(offsets[indices] - first, lengths) + np.arange(int(lengths.sum()))
    return at, lengths, first


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Pieces that two texts keep so that both fit: the longer one is cut until it is as long as the other.

    The same lengths as ``longest_first`` of the tokenizers library.
    """
    if first + second <= room:
        return first, second
    short = min(first, second)
    half = room // 2
    kept = (short, room - short) if short <= half else (half, room - half)
    return kept if first <= second else kept[::-1]


def encode_rows(
    tokenizer: WordPieceTokenizer, texts: Sequence[tuple[str, ...]], max_length: int
) -> tuple[Rows, NDArray[np.int64]]:
    """Encode rows of one or two texts each, cut to ``max_length`` tokens.

    Text never becomes a special token, whatever it reads.

    Returns:
        The rows, and the tokens that each would have uncut, int64 [N].
    """
    width = len(texts[0]) if texts else 1
    pieces = [tokenizer.encode_sentences([row[column] for row in texts]) for column in range(width)]
    ids: list[int] = []
    types: list[int] = []
    offsets, full = [0], []
    for row in zip(*pieces, strict=True):
        specials = 1 + width
        keep = (
            (min(len(row[0]), max_length - specials),)
            if width == 1
            else shares(len(row[0]), len(row[1]), max_length - specials)
        )
        ids.append(tokenizer.cls_id)
        types.append(0)
        for number, (part, count) in enumerate(zip(row, keep, strict=True)):
            ids += [*part[:count], tokenizer.sep_id]
            types += [number] * (count + 1)
        offsets.append(len(ids))
        full.append(sum(map(len, row)) + specials)
    rows = Rows(np.array(ids, np.int32), np.array(types, np.uint8), np.array(offsets, np.int64))
    return rows, np.array(full, np.int64)


def epoch_order(seed: int, epoch: int, rows: int) -> NDArray[np.int64]:
    """The order of the rows in an epoch, int64 [rows]: a pure function of its arguments."""
    return np.argsort(bits(seed, epoch, np.arange(rows)), kind="stable")
