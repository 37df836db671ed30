"""Rows per second of the loader on one core (gather + mask + collate, the plan already there), and its memory.

Rates are those of the median batch: pauses that other programs make are not the loader's. Memory: resident memory of a
process that trains nothing and of its workers, at the end of each of three epochs, with the plan cached on disk.

Usage: python scripts/bench/loader.py [--json FILE]. The text is generated: sentences of 5 to 60 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _text import children, memory

from bertpt.config.schema import Masking, Pairs
from bertpt.data.rows.loader import BatchStream
from bertpt.data.rows.plan import plan_epoch
from bertpt.data.tokens.store import STORE_FORMAT, TokenStore
from bertpt.data.tokens.store_writer import StoreWriter
from bertpt.files import write_manifest

VOCAB, DOCUMENTS = 30_522, 4_000
BATCHES = 300


def make_store(folder: Path, documents: int = DOCUMENTS, sentences: tuple[int, int] = (5, 80)) -> TokenStore:
    """A generated store of about 5 M tokens."""
    rng = np.random.default_rng(0)
    counts = {}
    folder.mkdir(parents=True, exist_ok=True)
    with StoreWriter(folder, np.zeros(VOCAB, np.bool_)) as writer:
        for split, number in (("train", documents), ("heldout", 10)):
            sizes = rng.integers(*sentences, number)
            lengths = rng.integers(5, 61, int(sizes.sum()))
            writer.split(split).add(
                rng.integers(5, VOCAB, int(lengths.sum())), lengths, sizes, np.zeros(number, np.uint8)
            )
            counts[split] = {"documents": number, "documents_of_two_sentences_or_more": number}
    specials = dict(zip(("pad", "unk", "cls", "sep", "mask"), range(5), strict=True))
    settings = {"format": STORE_FORMAT, "vocab_size": VOCAB, "sources": ["made"], "special_ids": specials}
    write_manifest(folder, stage="prepare", key="bench", inputs={}, settings=settings, counts=counts)
    return TokenStore.open(folder)


def stream_of(store: TokenStore, length: int, batch_size: int, cache: Path | None = None) -> BatchStream:
    """Pairs with the default masks."""
    return BatchStream.create(
        store, "train", pairs=Pairs(), masking=Masking(), length=length, batch_size=batch_size, seed=0, cache=cache
    )


def batch_rate(stream: BatchStream) -> float:
    """Rows per second of the median batch."""
    times = []
    for index in range(min(BATCHES, len(stream.plans.epoch(0)) // stream.batch_size)):
        begun = time.perf_counter()
        stream[index]
        times.append(time.perf_counter() - begun)
    return stream.batch_size / statistics.median(times)


def resident_over_epochs(store: TokenStore, folder: Path, workers: int) -> list[float]:
    """MiB of this process and its loader's workers at the end of each epoch."""
    stream = stream_of(store, 128, 64, cache=folder / "plans")
    ends = [sum(len(stream.plans.epoch(e)) for e in range(n + 1)) // 64 for n in range(3)]
    found = []
    for index, _ in enumerate(stream.batches(range(ends[-1]), workers=workers), 1):
        if index in ends:
            found.append(sum(memory(each, "VmRSS") for each in children(os.getpid())) / 2**20)
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4, help="of the loader whose memory is measured; 0: none is")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.platform()}, numpy {np.__version__}, torch {torch.__version__}, one thread")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        store = make_store(folder / "store")
        huge = make_store(folder / "huge", 2, (60_000, 80_000))
        for length in (128, 512):
            for batch_size in (64, 256):
                figures[f"loader_rows_per_s_{length}_batch_{batch_size}"] = batch_rate(
                    stream_of(store, length, batch_size)
                )
            for name, each in (("", store), ("_two_documents", huge)):
                begun = time.process_time()
                rows = len(plan_epoch(each.train, Pairs(), length=length, seed=0, epoch=1))
                figures[f"plan_rows_per_s_{length}{name}"] = rows / (time.process_time() - begun)
        for name, value in figures.items():
            print(f"{name:36}{value:>14,.0f}")
        if arguments.workers:
            figures["resident_mib"] = resident_over_epochs(store, folder, arguments.workers)
            shown = ", ".join(f"{mib:,.0f}" for mib in figures["resident_mib"])
            print(f"resident memory after each of 3 epochs, {arguments.workers} workers: {shown} MiB")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
