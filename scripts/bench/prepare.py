"""Text to token store: speed beside the bare tokenizer and beside two references, peak memory, and planning an epoch.

Speed: a generated text goes through `bertpt download` (cleaning and splitting, near-duplicate removal off), and `bertpt
prepare`. The bound is the tokenizer alone: `encode_batch_fast` on the very same sentences, in memory, with as many
threads. References, on the first --reference-mb: a preparation in pure Python in the manner of Google's release (basic
tokenizer, then longest match first), and `datasets.map` over a fast tokenizer of transformers. All take turns.

Memory: peaks of `bertpt train-tokenizer` and `bertpt prepare`, with all their processes, for each size of --memory-mb.

Planning: a store of --plan-tokens random tokens in documents of natural lengths; one epoch of pairs of length 128; and
the first batch of a run in the middle of it, without and with the plan on disk.

Usage: python scripts/bench/prepare.py [--mb 16] [--memory-mb 50,500] [--plan-tokens 1e9] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _text import peak_of, write_text

from bertpt.config import Config, validate
from bertpt.config.schema import Masking, Pairs
from bertpt.data.corpus.documents import iter_documents
from bertpt.data.corpus.download import download
from bertpt.data.locate import documents_dir, tokenizer_dir
from bertpt.data.rows.plan import plan_epoch
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokenizer.wordpiece import load_tokenizer
from bertpt.data.tokens.prepare import prepare
from bertpt.data.tokens.sentences import split_sentences
from bertpt.data.tokens.store import STORE_FORMAT, TokenStore
from bertpt.data.tokens.store_writer import StoreWriter
from bertpt.data.tokens.workers import processors
from bertpt.files import write_manifest

VOCAB = 30_522
SLICE = 20_000  # sentences encoded at a time, as the bare tokenizer too would have to, to bound memory


def config_of(folder: Path, name: str) -> Config:
    """A corpus of one text file."""
    return validate(
        {
            "name": "bench",
            "data_dir": str(folder / "data"),
            "corpus": {
                "name": name,
                "sources": [{"kind": "files", "path": str(folder / f"{name}.txt"), "documents": "blank-line"}],
                "heldout": {"near_duplicates": None},
            },
            "tokenizer": {"vocab_size": VOCAB},
            "train": {"phases": [{"steps": 1}]},
        }
    )


def quiet(_: str) -> None:
    pass


def stage(name: str, folder: Path, corpus: str, workers: int) -> dict[str, Any]:
    """Run one stage here; its seconds."""
    config = config_of(folder, corpus)
    begun = time.perf_counter()
    if name == "prepare":
        made = prepare(config, workers=workers or None, overwrite=True, say=quiet, progress=False)
    else:
        made = {"download": download, "train-tokenizer": train_tokenizer}[name](
            config, overwrite=True, say=quiet, progress=False
        )
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "directory": str(made.directory), "counts": made.manifest["counts"]}


def sentences_of(config: Config) -> list[list[str]]:
    """The sentences of all documents in slices."""
    texts = (d.text for split in ("train", "heldout") for d in iter_documents(documents_dir(config), split))
    found = [sentence for text in texts for sentence in split_sentences(text, "en")]
    return [found[at : at + SLICE] for at in range(0, len(found), SLICE)]


# --- references ---------------------------------------------------------------------------------------------------


def python_wordpiece(vocab: dict[str, int]) -> Callable[[str], list[int]]:
    """Sentence to ids in Python: lower case without accents, words and punctuation, then the longest piece first."""

    kind = unicodedata.category

    def words(text: str) -> Iterator[str]:
        text = "".join(" " if c.isspace() else c for c in text if c.isspace() or kind(c) not in ("Cc", "Cf"))
        text = "".join(f" {c} " if 0x4E00 <= ord(c) <= 0x9FFF else c for c in text)
        for part in text.split():
            word = ""
            for letter in (c for c in unicodedata.normalize("NFD", part.lower()) if kind(c) != "Mn"):
                if kind(letter)[0] not in "PS":
                    word += letter
                else:
                    if word:
                        yield word
                    yield letter
                    word = ""
            if word:
                yield word

    def pieces(word: str) -> list[int]:
        found: list[int] = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in vocab:
                    found.append(vocab[piece])
                    start = end
                    break
            else:
                return [vocab["[UNK]"]]
        return found

    return lambda text: [piece for word in words(text) for piece in pieces(word)]


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and seconds of processor time."""
    begun, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begun, time.process_time() - used


def contenders(folder: Path, workers: int, reference_mb: float) -> dict[str, tuple[int, Callable[[], Any]]]:
    """What is measured: bytes of text, and the work."""
    config = config_of(folder, "speed")
    place = tokenizer_dir(config)
    slices = sentences_of(config)
    size = (folder / "speed.txt").stat().st_size
    few, few_size = list[str](), 0
    for sentence in (s for part in slices for s in part):
        if few_size >= reference_mb * 1e6:
            break
        few.append(sentence)
        few_size += len(sentence.encode()) + 1

    def bare() -> None:
        backend = load_tokenizer(place)._backend
        for part in slices:
            [encoding.ids for encoding in backend.encode_batch_fast(part, add_special_tokens=False)]

    def ours() -> None:
        stage("download", folder, "speed", workers)
        stage("prepare", folder, "speed", workers)

    def in_python() -> None:
        encode = python_wordpiece({token: index for index, token in enumerate(load_tokenizer(place).tokens)})
        np.fromiter((piece for sentence in few for piece in encode(sentence)), np.int32)

    def mapped() -> None:
        import datasets
        from transformers import PreTrainedTokenizerFast

        datasets.disable_progress_bars()
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(place / "tokenizer.json"))
        cache = folder / "map"
        datasets.Dataset.from_dict({"text": few}).map(
            lambda rows: {"ids": tokenizer(rows["text"], add_special_tokens=False)["input_ids"]},
            batched=True,
            remove_columns=["text"],
        ).save_to_disk(str(cache))
        shutil.rmtree(cache)

    made = {"bare encode_batch_fast": (size, bare), "bertpt, text to store": (size, ours)}
    try:
        import transformers  # noqa: F401

        made["datasets.map"] = (few_size, mapped)
    except ImportError:
        print("transformers is not installed: no figure for datasets.map")
    made["pure Python"] = (few_size, in_python)
    return made


def measure_speed(folder: Path, size: int, workers: int, turns: int, reference_mb: float) -> dict[str, Any]:
    """MB/s of each, and ours as a share of the bound."""
    write_text(folder / "speed.txt", size)
    stage("download", folder, "speed", workers)
    stage("train-tokenizer", folder, "speed", workers)
    works = contenders(folder, workers, reference_mb)
    wall: dict[str, list[float]] = {name: [] for name in works}
    cpu: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns):
        for name, (amount, work) in works.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds, used = timed(work)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            wall[name].append(amount / 1e6 / seconds)
            cpu[name].append(amount / 1e6 / used)
    rows = {
        name: {"mb_per_s": statistics.median(wall[name]), "mb_per_cpu_s": statistics.median(cpu[name])}
        for name in works
    }
    bare, ours = "bare encode_batch_fast", "bertpt, text to store"
    shares = {
        f"share_of_bare_{kind}": statistics.median(a / b for a, b in zip(rates[ours], rates[bare], strict=True))
        for kind, rates in (("wall", wall), ("cpu", cpu))
    }
    made = stage("prepare", folder, "speed", workers)
    text_bytes = sum(part["text_bytes"] for part in made["counts"].values())
    stored = sum(path.stat().st_size for path in Path(made["directory"]).iterdir())
    print(f"\n{'':26}{'MB/s':>8}{'MB/CPU s':>10}")
    for name, row in rows.items():
        print(f"{name:26}{row['mb_per_s']:>8.2f}{row['mb_per_cpu_s']:>10.2f}")
    print(
        f"text to store at {shares['share_of_bare_wall']:.0%} of the bare tokenizer's speed"
        f" ({shares['share_of_bare_cpu']:.0%} by processor time); the store is {stored / text_bytes:.3f} of the text"
    )
    return {"text_mb": size / 1e6, "rates": rows, "store_share": stored / text_bytes, **shares}


# --- memory -------------------------------------------------------------------------------------------------------


def measure_memory(folder: Path, sizes: list[int], workers: int) -> list[dict[str, Any]]:
    """Peaks of both stages for each size of text."""
    print(f"\n{'text':>9}  {'stage':18}{'seconds':>9}{'anonymous':>13}{'resident':>12}   MiB, all processes together")
    records = []
    for size in sizes:
        name = f"memory-{size}"
        write_text(folder / f"{name}.txt", size)
        for each in ("download", "train-tokenizer", "prepare"):
            command = [sys.executable, __file__, "--stage", each, "--folder", str(folder), "--corpus", name]
            output, peak = peak_of([*command, "--workers", str(workers)])
            record = {"text_mb": size / 1e6, "stage": each, "seconds": json.loads(output)["seconds"], **peak}
            records.append(record)
            print(
                f"{size / 1e6:>6,.0f} MB  {each:18}{record['seconds']:>9.1f}{peak['anonymous'] / 2**20:>13,.0f}"
                f"{peak['resident'] / 2**20:>12,.0f}",
                flush=True,
            )
        (folder / f"{name}.txt").unlink()
        shutil.rmtree(folder / "data" / name)
    return records


# --- planning -----------------------------------------------------------------------------------------------------


def make_store(folder: Path, tokens: int) -> None:
    """Documents of 490 tokens in the mean, some of them very long, in sentences of 25."""
    rng = np.random.default_rng(0)
    counts: dict[str, Any] = {}
    with StoreWriter(folder, np.zeros(VOCAB, np.bool_)) as writer:
        for split, wanted in (("train", tokens), ("heldout", 10_000)):
            part = writer.split(split)
            while part.tokens < wanted:
                sizes = np.maximum(rng.lognormal(2.3, 1.2, 10_000), 1).astype(np.int64)
                lengths = np.clip(rng.gamma(3.0, 8.5, int(sizes.sum())), 1, 400).astype(np.int64)
                ids = rng.integers(5, VOCAB, int(lengths.sum()), np.uint16)
                part.add(ids, lengths, sizes, np.zeros(len(sizes), np.uint8))
            counts[split] = {"documents": part.documents, "documents_of_two_sentences_or_more": part.documents}
    specials = dict(zip(("pad", "unk", "cls", "sep", "mask"), range(5), strict=True))
    settings = {"format": STORE_FORMAT, "vocab_size": VOCAB, "sources": ["made"], "special_ids": specials}
    write_manifest(folder, stage="prepare", key="bench", inputs={}, settings=settings, counts=counts)


def plan_here(folder: Path) -> dict[str, Any]:
    """Open the store and plan one epoch of pairs."""
    begun = time.perf_counter()
    store = TokenStore.open(folder)
    opened = time.perf_counter() - begun
    seconds, used = timed(lambda: plans.append(plan_epoch(store.train, Pairs(), length=128, seed=0, epoch=0)))
    [rows] = plans
    return {
        "open_s": opened,
        "seconds": seconds,
        "cpu_seconds": used,
        "rows": len(rows),
        "tokens": len(store.train.ids),
        "documents": len(store.train.sources),
    }


plans: list[Any] = []


def first_batch(folder: Path) -> dict[str, Any]:
    """What a run does before its first update, at a position in the middle of an epoch; the plan is made or found."""
    from bertpt.data.rows.loader import BatchStream  # torch with it, which must not count in the memory of preparation

    begun = time.perf_counter()
    store = TokenStore.open(folder)
    stream = BatchStream.create(
        store,
        "train",
        pairs=Pairs(),
        masking=Masking(),
        length=128,
        batch_size=256,
        seed=0,
        cache=folder.with_name("plans"),
    )
    stream.plans.epoch(0)
    stream.rows(stream.plans.starts[1] // 2, 256)
    return {"seconds": time.perf_counter() - begun}


def measure_planning(folder: Path, tokens: int) -> dict[str, Any]:
    """Time and peak memory of one epoch."""
    place = folder / "store"
    place.mkdir()
    make_store(place, tokens)
    output, peak = peak_of([sys.executable, __file__, "--stage", "plan", "--folder", str(place)])
    figures: dict[str, Any] = json.loads(output) | peak
    print(
        f"\nplanning {figures['tokens']:,} tokens, {figures['documents']:,} documents: {figures['rows']:,} rows of 128"
        f" in {figures['seconds']:.1f} s ({figures['cpu_seconds']:.1f} s of one processor),"
        f" {peak['anonymous'] / 2**20:,.0f} MiB"
        f" ({peak['resident'] / 2**20:,.0f} with pages of files); the store opened in {figures['open_s'] * 1000:.1f} ms"
    )
    command = [sys.executable, __file__, "--stage", "first-batch", "--folder", str(place)]
    kept, again = (json.loads(peak_of(command)[0])["seconds"] for _ in range(2))
    print(f"first batch of a run in the middle of that epoch: {kept:.1f} s; with the plan on disk {again:.2f} s")
    shutil.rmtree(place)
    return figures | {"first_batch_s": kept, "first_batch_resumed_s": again}


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=16, help="text for the speed, 0 for none")
    parser.add_argument("--reference-mb", type=float, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--memory-mb", default="50,500", help="texts for the memory, 0 for none")
    parser.add_argument("--plan-tokens", type=float, default=1e9, help="0 for none")
    parser.add_argument("--workers", type=int, default=processors())
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        alone = {"plan": plan_here, "first-batch": first_batch}
        if arguments.stage in alone:
            inner = alone[arguments.stage](arguments.folder)
        else:
            inner = stage(arguments.stage, arguments.folder, arguments.corpus, arguments.workers)
        print(json.dumps(inner))
        return
    print(f"{platform.platform()}, {os.cpu_count()} processors, {arguments.workers} workers, numpy {np.__version__}")
    figures: dict[str, Any] = {"workers": arguments.workers}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        if arguments.mb:
            size = int(arguments.mb * 1e6)
            figures["speed"] = measure_speed(folder, size, arguments.workers, arguments.turns, arguments.reference_mb)
        sizes = [int(float(part) * 1e6) for part in arguments.memory_mb.split(",") if float(part)]
        figures["memory"] = measure_memory(folder, sizes, arguments.workers)
        if arguments.plan_tokens:
            figures["planning"] = measure_planning(folder, int(arguments.plan_tokens))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
