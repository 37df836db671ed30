"""Writing checkpoints: copied to memory while training waits, written, read back and rotated by a thread.

The order is: aside, every file synced, read back and compared with the memory it came from, hashed, manifest, rename;
only then are older ones removed. A save that fails leaves all older ones, and is raised by the next update.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from bertpt.errors import BertptError
from bertpt.files import fingerprint, staged_directory, write_json, write_manifest
from bertpt.train.checkpoints.checkpoint import checkpoint_path, checkpoints, random_name
from bertpt.train.ranks import ALONE, Ranks
from bertpt.train.updates.optim import own_part

_log = logging.getLogger(__name__)

_ROOM = 2**20  # bytes beside the tensors: JSON, headers, the folder

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Keep:
    """Which checkpoints stay: the ``newest``, and those of updates divisible by ``every`` (0: none) for good."""

    newest: int
    every: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of a training's state, in memory of its own on the CPU: later updates do not change it."""

    step: int
    files: dict[str, Tensors]
    state: dict[str, Any]

    @classmethod
    def of(
        cls, step: int, model: nn.Module, optimizer: Optimizer, state: dict[str, Any], ranks: Ranks = ALONE
    ) -> Snapshot:
        """Copy weights, moments and random state, which takes as long as copying their bytes.

        Args:
            state: plain data: the position of the run and what a loader must know (model, vocabulary size).
            ranks: those that train together: all take part, the first gets what the others hold.
        """
        own = own_part(optimizer)
        if own is not optimizer:
            moments = ranks.collected(copied(_optimizer_tensors(model, own)))
        else:
            moments = copied(_optimizer_tensors(model, own)) if ranks.is_main else {}
        random = {
            random_name(device, rank): tensor
            for device, drawn in copied(_random_state()).items()
            for rank, tensor in enumerate(ranks.stacked(drawn))
        }
        weights = copied(model.state_dict()) if ranks.is_main else {}
        return cls(step, {"model": weights, "optimizer": moments, "random": random}, state)

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        tensors = (tensor for file in self.files.values() for tensor in file.values())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def copied(tensors: Tensors) -> dict[str, Tensor]:
    """The same on the CPU, in memory of its own."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def check_room(run: Path, snapshot: Snapshot) -> None:
    """Refuse to write what the disk cannot take beside the checkpoints that are there.

    Raises:
        BertptError: the run's directory is gone, or too little is free; says how much is needed.
    """
    if not run.is_dir():
        raise BertptError(f"{run}: the run's directory is gone: nothing can be saved; bring it back to go on with it")
    needed = snapshot.size + _ROOM
    free = shutil.disk_usage(run).free
    if free < needed:
        raise BertptError(
            f"{run}: a checkpoint needs {needed / 2**20:,.1f} MiB, {free / 2**20:,.1f} MiB are free; make room and give"
            " the same command, which goes on from the last checkpoint"
        )


def write_checkpoint(run: Path, snapshot: Snapshot, keep: Keep) -> Path:
    """Write the checkpoint of a snapshot and, once it is verified, remove those that ``keep`` no longer names.

    Raises:
        BertptError: the disk is full or forbidden, weights are not finite, or what was written reads otherwise.
    """
    final, begun = checkpoint_path(run, snapshot.step), time.monotonic()
    with staged_directory(final) as aside:
        for name, tensors in snapshot.files.items():
            _write(tensors, aside / f"{name}.safetensors", final)
        write_json(aside / "state.json", snapshot.state)
        counts = {"step": snapshot.step}
        key = fingerprint(snapshot.step)
        write_manifest(aside, stage="checkpoint", key=key, inputs={}, settings={}, counts=counts)
    _rotate(run, snapshot.step, keep)
    _log.debug("%s: written and read back in %.1f s", final, time.monotonic() - begun)
    return final


def _rotate(run: Path, step: int, keep: Keep) -> None:
    """Those above ``step`` were damaged and passed over, for the run stands at ``step``: they do not count."""
    before = [
        path for number, path in checkpoints(run) if number < step and not (keep.every and number % keep.every == 0)
    ]
    for path in before[: max(0, len(before) - (keep.newest - 1))]:
        # A process that is killed while it removes leaves nothing half-removed under a final name.
        with contextlib.suppress(OSError):
            path.replace(path.with_name(f".{path.name}.{os.getpid()}.tmp"))
    remove_halves(run)


def remove_halves(run: Path) -> None:
    """Remove what processes that were killed while they saved have left; only for the one that works in ``run``."""
    for path in (run / "checkpoints").glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def save_checkpoint(
    run: Path, step: int, model: nn.Module, optimizer: Optimizer, state: dict[str, Any], *, keep: int, every: int = 0
) -> Path:
    """Copy and write a checkpoint at once; see :func:`write_checkpoint`."""
    return write_checkpoint(run, Snapshot.of(step, model, optimizer, state), Keep(keep, every))


def save_weights(directory: Path, step: int, model: nn.Module, state: dict[str, Any]) -> None:
    """Write the weights of ``step`` alone, in place of those that are there: to use, not to go on with."""
    write_weights(directory, step, copied(model.state_dict()), state)


def write_weights(directory: Path, step: int, weights: Tensors, state: dict[str, Any]) -> None:
    """:func:`save_weights` of weights that were copied before."""
    with staged_directory(directory) as aside:
        _write(weights, aside / "model.safetensors", directory)
        write_json(aside / "state.json", state)
        write_manifest(aside, stage="weights", key=fingerprint(step), inputs={}, settings={}, counts={"step": step})


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file; a full disk is an OSError, as of any other file."""
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk is told by its number alone
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _write(tensors: Tensors, path: Path, final: Path) -> None:
    """Write tensors and read them back.

    A disk, a file system or memory that is at fault shows here, while the checkpoint before is still there.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BertptError(f"{final}: not saved: {name} holds numbers that are not finite; older ones stay")
    write_tensors(tensors, path)
    try:
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise BertptError(f"{final / path.name}: what was written cannot be read: {error}") from error
    wrong = [name for name, tensor in tensors.items() if name not in found or not torch.equal(found[name], tensor)]
    if wrong:
        raise BertptError(f"{final / path.name}: what was written reads otherwise ({wrong[0]}); is the disk sound?")


def _optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


class Writer:
    """One thread that does jobs in their order, while training goes on.

    One job may wait while another is done; a third waits for room, so that memory stays bounded.
    """

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], object]] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None

    def submit(self, job: Callable[[], object]) -> None:
        """Have a job done; raises the fault of an earlier one."""
        self.check()
        if self._thread is None:
            # A daemon: whoever leaves by a second Ctrl-C does not wait for it. What it was writing lies aside.
            self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def check(self) -> None:
        """Raise the fault of a job, once."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def wait(self) -> None:
        """Until all jobs are done; raises the fault of one."""
        self._jobs.join()
        self.check()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                if self._fault is None:
                    job()
            except BaseException as error:
                self._fault = error
            finally:
                del job  # and with it the copy, while the next is awaited
                self._jobs.task_done()
