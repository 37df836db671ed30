"""Rows per second of the loader on one core: gather + mask + collate, the plan already there; and of planning.

Usage: python scripts/bench/loader.py [--json FILE]. The text is generated: sentences of 5 to 60 tokens.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from bertpt.config.schema import Masking, Pairs
from bertpt.data.loader import BatchStream
from bertpt.data.plan import plan_epoch
from bertpt.data.store import STORE_FORMAT, TokenStore
from bertpt.data.store_writer import StoreWriter
from bertpt.files import write_manifest

VOCAB, DOCUMENTS, RUNS = 30_522, 4_000, 5


def make_store(folder: Path) -> TokenStore:
    """A generated store of about 5 M tokens."""
    rng = np.random.default_rng(0)
    counts = {}
    with StoreWriter(folder, np.zeros(VOCAB, np.bool_)) as writer:
        for split, documents in (("train", DOCUMENTS), ("heldout", 10)):
            sizes = rng.integers(5, 80, documents)
            lengths = rng.integers(5, 61, int(sizes.sum()))
            writer.split(split).add(
                rng.integers(5, VOCAB, int(lengths.sum())), lengths, sizes, np.zeros(documents, np.uint8)
            )
            counts[split] = {"documents": documents, "documents_of_two_sentences_or_more": documents}
    specials = dict(zip(("pad", "unk", "cls", "sep", "mask"), range(5), strict=True))
    settings = {"format": STORE_FORMAT, "vocab_size": VOCAB, "sources": ["made"], "special_ids": specials}
    write_manifest(folder, stage="prepare", key="bench", inputs={}, settings=settings, counts=counts)
    return TokenStore.open(folder)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.platform()}, numpy {np.__version__}, torch {torch.__version__}, one thread, median of {RUNS}")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder))
        for length in (128, 512):
            stream = BatchStream.create(
                store, "train", pairs=Pairs(), masking=Masking(), length=length, batch_size=64, seed=0
            )
            begun = time.perf_counter()
            rows = len(plan_epoch(store.train, Pairs(), length=length, seed=0, epoch=1))
            figures[f"plan_rows_per_s_{length}"] = rows / (time.perf_counter() - begun)
            batches = min(200, len(stream.plans.epoch(0)) // 64)
            rates = []
            for _ in range(RUNS):
                begun = time.perf_counter()
                for index in range(batches):
                    stream[index]
                rates.append(batches * 64 / (time.perf_counter() - begun))
            figures[f"loader_rows_per_s_{length}"] = statistics.median(rates)
    for name, value in figures.items():
        print(f"{name:28}{value:>14,.0f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
