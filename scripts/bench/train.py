"""Training throughput beside transformers' BertForPreTraining, and the bound set by the step's matrix products.

Both train on the same rows in turn (A B A B ...) in one process: fp32, dropout 0.1, AdamW (fused), clipping,
vocabulary 30,522, length 128, batch 32 (Base 8). The reference pads to the longest row of the batch and uses SDPA.
Figures are medians over the turns; tokens are those that are not padding. The bound is the time of the step's matrix
products alone (forward and backward) on the packed rows, those of attention included.

Size base-512 (not in the default) is another question: rows of up to 512 tokens as long as documents are, with and
without padding. The ceiling is 1/fill; our own step on rows filled up to 512 with tokens that count is the reference,
which is the most favourable padding there can be, for it needs no mask.

Usage: python scripts/bench/train.py [--sizes tiny,mini,small,base,base-512] [--turns N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertpt.batch import Batch
from bertpt.config.schema import Model, Optimizer
from bertpt.model.pretraining import BertForPreTraining
from bertpt.progress import say
from bertpt.train.pretrain import pretraining_counts, pretraining_objective
from bertpt.train.updates.optim import build_optimizer, parameter_groups
from bertpt.train.updates.step import Totals, autocast, train_step

VOCAB, LENGTH, LR, CLIP = 30_522, 128, 1e-4, 1.0
# layers, width, heads, batch size, updates in a turn, turns: the larger the steadier, and the longer
SIZES = {
    "tiny": (2, 128, 2, 32, 4, 7),
    "mini": (4, 256, 4, 32, 4, 5),
    "small": (4, 512, 8, 32, 2, 5),
    "base": (12, 768, 12, 8, 2, 5),
}
DOCUMENTS = "base-512"


def make_rows(batch_size: int, count: int, length: int = LENGTH, vocab_size: int = VOCAB) -> list[Batch]:
    """Batches of rows that are 93% full: nine of ten have 118 to 128 tokens, as planned pairs do, the rest fewer."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        lengths = torch.randint(length - length // 12, length + 1, (batch_size,), generator=generator)
        short = torch.rand(batch_size, generator=generator) < 0.1
        lengths = torch.where(short, torch.randint(8, length + 1, (batch_size,), generator=generator), lengths)
        batches.append(random_batch(lengths, vocab_size, generator))
    return batches


def random_batch(
    lengths: Tensor, vocab_size: int = VOCAB, generator: torch.Generator | None = None, predictions: int | None = None
) -> Batch:
    """Random tokens in rows of these lengths; 15% of them predicted, or exactly ``predictions``."""
    generator = generator or torch.Generator().manual_seed(0)
    ids = torch.randint(5, vocab_size, (int(lengths.sum()),), generator=generator)
    types = torch.cat([(torch.arange(n) > n // 2).long() for n in lengths.tolist()])
    draws = torch.rand(len(ids), generator=generator)
    chosen = (draws < 0.15).nonzero()[:, 0] if predictions is None else draws.argsort()[:predictions].sort().values
    labels = torch.randint(5, vocab_size, (len(chosen),), generator=generator)
    next_label = torch.randint(0, 2, (len(lengths),), generator=generator)
    return Batch.from_lengths(
        ids, types, lengths, masked_positions=chosen, masked_labels=labels, next_sentence_label=next_label
    )


def ours(
    config: Model, vocab_size: int = VOCAB, device: str = "cpu", precision: str = "fp32"
) -> tuple[BertForPreTraining, Callable[[Batch], None]]:
    """Our model, and one update of our step."""
    model = BertForPreTraining(config, vocab_size).to(device).train()
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
            precision=precision,
        )

    return model, step


def reference(
    config: Model, vocab_size: int = VOCAB, device: str = "cpu", precision: str = "fp32"
) -> Callable[[Batch], None]:
    """One update of transformers' model on the padded batch."""
    import transformers

    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.ffn_size,
            attn_implementation="sdpa",
        )
    )
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=LR, eps=1e-6, fused=True)

    def step(batch: Batch) -> None:
        padded = as_padded(batch)
        with autocast(batch.input_ids.device, precision):
            loss = model(**padded).loss
        loss.backward()
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
        return (
            torch.full((mask.numel(),), empty, device=mask.device)
            .index_copy(0, batch.grid_index, values)
            .view(mask.shape)
        )

    return {
        "input_ids": grid(batch.input_ids, 0),
        "token_type_ids": grid(batch.token_type_ids, 0),
        "attention_mask": mask.long(),
        "labels": grid(labels, -100),
        "next_sentence_label": batch.next_sentence_label,
    }


def products(config: Model, batch: Batch) -> Callable[[Batch], None]:
    """The matrix products of a step alone, into memory that is there: no step with these products can be faster.

    Each weight's product with its two of the backward pass, in the layout of ``nn.Linear``; and of attention, which
    has no weights, the two of each row and their four of the backward pass.
    """
    tokens, masked, width, ffn = batch.tokens, batch.predictions, config.hidden_size, config.ffn_size
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    layer = [(tokens, width, 3 * width), (tokens, width, width), (tokens, width, ffn), (tokens, ffn, width)]
    weights = layer * layers + [(masked, width, width), (masked, width, VOCAB)]
    rows = batch.attention_mask.sum(1).tolist() * layers
    made = {s: (torch.randn(s[0], s[1]), torch.randn(s[2], s[1]), torch.randn(s[0], s[2])) for s in set(weights)}
    results = {s: tuple(torch.empty_like(tensor) for tensor in made[s]) for s in made}
    thin = {n: torch.randn(heads, n, width // heads) for n in set(rows)}
    square = {n: torch.randn(heads, n, n) for n in set(rows)}
    scores, context = ({n: torch.empty_like(t) for n, t in tensors.items()} for tensors in (square, thin))

    def step(_: Batch) -> None:
        for shape in weights:
            (x, weight, y), (by_x, by_weight, out) = made[shape], results[shape]
            torch.mm(x, weight.t(), out=out)
            torch.mm(y, weight, out=by_x)
            torch.mm(y.t(), x, out=by_weight)
        for n in rows:
            for _ in range(2):
                torch.bmm(thin[n], thin[n].mT, out=scores[n])
                torch.bmm(square[n], thin[n], out=context[n])
                torch.bmm(square[n].mT, thin[n], out=context[n])

    return step


def measure(size: str, turns: int) -> dict[str, Any]:
    """Medians for one size; each turn is said on stderr."""
    layers, width, heads, batch_size, updates, _ = SIZES[size]
    config = Model(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads)
    batches = make_rows(batch_size, updates)
    contenders = {"ours": ours(config)[1], "transformers": reference(config), "products": products(config, batches[0])}
    say(f"{size}: warming up")
    for step in contenders.values():
        step(batches[0])
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name, step in contenders.items():
            turns_batches = [batches[0]] * updates if name == "products" else batches  # made for one shape
            begun = time.perf_counter()
            for batch in turns_batches:
                step(batch)
            rates[name].append(sum(batch.tokens for batch in turns_batches) / (time.perf_counter() - begun))
        last = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in rates.items())
        say(f"{size}: turn {turn + 1} of {turns}, tokens/s: {last}")
    median = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "size": size,
        "tokens_per_s": median["ours"],
        "transformers_tokens_per_s": median["transformers"],
        "ratio": statistics.median(paired(rates["ours"], rates["transformers"])),
        "bound_share": statistics.median(paired(rates["ours"], rates["products"])),
    }


def document_rows(rows: int, count: int, length: int) -> list[Batch]:
    """Batches of rows as long as documents are, 490 tokens in the mean (lognormal, sigma 1), cut at ``length``."""
    rng = np.random.default_rng(0)
    drawn = rng.lognormal(math.log(490) - 0.5, 1.0, (count, rows)).astype(np.int64)
    return [random_batch(torch.from_numpy(lengths.clip(8, length))) for lengths in drawn]


def measure_documents(turns: int, length: int = 512, rows: int = 8, updates: int = 2) -> dict[str, Any]:
    """Base on rows as long as documents: without padding, with padding, and transformers' with padding."""
    layers, width, heads, *_ = SIZES["base"]
    config = Model(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads)
    packed = document_rows(rows, updates, length)
    tokens, grid = sum(batch.tokens for batch in packed), updates * rows * length
    share = tokens / grid
    # As many predictions in both: those at padding would not be made.
    full = [random_batch(torch.full((rows,), length), predictions=batch.predictions) for batch in packed]
    step = ours(config)[1]
    contenders = {"without padding": (step, packed), "with padding": (step, full)}
    contenders["transformers, with padding"] = (reference(config), packed)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    say(f"{DOCUMENTS}: warming up")
    for step, batches in contenders.values():
        step(batches[0])
    for turn in range(turns):
        for name, (step, batches) in contenders.items():
            begun = time.perf_counter()
            for batch in batches:
                step(batch)
            seconds[name].append(time.perf_counter() - begun)
        last = ", ".join(f"{name} {tokens / values[-1]:,.0f}" for name, values in seconds.items())
        say(f"{DOCUMENTS}: turn {turn + 1} of {turns}, tokens/s: {last}")
    gain = statistics.median(paired(seconds["with padding"], seconds["without padding"]))
    return {
        "size": DOCUMENTS,
        "fill": share,
        "tokens_per_s": tokens / statistics.median(seconds["without padding"]),
        "padded_tokens_per_s": tokens / statistics.median(seconds["with padding"]),
        "transformers_tokens_per_s": tokens / statistics.median(seconds["transformers, with padding"]),
        "ratio": statistics.median(paired(seconds["transformers, with padding"], seconds["without padding"])),
        "gain": gain,
        "ceiling_share": gain * share,
    }


def paired(above: list[float], below: list[float]) -> list[float]:
    """Ratios within each turn: what slows the machine down for a while slows both."""
    return [a / b for a, b in zip(above, below, strict=True)]


def sizes(text: str) -> list[str]:
    """The names of ``--sizes``."""
    names = text.split(",")
    if unknown := [name for name in names if name not in (*SIZES, DOCUMENTS)]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {','.join(SIZES)},{DOCUMENTS}")
    return names


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=sizes, default=list(SIZES), metavar="NAMES", help="tiny,mini,small,base,base-512"
    )
    parser.add_argument("--turns", type=int, help="of each size; default: 7 for tiny, 5 for the others")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one record per size")
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    print(f"{platform.platform()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'size':8}{'tokens/s':>12}{'transformers':>14}{'ratio':>8}{'of bound':>10}", flush=True)
    records = []
    for size in arguments.sizes:
        documents = size == DOCUMENTS
        record = (
            measure_documents(arguments.turns or 3) if documents else measure(size, arguments.turns or SIZES[size][-1])
        )
        records.append(record)
        if arguments.json:  # after each size: what is measured is not lost with a run that is stopped
            arguments.json.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
        if documents:
            print(
                f"{size}, rows {record['fill']:.0%} full: {record['tokens_per_s']:,.0f} tokens/s without padding,"
                f" {record['padded_tokens_per_s']:,.0f} with, {record['gain']:.2f} times; that is"
                f" {record['ceiling_share']:.0%} of 1/fill; transformers {record['transformers_tokens_per_s']:,.0f},"
                f" ratio {record['ratio']:.2f}",
                flush=True,
            )
            continue
        print(
            f"{size:8}{record['tokens_per_s']:>12,.0f}{record['transformers_tokens_per_s']:>14,.0f}"
            f"{record['ratio']:>8.2f}{record['bound_share']:>10.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
