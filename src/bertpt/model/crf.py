"""A linear-chain conditional random field over the tags of a sentence (Lafferty, McCallum and Pereira 2001).

A sequence y of tags scores start[y_1] + sum_t emissions[t, y_t] + sum_t transitions[y_t-1, y_t] + end[y_n]; its
probability is the exponential of that over the sum for all sequences. Rows come packed, one after the other.

pytorch-crf 0.7.2, the library for it, was not taken: its last release is of 2019, it has no types, wants a padded
grid whose first column is filled, and knows neither forbidden transitions nor a part of a chain.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearChainCrf(nn.Module):
    """Scores of neighbouring tags. All are 0 at first, so that training sets out from a softmax of each word."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(tags))
        self.transitions = nn.Parameter(torch.zeros(tags, tags))  # [before, after]
        self.end = nn.Parameter(torch.zeros(tags))

    def forward(self, emissions: Tensor, labels: Tensor, counts: Tensor, ends: Tensor) -> Tensor:
        """Log-likelihood of each row, fp32 [B]; computed in fp32 whatever the precision of the emissions.

        Args:
            emissions: [K, C]; labels: int64 [K].
            counts: int64 [B], words of each row, at least 1; they add up to K.
            ends: bool [B, 2], whether a sentence begins and ends with the row. A row that is the inner part of a
                sentence has neither ``start`` nor ``end``.
        """
        emissions, (first, last) = emissions.float(), ends.float().unbind(1)
        row, _, grid, inside = packing(emissions, counts)
        scored = emissions.gather(1, labels[:, None])[:, 0]
        stepped = self.transitions[labels[:-1], labels[1:]] * (row[1:] == row[:-1])
        begin = counts.cumsum(0) - counts
        score = first * self.start[labels[begin]] + last * self.end[labels[begin + counts - 1]]
        score = score.index_add(0, row, scored).index_add(0, row[1:], stepped)

        every = first[:, None] * self.start + grid[0]
        for step in range(1, len(grid)):
            longer = torch.logsumexp(every[:, :, None] + self.transitions, 1) + grid[step]
            every = torch.where(inside[step, :, None], longer, every)
        return score - torch.logsumexp(every + last[:, None] * self.end, 1)


def packing(emissions: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row and position of each word [K], emissions by position and row [L, B, C], and where those are real [L, B]."""
    device = emissions.device
    begin = counts.cumsum(0) - counts
    row = torch.repeat_interleave(torch.arange(len(counts), device=device), counts, output_size=len(emissions))
    position = torch.arange(len(emissions), device=device) - begin[row]
    steps = torch.arange(int(counts.max()), device=device)
    grid = emissions.new_zeros(len(steps), len(counts), emissions.shape[1]).index_put((position, row), emissions)
    return row, position, grid, steps[:, None] < counts


def best_path(emissions: Tensor, counts: Tensor, start: Tensor, transitions: Tensor, end: Tensor) -> Tensor:
    """The tags of the highest score of each row (Viterbi), int64 [K]; scores of -inf forbid.

    Args:
        emissions: [K, C].
        counts: int64 [B], words of each row, at least 1; they add up to K.
        start: [C]; transitions: [C, C], [before, after]; end: [C].
    """
    row, position, grid, inside = packing(emissions.float(), counts)
    best, came_from = start + grid[0], []
    for step in range(1, len(grid)):
        longer, before = (best[:, :, None] + transitions).max(1)
        best = torch.where(inside[step, :, None], longer + grid[step], best)
        came_from.append(before)
    tag = (best + end).argmax(1)
    path = [tag]
    for step in range(len(grid) - 1, 0, -1):
        # Behind its end a row keeps the tag that its last word has.
        tag = torch.where(inside[step], came_from[step - 1].gather(1, tag[:, None])[:, 0], tag)
        path.append(tag)
    return torch.stack(path[::-1])[position, row]
