"""Training throughput beside transformers' BertForPreTraining, and the bound set by the step's matrix products.

Both train on the same rows in turn (A B A B ...) in one process: fp32, dropout 0.1, AdamW (fused), clipping,
vocabulary 30,522, length 128, batch 32 (Base 8). The reference pads to the longest row of the batch and uses SDPA.
Figures are medians over the turns; tokens are those that are not padding. The bound is the time of the step's matrix
products alone (forward and backward) on the packed rows.

Usage: python scripts/bench/train.py [--sizes tiny,mini,small,base] [--turns 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertpt.batch import Batch
from bertpt.config.schema import Model, Optimizer
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train.optim import build_optimizer, parameter_groups
from bertpt.train.pretrain import pretraining_counts, pretraining_objective
from bertpt.train.step import Totals, train_step

VOCAB, LENGTH, LR, CLIP = 30_522, 128, 1e-4, 1.0
SIZES = {"tiny": (2, 128, 2, 32), "mini": (4, 256, 4, 32), "small": (4, 512, 8, 32), "base": (12, 768, 12, 8)}


def make_rows(batch_size: int, count: int) -> list[Batch]:
    """Batches of rows that are 93% full: nine of ten have 118 to 128 tokens, as planned pairs do, the rest fewer."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        lengths = torch.randint(118, LENGTH + 1, (batch_size,), generator=generator)
        short = torch.rand(batch_size, generator=generator) < 0.1
        lengths = torch.where(short, torch.randint(8, LENGTH + 1, (batch_size,), generator=generator), lengths)
        ids = torch.randint(5, VOCAB, (int(lengths.sum()),), generator=generator)
        types = torch.cat([(torch.arange(n) > n // 2).long() for n in lengths.tolist()])
        chosen = (torch.rand(len(ids), generator=generator) < 0.15).nonzero()[:, 0]
        labels = torch.randint(5, VOCAB, (len(chosen),), generator=generator)
        next_label = torch.randint(0, 2, (batch_size,), generator=generator)
        batches.append(
            Batch.from_lengths(
                ids, types, lengths, masked_positions=chosen, masked_labels=labels, next_sentence_label=next_label
            )
        )
    return batches


def ours(config: Model) -> Callable[[Batch], None]:
    """One update of our step."""
    model = BertForPreTraining(config, VOCAB).train()
    optimizer = build_optimizer(model, Optimizer(lr=LR))

    def step(batch: Batch) -> None:
        train_step(
            model,
            optimizer,
            [batch],
            pretraining_objective,
            pretraining_counts,
            Totals.empty(),
            weights={"mlm": 1.0, "nsp": 1.0},
            lr=LR,
            clip=CLIP,
            precision="fp32",
        )

    return step


def reference(config: Model) -> Callable[[Batch], None]:
    """One update of transformers' model on the padded batch."""
    import transformers

    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=VOCAB,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.ffn_size,
            attn_implementation="sdpa",
        )
    ).train()
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=LR, eps=1e-6, fused=True)

    def step(batch: Batch) -> None:
        padded = as_padded(batch)
        model(**padded).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def as_padded(batch: Batch) -> dict[str, Tensor]:
    """The batch as [B, L] tensors by transformers' names; -100 where nothing is predicted."""
    mask = batch.attention_mask
    assert batch.masked_positions is not None
    assert batch.masked_labels is not None
    assert batch.next_sentence_label is not None
    labels = torch.full_like(batch.input_ids, -100)
    labels[batch.masked_positions] = batch.masked_labels

    def grid(values: Tensor, empty: int) -> Tensor:
        return torch.full((mask.numel(),), empty).index_copy(0, batch.grid_index, values).view(mask.shape)

    return {
        "input_ids": grid(batch.input_ids, 0),
        "token_type_ids": grid(batch.token_type_ids, 0),
        "attention_mask": mask.long(),
        "labels": grid(labels, -100),
        "next_sentence_label": batch.next_sentence_label,
    }


def products(config: Model, batch: Batch) -> Callable[[Batch], None]:
    """The matrix products of a step alone: each weight's product, and its two of the backward pass."""
    tokens, masked, width, ffn = batch.tokens, batch.predictions, config.hidden_size, config.ffn_size
    layer = [(tokens, width, 3 * width), (tokens, width, width), (tokens, width, ffn), (tokens, ffn, width)]
    shapes = layer * config.num_hidden_layers + [(masked, width, width), (masked, width, VOCAB)]
    made = {s: (torch.randn(s[0], s[1]), torch.randn(s[1], s[2]), torch.randn(s[0], s[2])) for s in set(shapes)}

    def step(_: Batch) -> None:
        for shape in shapes:
            left, right, gradient = made[shape]
            torch.mm(left, right)
            torch.mm(gradient, right.t())
            torch.mm(left.t(), gradient)

    return step


def measure(size: str, turns: int) -> dict[str, Any]:
    """Medians for one size."""
    layers, width, heads, batch_size = SIZES[size]
    config = Model(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads)
    batches = make_rows(batch_size, 4)
    contenders = {"ours": ours(config), "transformers": reference(config), "products": products(config, batches[0])}
    for step in contenders.values():
        step(batches[0])  # warm-up
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, step in contenders.items():
            begun = time.perf_counter()
            for batch in batches:
                step(batch)
            rates[name].append(sum(batch.tokens for batch in batches) / (time.perf_counter() - begun))
    median = {name: statistics.median(values) for name, values in rates.items()}
    pairs = [a / b for a, b in zip(rates["ours"], rates["transformers"], strict=True)]
    return {
        "size": size,
        "tokens_per_s": median["ours"],
        "transformers_tokens_per_s": median["transformers"],
        "ratio": statistics.median(pairs),
        "bound_share": median["ours"] / median["products"],
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,mini")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    print(
        f"{platform.platform()}, torch {torch.__version__}, {torch.get_num_threads()} threads, {arguments.turns} turns"
    )
    print(f"{'size':8}{'tokens/s':>12}{'transformers':>14}{'ratio':>8}{'of bound':>10}")
    records = []
    for size in arguments.sizes.split(","):
        record = measure(size, arguments.turns)
        records.append(record)
        print(
            f"{size:8}{record['tokens_per_s']:>12,.0f}{record['transformers_tokens_per_s']:>14,.0f}"
            f"{record['ratio']:>8.2f}{record['bound_share']:>10.0%}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
