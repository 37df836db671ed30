"""Speed of a fine-tuning update beside transformers: the same generated rows, in turn (A B A B ...) in one process.

Lengths are drawn from a log-normal distribution with the mean and spread that was measured on the named data. Both
sides begin with tokenized rows and draw whole epochs: batches are built and computed, nothing is scored or saved.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _transformers_heads import Row, build_optimizer, update

from bertpt.config.finetune.common import TaskTrain
from bertpt.config.schema import Model, Optimizer
from bertpt.model.sequence import BertForSequenceClassification
from bertpt.tasks.classification.classification import RowObjective
from bertpt.tasks.encode import Rows
from bertpt.tasks.task import Encoded
from bertpt.tasks.work import FineTuning, Parts
from bertpt.train.updates import optim
from bertpt.train.updates.step import Totals, train_step

VOCAB, LR, CLIP = 30_522, 1e-4, 1.0
SHAPE = Model(hidden_size=384, num_hidden_layers=6, num_attention_heads=12)  # of MiniLM-L6


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a row: mean and standard deviation, specials included, the largest; rows of a batch; its batches."""

    mean: float
    sd: float
    largest: int
    batch: int
    batches: int


KINDS = {
    "SST-2, phrases": Lengths(13.4, 9.6, 66, 32, 4),
    "CoNLL-2003, sentences": Lengths(20.0, 13.0, 128, 32, 3),
    "QED, windows": Lengths(174.0, 80.0, 384, 8, 2),
}


def make_lengths(kind: Lengths, count: int) -> np.ndarray:
    """int64 [count]."""
    spread = np.log(1 + (kind.sd / kind.mean) ** 2)
    drawn = np.random.default_rng(0).lognormal(np.log(kind.mean) - spread / 2, np.sqrt(spread), count)
    return np.clip(drawn.round().astype(np.int64), 3, kind.largest)


def ours(ids: np.ndarray, offsets: np.ndarray, labels: torch.Tensor, size: int) -> Callable[[int], None]:
    """So many updates of bertpt."""
    model = BertForSequenceClassification(SHAPE, VOCAB, 2).train()
    optimizer = optim.build_optimizer(model, Optimizer(lr=LR))
    encoded = Encoded(Rows(ids, np.zeros(len(ids), np.uint8), offsets), np.diff(offsets), 0, labels=labels)
    parts = Parts(
        model=model,
        rows=len(labels),
        batch=encoded.batch,
        objective=RowObjective(regression=False),
        count_terms=lambda batch: {"label": batch.rows},
        loss_weights={"label": 1.0},
        scores=lambda _: {},
        metric="accuracy",
        facts={},
    )
    work = FineTuning(Path(), parts, TaskTrain(epochs=10_000, batch_size=size), torch.device("cpu"))
    batches, totals = work.updates(0), Totals.empty()

    def updates(count: int) -> None:
        for _ in range(count):
            train_step(
                model,
                optimizer,
                next(batches),
                work.objective,
                work.count_terms,
                totals,
                weights=work.loss_weights,
                lr=LR,
                clip=CLIP,
                precision="fp32",
            )

    return updates


def theirs(ids: np.ndarray, offsets: np.ndarray, labels: torch.Tensor, size: int) -> Callable[[int], None]:
    """So many updates of transformers, padded to the longest row of the batch."""
    import transformers

    shape = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=SHAPE.hidden_size,
        num_hidden_layers=SHAPE.num_hidden_layers,
        num_attention_heads=SHAPE.num_attention_heads,
        intermediate_size=SHAPE.ffn_size,
        attn_implementation="sdpa",
    )
    model = transformers.BertForSequenceClassification(shape).train()
    optimizer = build_optimizer(model, LR, 0.01)
    rows = [
        Row(ids[begin:end].tolist(), [0] * int(end - begin), {"labels": int(label)})
        for begin, end, label in zip(offsets[:-1], offsets[1:], labels, strict=True)
    ]

    def batches() -> Iterator[list[Row]]:
        draw = torch.Generator().manual_seed(0)
        while True:
            order = torch.randperm(len(rows), generator=draw).tolist()
            for begin in range(0, len(order) - size + 1, size):
                yield [rows[index] for index in order[begin : begin + size]]

    drawn = batches()

    def updates(count: int) -> None:
        for _ in range(count):
            update(model, optimizer, next(drawn), LR, CLIP)

    return updates


def measure(kind: Lengths, turns: int) -> dict[str, Any]:
    """Medians over the turns; a turn of each side is one epoch of the same rows."""
    lengths = make_lengths(kind, kind.batches * kind.batch)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.random.default_rng(1).integers(1000, VOCAB, int(offsets[-1])).astype(np.int32)
    labels = torch.arange(len(lengths)) % 2
    sides = {"ours": ours(ids, offsets, labels, kind.batch), "theirs": theirs(ids, offsets, labels, kind.batch)}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(turns + 1):  # the first one warms up
        for side, updates in sides.items():
            begun = time.perf_counter()
            updates(kind.batches)
            if turn:
                seconds[side].append(time.perf_counter() - begun)
    median = {side: statistics.median(values) for side, values in seconds.items()}
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
    return {
        "rows": {side: len(lengths) / value for side, value in median.items()},
        "tokens": {side: int(offsets[-1]) / value for side, value in median.items()},
        "ratio": statistics.median(ratios),
    }


def print_speed(turns: int) -> None:
    """As a Markdown table."""
    torch.set_flush_denormal(True)
    print(f"MiniLM-L6's shape (6x384), fp32, dropout 0.1, medians of {turns} turns")
    print("| lengths | batch | rows/s | tokens/s | transformers: rows/s | tokens/s | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, kind in KINDS.items():
        found = measure(kind, turns)
        cells = [f"{found[unit][side]:,.0f}" for side in ("ours", "theirs") for unit in ("rows", "tokens")]
        print(f"| {name} | {kind.batch} | " + " | ".join(cells) + f" | {found['ratio']:.2f} |", flush=True)
