"""Correctness, speed and memory of training on one GPU; scripts/gpu_check.sh prepares the way for it.

Each section is a process of its own with a time limit, so that what fails, hangs or runs out of memory takes nothing
else with it. Sections:

equality      a tiny model trained on the CPU in fp32 and on the device in each precision: the losses agree
resume        a run that goes on from a checkpoint ends where one that was never stopped does
SIZE-LENGTH   one update at a time on rows in the device's memory, bf16: sequences and tokens (without padding) a
              second, MFU, peak memory; then with torch.compile of each layer, and how long the first update took;
              large-512 with activation checkpointing as well
run           base-128 through the whole loop: loader processes, log, checkpoint
transformers  base-128 beside transformers' BertForPreTraining (SDPA, fused AdamW, padded, bf16), in turn

Usage: gpu_check.sh [--device cuda|cpu] [--small] [--sections NAMES] [--minutes N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.amp import GradScaler

sys.path.insert(0, str(Path(__file__).parent / "bench"))
from train import VOCAB, make_rows, ours, paired, reference

from bertpt.batch import Batch
from bertpt.config import Config, validate
from bertpt.config.schema import Model, Optimizer
from bertpt.data.tokenizer.wordpiece import SPECIALS, Normalising, save
from bertpt.data.tokens.store import STORE_FORMAT, TokenStore
from bertpt.data.tokens.store_writer import StoreWriter
from bertpt.files import write_manifest
from bertpt.model.pretraining import BertForPreTraining
from bertpt.model.varlen import can_be_varlen
from bertpt.progress import say
from bertpt.train.checkpoints.checkpoint import checkpoint_path, open_checkpoint
from bertpt.train.checkpoints.saving import Writer
from bertpt.train.cost import training_flops
from bertpt.train.loop import Loop
from bertpt.train.pretrain import PreTraining, pretraining_counts, pretraining_objective
from bertpt.train.reports.logs import read_metrics
from bertpt.train.reports.speed import peak_memory_bytes, peak_speed
from bertpt.train.rundir import Run
from bertpt.train.updates.optim import build_optimizer
from bertpt.train.updates.step import Totals, train_step

Record = dict[str, Any]
TINY = Model(hidden_size=128, num_hidden_layers=2, num_attention_heads=2)
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SIZES = {"base": Model(), "large": Model(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16)}
ROWS = {"base-128": 256, "base-512": 64, "large-128": 128, "large-512": 32}
# Most nats that losses of the tiny model's first updates (near 7) may differ from those of the CPU in fp32.
TOLERANCE = {"fp32": 1e-3, "bf16": 1e-2, "fp16": 1e-2}


@dataclass(frozen=True)
class Place:
    """Where a section runs; a small one has shapes for a rehearsal."""

    device: torch.device
    small: bool

    def shape(self, size: str) -> Model:
        return Model(hidden_size=64, num_hidden_layers=2, num_attention_heads=2) if self.small else SIZES[size]

    def rows(self, name: str) -> int:
        return 4 if self.small else ROWS[name]

    @property
    def vocab_size(self) -> int:
        return 1000 if self.small else VOCAB

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


Tell = Callable[[Record], None]
"""Takes a record as soon as it is measured."""


# --- correctness ------------------------------------------------------------------------------------------------------


def losses(device: torch.device, precision: str) -> list[float]:
    """MLM losses of ten updates of the tiny model, from the same weights on the same rows."""
    torch.manual_seed(0)
    model = BertForPreTraining(TINY.model_copy(update=NO_DROPOUT), 1000).to(device).train()
    optimizer = build_optimizer(model, Optimizer())
    scaler = GradScaler(device.type, init_scale=2.0**10) if precision == "fp16" else None  # low: no update is left out
    found = []
    for batch in make_rows(8, 5, 64, 1000) * 2:
        totals = Totals.empty()
        train_step(
            model,
            optimizer,
            [batch.to(device)],
            pretraining_objective,
            pretraining_counts,
            totals,
            weights={"mlm": 1.0, "nsp": 1.0},
            lr=1e-3,
            clip=1.0,
            precision=precision,
            scaler=scaler,
        )
        found.append(totals.means()["mlm_loss"])
    return found


def equality(place: Place, tell: Tell) -> None:
    """Losses on the device beside those on the CPU."""
    wanted = losses(torch.device("cpu"), "fp32")
    assert wanted[-1] < wanted[0] - 0.1, wanted  # else nothing was trained, and anything would be equal
    for precision, tolerance in TOLERANCE.items():
        found = losses(place.device, precision)
        apart = max(abs(a - b) for a, b in zip(found, wanted, strict=True))
        record = {"what": precision, "largest_difference": apart, "tolerance": tolerance, "last_loss": found[-1]}
        tell(record | {"ok": apart <= tolerance})
    # Without dropout, as here, rows with padding in 16 bits go through varlen attention where the device has it.
    rows = torch.zeros(8, 3 * TINY.hidden_size, dtype=torch.bfloat16, device=place.device)
    used = can_be_varlen(rows, TINY.num_attention_heads)
    has = place.device.type == "cuda" and torch.cuda.get_device_capability(place.device) >= (8, 0)
    tell({"what": "varlen attention", "used": used, "ok": used == has})


def resume(place: Place, tell: Tell) -> None:
    """Twelve updates over a change of phase, and the last six of them again from the checkpoint."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    with tempfile.TemporaryDirectory(prefix="bertpt-gpu-check-") as folder:
        store = make_store(Path(folder) / "store", 50_000, 1000)
        phases = [
            {"length": 32, "steps": 8, "batch_size": 16, "accumulate": 2},
            {"length": 64, "steps": 4, "batch_size": 16},
        ]
        train = {"phases": phases, "save_every": 6, "keep": 9, "log_every": 1, "eval_every": 0}
        config = configuration(Path(folder), TINY, train, heldout_rows=32)
        whole, again = Path(folder) / "whole", Path(folder) / "again"
        train_run(whole, config, store, place.device, "auto")
        shutil.copytree(checkpoint_path(whole, 6), checkpoint_path(again, 6))
        train_run(again, config, store, place.device, "auto")
        one, other = (open_checkpoint(checkpoint_path(run, 12)) for run in (whole, again))
        pairs = [(a, other.tensors("model")[name]) for name, a in one.tensors("model").items()]
        apart = max(float((a - b).abs().max()) for a, b in pairs)
        same_rows = one.state["starts"] == other.state["starts"]
        curves = [read_metrics(run / "metrics.jsonl") for run in (whole, again)]
        late = [{e["step"]: e["mlm_loss"] for e in c if e["kind"] == "train" and e["step"] > 6} for c in curves]
        same_steps = late[0].keys() == late[1].keys()
        loss_apart = max(abs(late[0][step] - late[1][step]) for step in late[1])
        exact = all(torch.equal(a, b) for a, b in pairs)
        record = {"what": "resume", "equal_bits": exact, "largest_difference": apart, "loss_difference": loss_apart}
        # A GPU adds up in no fixed order where a kernel has no other way.
        tell(record | {"ok": same_rows and same_steps and (exact or loss_apart < 1e-3)})


# --- the whole loop ---------------------------------------------------------------------------------------------------


def make_store(directory: Path, tokens: int, vocab_size: int) -> TokenStore:
    """A token store of random words: documents of 30 sentences of 5 to 30 tokens."""
    directory.mkdir()
    draw = np.random.default_rng(0)
    counts = {}
    with StoreWriter(directory, np.zeros(vocab_size, np.bool_)) as writer:
        for split, size in (("train", tokens), ("heldout", tokens // 10)):
            sizes = np.full(max(4, size // 500), 30)
            lengths = draw.integers(5, 31, int(sizes.sum()))
            # Rank and frequency as in a language, so that there is something to learn.
            ids = 5 + np.minimum((vocab_size - 5) ** draw.random(int(lengths.sum())), vocab_size - 6).astype(np.uint16)
            writer.split(split).add(ids, lengths, sizes, np.zeros(len(sizes), np.uint8))
            counts[split] = {
                "documents": len(sizes),
                "documents_of_two_sentences_or_more": len(sizes),
                "documents_by_source": {"made": len(sizes)},
                "sentences": len(lengths),
                "tokens": len(ids),
                "tokens_per_word": 1.0,
                "unknown_share": 0.0,
                **dict.fromkeys(("text_bytes", "documents_of_one_sentence", "documents_too_short", "sentences_cut"), 0),
            }
    settings = {
        "format": STORE_FORMAT,
        "vocab_size": vocab_size,
        "special_ids": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
        "sources": ["made"],
    }
    write_manifest(directory, stage="prepare", key="made", inputs={}, settings=settings, counts=counts)
    return TokenStore.open(directory)


def configuration(folder: Path, shape: Model, train: Record, *, heldout_rows: int) -> Config:
    """A configuration whose corpus is never read."""
    return validate(
        {
            "name": "check",
            "runs_dir": str(folder),
            "corpus": {"sources": [{"kind": "files", "path": str(folder)}]},
            "model": shape.model_dump(exclude={"init_from"}),
            "train": train | {"schedule": {"warmup_ratio": 0.1}},
            "evaluate": {"max_rows": heldout_rows, "batch_size": 32},
        }
    )


def train_run(directory: Path, config: Config, store: TokenStore, device: torch.device, precision: str) -> None:
    """Train, or go on, in a directory."""
    tokens = [*SPECIALS, *(f"w{number}" for number in range(len(SPECIALS), store.vocab_size))]
    save(directory / "tokenizer", tokens, Normalising())  # the log shows sentences
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    writer = Writer()
    work = PreTraining(Run(directory, config, {}), store, device, precision, writer.submit)
    loop = Loop(directory, work, config.train, precision=precision, say=say, writer=writer)
    loop.train("check", progress=False)


def run(place: Place, tell: Tell) -> None:
    """Base at 128 through the loop; the first line of the log is left out: loader processes and kernels start in it."""
    name, (lines, every) = "base-128", (2, 2) if place.small else (4, 20)
    with tempfile.TemporaryDirectory(prefix="bertpt-gpu-check-") as folder:
        store = make_store(Path(folder) / "store", 50_000 if place.small else 1_000_000, place.vocab_size)
        phase = {"length": 128, "steps": lines * every, "batch_size": place.rows(name)}
        train = {"phases": [phase], "log_every": every, "eval_every": 0, "workers": 0 if place.small else 4}
        config = configuration(Path(folder), place.shape("base"), train, heldout_rows=32)
        train_run(Path(folder) / "run", config, store, place.device, "bf16")
        log = [e for e in read_metrics(Path(folder) / "run" / "metrics.jsonl") if e["kind"] == "train"][1:]
    means = {key: statistics.mean(line[key] for line in log) for key in log[0] if key not in ("kind", "step")}
    tell(
        {
            "what": f"{name} loop",
            "rows": place.rows(name),
            "rows_per_s": means["rows_per_second"],
            "tokens_per_s": means["tokens_per_second"],
            "tflops": means["tflops_per_second"],
            "mfu": means.get("mfu"),
            "peak_gib": means.get("peak_memory_gib"),
            "data_wait_share": means["data_wait_share"],
            "ok": means["skipped"] == 0,
        }
    )


# --- speed ------------------------------------------------------------------------------------------------------------


def speed(size: str, length: int) -> Callable[[Place, Tell], None]:
    """The section of a size at a length."""

    def section(place: Place, tell: Tell) -> None:
        modes = ["", "compiled", *(["recomputed"] if (size, length) == ("large", 512) else [])]
        for mode in modes:
            rows = place.rows(f"{size}-{length}")
            while True:
                try:
                    tell(step_speed(place, size, length, rows, mode))
                    break
                except torch.OutOfMemoryError:
                    if rows == 1:
                        raise
                    rows //= 2
                    say(f"{size}-{length}: out of memory; {rows} rows")
                torch.cuda.empty_cache()

    return section


def step_speed(place: Place, size: str, length: int, rows: int, mode: str) -> Record:
    """Updates on rows that lie on the device."""
    batches = [batch.to(place.device) for batch in make_rows(rows, 4, length, place.vocab_size)]
    model, step = ours(place.shape(size), place.vocab_size, str(place.device), "bf16")
    model.bert.encoder.recompute = mode == "recomputed"
    graphs = 0
    if mode == "compiled":
        torch._dynamo.reset()
        for layer in model.bert.encoder.layer:
            layer.compile(dynamic=True, backend="eager" if place.small else "inductor")
    if place.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    step(batches[0])
    place.wait()
    first = time.perf_counter() - begun
    turns = timed(place, {"ours": step}, batches, seconds=0.2 if place.small else 6.0)["ours"]
    if mode == "compiled":
        graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    seconds = statistics.median(turns) / len(batches)
    operations = statistics.mean(flops(place, size, batch) for batch in batches)
    peak, memory = peak_speed(place.device), peak_memory_bytes(place.device)
    return {
        "what": f"{size}-{length} {mode}".strip(),
        "rows": rows,
        "rows_per_s": rows / seconds,
        "tokens_per_s": statistics.mean(batch.tokens for batch in batches) / seconds,
        "tflops": operations / seconds / 1e12,
        "mfu": None if peak is None else operations / seconds / peak,
        "peak_gib": None if memory is None else memory / 2**30,
        "first_update_s": first,
        "graphs": graphs,
        "ok": True,
    }


def flops(place: Place, size: str, batch: Batch) -> float:
    return training_flops(
        place.shape(size),
        place.vocab_size,
        rows=batch.rows,
        tokens=batch.tokens,
        predictions=batch.predictions,
        pairs=True,
    )


def timed(
    place: Place, steps: dict[str, Callable[[Batch], None]], batches: list[Batch], *, seconds: float
) -> dict[str, list[float]]:
    """Seconds of each turn over the batches, the contenders in turn, after a turn that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    end = None
    while end is None or time.perf_counter() < end or not all(found.values()):
        for name, step in steps.items():
            place.wait()
            begun = time.perf_counter()
            for batch in batches:
                step(batch)
            place.wait()
            if end is not None:
                found[name].append(time.perf_counter() - begun)
        end = end or time.perf_counter() + seconds
    return found


def transformers(place: Place, tell: Tell) -> None:
    """Ours and the reference in turn."""
    shape, vocab_size, device = place.shape("base"), place.vocab_size, str(place.device)
    batches = [batch.to(place.device) for batch in make_rows(place.rows("base-128"), 4, 128, vocab_size)]
    steps = {
        "ours": ours(shape, vocab_size, device, "bf16")[1],
        "theirs": reference(shape, vocab_size, device, "bf16"),
    }
    turns = timed(place, steps, batches, seconds=0.2 if place.small else 12.0)
    tokens = sum(batch.tokens for batch in batches)
    tell(
        {
            "what": "base-128 beside transformers",
            "tokens_per_s": tokens / statistics.median(turns["ours"]),
            "transformers_tokens_per_s": tokens / statistics.median(turns["theirs"]),
            "ratio": statistics.median(paired(turns["theirs"], turns["ours"])),
            "ok": True,
        }
    )


# Section -> what it does and its most seconds; with their starts they stay below eight minutes on an H200.
SECTIONS: dict[str, tuple[Callable[[Place, Tell], None], float]] = {
    "equality": (equality, 60),
    "resume": (resume, 60),
    "base-128": (speed("base", 128), 90),
    "base-512": (speed("base", 512), 90),
    "large-128": (speed("large", 128), 90),
    "large-512": (speed("large", 512), 90),
    "run": (run, 75),
    "transformers": (transformers, 75),
}


# --- one process for each section -------------------------------------------------------------------------------------


def tell_to(path: Path) -> Tell:
    """A record a line: what came before a section was ended is not lost."""

    def tell(record: Record) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    return tell


def run_section(name: str, arguments: argparse.Namespace, limit: float) -> Record:
    """One section in its process: its records, and what went wrong."""
    begun, error = time.perf_counter(), None
    with tempfile.TemporaryDirectory(prefix="bertpt-gpu-check-") as folder:
        records = Path(folder) / "records.jsonl"
        records.touch()
        command = [sys.executable, __file__, "--device", arguments.device, "--section", name, "--out", str(records)]
        command += ["--small"] if arguments.small else []
        # The last is for torch.use_deterministic_algorithms.
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        try:
            done = subprocess.run(
                command, env=environment, timeout=limit, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if done.returncode:
                lines = done.stdout.strip().splitlines()
                error = f"exit code {done.returncode}: {lines[-1] if lines else 'it said nothing'}"
                say("\n".join(lines[-30:]))
        except subprocess.TimeoutExpired:
            error = f"was ended after {limit:.0f} s"
        found = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    good = error is None and bool(found) and all(record["ok"] for record in found)
    return {"ok": good, "error": error, "seconds": time.perf_counter() - begun, "records": found}


def machine(device: str) -> Record:
    facts = {"platform": platform.platform(), "python": platform.python_version(), "torch": torch.__version__}
    if device == "cuda":
        return facts | {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return facts | {"device": f"CPU, {torch.get_num_threads()} threads"}


COLUMNS = [
    ("rows_per_s", "sequences/s", "{:,.1f}"),
    ("tokens_per_s", "tokens/s", "{:,.0f}"),
    ("tflops", "TFLOP/s", "{:,.3g}"),
    ("mfu", "MFU", "{:.1%}"),
    ("peak_gib", "peak GiB", "{:.2f}"),
    ("first_update_s", "first update s", "{:.1f}"),
    ("graphs", "graphs", "{}"),
    ("data_wait_share", "waiting", "{:.1%}"),
    ("transformers_tokens_per_s", "theirs", "{:,.0f}"),
    ("ratio", "ratio", "{:.2f}"),
    ("largest_difference", "difference", "{:.2g}"),
    ("tolerance", "allowed", "{:.2g}"),
    ("equal_bits", "equal bits", "{}"),
    ("used", "used", "{}"),
]


def show(name: str, section: Record) -> None:
    """A section's records, a line each."""
    verdict = "ok" if section["ok"] else f"FAILED: {section['error'] or 'see below'}"
    print(f"{name} ({section['seconds']:.0f} s): {verdict}")
    for record in section["records"]:
        shown = [f"{head} {form.format(record[key])}" for key, head, form in COLUMNS if record.get(key) is not None]
        print(f"  {record['what']:30}{'' if record['ok'] else 'NOT OK  '}{', '.join(shown)}", flush=True)


def names(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {','.join(SECTIONS)}")
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny shapes: a rehearsal")
    parser.add_argument("--sections", type=names, default=list(SECTIONS), metavar="NAMES", help=",".join(SECTIONS))
    parser.add_argument("--minutes", type=float, default=7.8, help="most of all sections together; default: 7.8")
    parser.add_argument("--json", type=Path, metavar="FILE", help="machine, and the records of each section")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; --device cpu --small rehearses without one")
    if arguments.section is not None:
        SECTIONS[arguments.section][0](Place(torch.device(arguments.device), arguments.small), tell_to(arguments.out))
        return 0
    end = time.perf_counter() + 60 * arguments.minutes
    report: Record = {"machine": machine(arguments.device), "sections": {}}
    print(", ".join(f"{key} {value}" for key, value in report["machine"].items()), flush=True)
    for name in arguments.sections:
        patience = 10 if arguments.small else 1  # a rehearsal may run on a busy machine
        limit = min(patience * SECTIONS[name][1], end - time.perf_counter())
        if limit < 5 and not arguments.small:
            section: Record = {"ok": False, "error": "no time was left", "seconds": 0.0, "records": []}
        else:
            section = run_section(name, arguments, max(limit, 1))
        report["sections"][name] = section
        show(name, section)
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    failed = [name for name, section in report["sections"].items() if not section["ok"]]
    print(f"failed: {', '.join(failed)}" if failed else "all sections are ok")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
