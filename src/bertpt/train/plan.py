"""``bertpt plan``: what a run will cost, before it begins."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from bertpt.batch import Batch
from bertpt.config import Config
from bertpt.config.schema import Phase
from bertpt.data.locate import store_dir
from bertpt.data.rows.loader import BatchStream, row_sizes
from bertpt.data.tokens.store import TokenStore
from bertpt.errors import RequestError
from bertpt.model.pretraining import BertForPreTraining
from bertpt.progress import Progress
from bertpt.progress import say as say_line
from bertpt.train.cost import DEVICES, find_device, parameters_by_part, training_flops
from bertpt.train.pretrain import choose_device, choose_precision, pretraining_counts, pretraining_objective
from bertpt.train.updates.cuts import check_shares
from bertpt.train.updates.microbatch import random_rows
from bertpt.train.updates.optim import build_optimizer
from bertpt.train.updates.step import Objective, Totals, autocast, subnormals_flushed, train_step

FILL = 0.93  # of a row, where no corpus is prepared: measured on the rows of the demo corpus at length 128
# A calibration's micro-batch has no more rows: speed hardly changes above it, patience and memory do.
CPU_ROWS, GPU_ROWS = 32, 256
MANY = 100_000  # rows whose lengths are looked at
SECONDS, FEWEST = 5.0, 3  # of a calibration: how long, and how many turns of three micro-batches it has at least


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """Cost of one phase.

    Attributes:
        length: of rows; steps: updates; batch_size: rows of a full update; micro_batch: rows that a device computes at
            a time.
        rows: of all updates; fewer than ``steps * batch_size`` with a ramp.
        tokens: of a full update, without padding.
        flops: of a full update.
        activation_bytes: kept for the backward pass of a micro-batch; ``None`` where nothing was computed.
        fitting_rows: rows of a micro-batch that the device's memory holds; ``None`` where not known.
        seconds: of a full update.
        hours: of all updates.
    """

    length: int
    steps: int
    batch_size: int
    rows: int
    micro_batch: int
    tokens: float
    flops: float
    activation_bytes: int | None
    fitting_rows: int | None
    seconds: float
    hours: float


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a configuration will cost.

    Attributes:
        name: of the configuration.
        device: where; basis: how the speed is known; devices: how many train together.
        parameters: by part.
        memory: bytes by part of each device, without activations.
        sent: bytes that each device sends in an update, its gradients to the others; 0 for one device. They travel
            while the backward pass goes on, and no time is reckoned for them.
        disk: bytes by part, at most.
        phases: in their order.
        hours: of training, without evaluations; no more than the budget.
    """

    name: str
    device: str
    basis: str
    devices: int
    parameters: dict[str, int]
    memory: dict[str, int]
    sent: int
    disk: dict[str, int]
    phases: list[PhasePlan]
    hours: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def table(self) -> str:
        """As lines of text."""
        return "\n".join(_lines(self))


def plan_run(
    config: Config,
    *,
    gpu: str | None = None,
    mfu: float = 0.4,
    devices: int = 1,
    say: Callable[[str], None] = say_line,
    progress: bool = True,
) -> RunPlan:
    """Parameters, operations, memory, disk, speed and hours of a configuration.

    Args:
        config: the configuration; rows are those of its prepared corpus when there is one.
        gpu: a device of the table, in place of a calibration of a few updates on this machine.
        mfu: share of the device's speed that is assumed with ``gpu``.
        devices: of that kind, that share the rows of every update (``torchrun``); here one alone is tried.
        say: gets lines for people.
        progress: show progress on stderr.

    Raises:
        RequestError: no such device in the table, or rows that cannot be shared equally.
    """
    for index, phase in enumerate(config.train.phases):
        check_shares(f"train.phases.{index}", phase, devices)
    if gpu is not None and find_device(gpu) is None:
        raise RequestError(f"--gpu: {gpu}: not in the table: {', '.join(DEVICES)}; without --gpu this machine is tried")
    if config.model.init_from is not None:
        raise RequestError("model.init_from: its shape is not read here; write the shape under model instead")
    store = _store(config)
    vocab_size = config.tokenizer.vocab_size if store is None else store.vocab_size
    torch.manual_seed(config.train.seed)
    with torch.device("cpu" if gpu is None else "meta"):  # without numbers: shapes are enough
        model = BertForPreTraining(config.model, vocab_size, nsp=config.pairs.rule != "none")
    model.bert.encoder.recompute = recompute = config.train.activation_checkpointing
    count = sum(parameter.numel() for parameter in model.parameters())
    moments = 8 * count // (devices if config.train.shard_optimizer else 1)
    memory = {"weights": 4 * count, "gradients": 4 * count, "optimizer": moments}
    phases = []
    if gpu is not None:
        device, peak, _ = cast(tuple[str, float, int], find_device(gpu))
        basis = f"{mfu:.0%} of {peak / 1e12:,.0f} TFLOP/s, assumed"
        for phase in config.train.phases:
            batch, tokens = _rows(config, phase, store, vocab_size, phase.batch_size, devices)
            flops = tokens / batch.tokens * _flops(config, batch, vocab_size)
            seconds = _flops(config, batch, vocab_size, recompute=recompute) / (mfu * peak)
            found = _Measured(seconds, 0.0, None)
            phases.append(_phase(phase, batch, tokens, flops, found, devices))
    else:
        place = choose_device(config.train.device)
        is_gpu = place.type == "cuda"
        device = torch.cuda.get_device_name(place) if is_gpu else f"CPU, {torch.get_num_threads()} threads"
        basis = f"updates of each phase for {SECONDS:g} seconds on this machine" + ("" if store else ", on random rows")
        say(f"{config.name}: measuring {basis}")
        model.to(place)
        with Progress("plan", unit="micro-batches", shown=progress) as shown, subnormals_flushed():
            for phase in config.train.phases:
                batch, tokens = _rows(config, phase, store, vocab_size, GPU_ROWS if is_gpu else CPU_ROWS, devices)
                flops = tokens / batch.tokens * _flops(config, batch, vocab_size)
                found = _measure(config, model, batch, shown)
                free = _memory(place) - sum(memory.values())
                phases.append(_phase(phase, batch, tokens, flops, found, devices, free))
    return RunPlan(
        name=config.name,
        device=device,
        basis=basis,
        devices=devices,
        parameters=parameters_by_part(model),
        memory=memory,
        # In fp32 and in a ring: gradients once to add and once to tell; with a shared optimizer its weights as well.
        sent=(12 if config.train.shard_optimizer else 8) * count * (devices - 1) // devices,
        disk=_disk(config, count, store),
        phases=phases,
        hours=min(sum(phase.hours for phase in phases), (config.train.budget_seconds or math.inf) / 3600),
    )


class _Measured(NamedTuple):
    """Seconds of a micro-batch and of what an update adds to it, and bytes that a row keeps for the backward pass."""

    micro_seconds: float
    update_seconds: float
    row_bytes: float | None


def _phase(
    phase: Phase, batch: Batch, tokens: float, flops: float, found: _Measured, devices: int, free: int = 0
) -> PhasePlan:
    micro = phase.batch_size // phase.parts // devices
    rows = phase.rows_before(phase.steps)
    row_seconds = found.micro_seconds * tokens / batch.tokens / phase.batch_size / devices
    return PhasePlan(
        length=phase.length,
        steps=phase.steps,
        batch_size=phase.batch_size,
        rows=rows,
        micro_batch=micro,
        tokens=tokens,
        flops=flops,
        activation_bytes=None if found.row_bytes is None else round(found.row_bytes * micro),
        fitting_rows=None if found.row_bytes is None else max(0, int(free / found.row_bytes)),
        seconds=phase.batch_size * row_seconds + found.update_seconds,
        hours=(rows * row_seconds + phase.steps * found.update_seconds) / 3600,
    )


def _flops(config: Config, batch: Batch, vocab_size: int, *, recompute: bool = False) -> float:
    return training_flops(
        config.model,
        vocab_size,
        rows=batch.rows,
        tokens=batch.tokens,
        predictions=batch.predictions,
        pairs=config.pairs.rule != "none",
        recompute=recompute,
    )


def _store(config: Config) -> TokenStore | None:
    try:
        return TokenStore.open(store_dir(config))
    except RequestError:
        return None


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _rows(
    config: Config, phase: Phase, store: TokenStore | None, vocab_size: int, most: int, devices: int
) -> tuple[Batch, float]:
    """A device's micro-batch of the phase, and tokens of a full update: of the prepared corpus, or of random tokens.

    The first rows of a corpus may be fuller than others (4% in a trial with 32), so the tokens are those of many.
    """
    rows = min(phase.batch_size // phase.parts // devices, most)
    if store is not None:
        stream = BatchStream.create(
            store,
            "train",
            pairs=config.pairs,
            masking=config.masking,
            length=phase.length,
            batch_size=rows,
            seed=config.train.seed,
        )
        mean = float(row_sizes(stream.plans.epoch(0)[:MANY]).sum(axis=1).mean())
        return stream.rows(0, rows), phase.batch_size * mean
    length = max(2, round(FILL * phase.length))
    batch = random_rows(rows, length, vocab_size, rate=config.masking.rate, pairs=config.pairs.rule != "none")
    return batch, float(phase.batch_size * length)


def _measure(config: Config, model: BertForPreTraining, host: Batch, progress: Progress) -> _Measured:
    """Run a few updates of one and of two micro-batches; the rate is too small to change the weights."""
    device = next(model.parameters()).device
    batch = host.to(device)
    precision = choose_precision(config.train.precision, device)
    optimizer = build_optimizer(model, config.train.optimizer)

    def update(parts: int) -> float:
        begun = time.perf_counter()
        train_step(
            model.train(),
            optimizer,
            [batch] * parts,
            cast(Objective, pretraining_objective),
            pretraining_counts,
            Totals.empty(),
            weights={"mlm": 1.0, "nsp": config.train.nsp_weight},
            lr=1e-9,
            clip=config.train.clip,
            precision=precision,
        )
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - begun
        progress.add(parts)
        return seconds

    fewer = host.rows // 2  # what does not grow with the rows (a gradient of the vocabulary) is not counted to them
    kept = _kept_bytes(model, batch, precision)
    kept -= _kept_bytes(model, _first_rows(host, fewer).to(device), precision) if fewer else 0
    update(2)  # the first ones find no memory to use again
    turns, end = [(update(1), update(2))], time.perf_counter() + SECONDS
    while len(turns) < FEWEST or time.perf_counter() < end:
        turns.append((update(1), update(2)))
    one, two = (statistics.median(times) for times in zip(*turns, strict=True))
    micro = max(two - one, one / 2)
    return _Measured(micro, max(0.0, one - micro), kept / (batch.rows - fewer))


def _first_rows(batch: Batch, count: int) -> Batch:
    lengths = batch.attention_mask[:count].sum(1)
    tokens = int(lengths.sum())
    assert batch.masked_positions is not None
    assert batch.masked_labels is not None
    masked = batch.masked_positions < tokens
    label = batch.next_sentence_label
    return Batch.from_lengths(
        batch.input_ids[:tokens],
        batch.token_type_ids[:tokens],
        lengths,
        masked_positions=batch.masked_positions[masked],
        masked_labels=batch.masked_labels[masked],
        next_sentence_label=None if label is None else label[:count],
    )


def _kept_bytes(model: BertForPreTraining, batch: Batch, precision: str) -> int:
    """Bytes of the tensors that autograd keeps of a forward pass, the weights not counted.

    Where layers are computed again, one at a time is there in full beside the inputs of all.
    """
    encoder = model.bert.encoder
    kept = _saved_bytes(model, batch, precision)
    if not encoder.recompute:
        return kept
    encoder.recompute = False
    try:
        return kept + (_saved_bytes(model, batch, precision) - kept) // len(encoder.layer)
    finally:
        encoder.recompute = True


def _saved_bytes(model: BertForPreTraining, batch: Batch, precision: str) -> int:
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with autocast(batch.input_ids.device, precision):
            terms = pretraining_objective(model, batch)
        del terms
    return sum(kept.values())


def _disk(config: Config, count: int, store: TokenStore | None) -> dict[str, int]:
    train = config.train
    permanent = sum(phase.steps for phase in train.phases) // train.keep_every if train.keep_every else 0
    checkpoints = train.keep + 1 + permanent  # one more while it is written
    disk = {f"{checkpoints} checkpoints": 12 * count * checkpoints, "best weights": 4 * count}
    if store is not None:
        disk["prepared corpus"] = sum(path.stat().st_size for path in Path(store.directory).iterdir() if path.is_file())
    return disk


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def _lines(plan: RunPlan) -> Iterator[str]:
    total = sum(plan.parameters.values())
    several = "" if plan.devices == 1 else f"{plan.devices} x "
    yield f"{plan.name} on {several}{plan.device} ({plan.basis})"
    yield f"  parameters  {total:,}: " + ", ".join(f"{name} {count:,}" for name, count in plan.parameters.items())
    parts = ", ".join(f"{name} {_size(count)}" for name, count in plan.memory.items())
    each = "" if plan.devices == 1 else " on each"
    yield f"  memory      {_size(sum(plan.memory.values()))} and activations{each}: {parts}"
    if plan.sent:
        yield f"  sent        {_size(plan.sent)} by each device in an update; no time is reckoned for it"
    yield "  disk        " + ", ".join(f"{name} {_size(count)}" for name, count in plan.disk.items())
    for number, phase in enumerate(plan.phases, 1):
        ramp = "" if phase.rows == phase.steps * phase.batch_size else "up to "
        yield (
            f"  phase {number}     {phase.steps:,} updates of {ramp}{phase.batch_size:,} rows of {phase.length}:"
            f" {phase.tokens:,.0f} tokens, {phase.flops / 1e12:,.3g} TFLOP and {phase.seconds:.3g} s each;"
            f" {phase.tokens / phase.seconds:,.0f} tokens/s"
        )
        if phase.activation_bytes is not None:
            yield (
                f"              {_size(phase.activation_bytes)} of activations in a micro-batch of"
                f" {phase.micro_batch:,} rows; {phase.fitting_rows:,} rows would fit"
            )
    yield f"  training    {_duration(plan.hours)}, and evaluations"


def _duration(hours: float) -> str:
    if hours < 1:
        minutes = round(60 * hours)
        return f"{minutes or 'less than 1'} minute{'s' if minutes > 1 else ''}"
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:.1f} days"
