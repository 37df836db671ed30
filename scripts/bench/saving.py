"""What safety costs: how long training waits for a save, how fast files are hashed, how soon a resume has its batch.

Usage: python scripts/bench/saving.py [--json FILE]. Weights (4x512, 12 bytes a parameter) and text are generated.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bertpt.config.schema import Masking, Model, Optimizer, Pairs
from bertpt.data.rows.loader import BatchStream
from bertpt.data.tokens.store import TokenStore
from bertpt.data.tokens.store_writer import StoreWriter
from bertpt.files import check_hashes, write_manifest
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train.checkpoints.checkpoint import open_checkpoint, restore
from bertpt.train.checkpoints.saving import Keep, Snapshot, Writer, save_checkpoint, write_checkpoint
from bertpt.train.updates.optim import build_optimizer

TURNS, VOCAB = 3, 30_522
DOCUMENTS, SENTENCES, TOKENS = 40_000, 100, 25  # 100 M tokens


def seconds(work: partial[object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def saves(folder: Path) -> dict[str, float]:
    """Seconds of training's wait, without and with the thread, and of opening a checkpoint."""
    model = BertForPreTraining(Model(hidden_size=512, num_hidden_layers=4, num_attention_heads=8), VOCAB)
    optimizer = build_optimizer(model, Optimizer())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    found: dict[str, list[float]] = {"at_once": [], "copy": [], "behind": [], "open": []}
    for turn in range(1, TURNS + 1):
        found["at_once"].append(seconds(partial(save_checkpoint, folder, 2 * turn, model, optimizer, {}, keep=1)))
        begun = time.perf_counter()
        snapshot, writer = Snapshot.of(2 * turn + 1, model, optimizer, {}), Writer()
        writer.submit(partial(write_checkpoint, folder, snapshot, Keep(1)))
        found["copy"].append(time.perf_counter() - begun)
        writer.wait()
        found["behind"].append(time.perf_counter() - begun)
        place = folder / "checkpoints" / f"step-{2 * turn + 1:08d}"
        found["open"].append(seconds(partial(lambda place: restore(open_checkpoint(place), model, optimizer), place)))
    size = sum(path.stat().st_size for path in place.iterdir())
    return {"checkpoint_gb": size / 1e9} | {f"{name}_s": statistics.median(each) for name, each in found.items()}


def resumes(folder: Path) -> dict[str, float]:
    """Seconds to check a store, to plan an epoch, and to have a batch when the plan lies there."""
    rng = np.random.default_rng(0)
    counts = {}
    with StoreWriter(folder, np.zeros(VOCAB, np.bool_)) as writer:
        for split, documents in (("train", DOCUMENTS), ("heldout", 10)):
            sizes = np.full(documents, SENTENCES)
            lengths = np.full(documents * SENTENCES, TOKENS)
            ids = rng.integers(5, VOCAB, documents * SENTENCES * TOKENS, dtype=np.uint16)
            writer.split(split).add(ids, lengths, sizes, np.zeros(documents, np.uint8))
            counts[split] = {"documents": documents, "documents_of_two_sentences_or_more": documents}
    specials = dict(zip(("pad", "unk", "cls", "sep", "mask"), range(5), strict=True))
    settings = {"vocab_size": VOCAB, "sources": ["made"], "special_ids": specials}
    write_manifest(folder, stage="prepare", key="bench", inputs={}, settings=settings, counts=counts)
    store = TokenStore.open(folder)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())

    def first_batch() -> object:
        stream = BatchStream.create(
            store, "train", pairs=Pairs(), masking=Masking(), length=128, batch_size=64, seed=0, cache=folder / "plans"
        )
        return stream[len(stream.plans.epoch(0)) // 64 // 2]

    hashing = statistics.median(seconds(partial(check_hashes, folder, store.manifest)) for _ in range(TURNS))
    planning = seconds(partial(first_batch))
    resuming = statistics.median(seconds(partial(first_batch)) for _ in range(TURNS))
    return {
        "store_tokens": float(len(store.train.ids)),
        "hash_s_per_gb": hashing / (size / 1e9),
        "first_batch_unplanned_s": planning,
        "first_batch_planned_s": resuming,
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.platform()}, torch {torch.__version__}, one thread, medians of {TURNS}")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        run, store = Path(folder) / "run", Path(folder) / "store"
        run.mkdir()
        store.mkdir()
        figures = saves(run) | resumes(store)
    for name, value in figures.items():
        print(f"{name:<26}{value:>16,.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
