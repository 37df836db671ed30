"""Checkpoints: written aside and renamed, every file hashed, verified before they are used.

``checkpoints/step-00001000/`` holds ``model.safetensors``, ``optimizer.safetensors``, ``random.safetensors``,
``state.json`` and ``manifest.json``. Nothing is pickled.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from bertpt.errors import BertptError, RequestError
from bertpt.files import (
    MANIFEST,
    fingerprint,
    read_json,
    read_manifest,
    sha256_file,
    staged_directory,
    write_json,
    write_manifest,
)

_NAME = re.compile(r"^step-(\d{8,})$")
_FILES = frozenset({"model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint directory."""

    directory: Path
    step: int
    state: dict[str, Any]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of ``<name>.safetensors``, on the CPU."""
        try:
            return load_file(self.directory / f"{name}.safetensors")
        except (SafetensorError, OSError) as error:
            raise BertptError(f"{self.directory}/{name}.safetensors: cannot be read: {error}") from error


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """Step and directory of each checkpoint of a run, by number, oldest first."""
    names = ((_NAME.match(path.name), path) for path in (run / "checkpoints").glob("step-*"))
    return sorted((int(match[1]), path) for match, path in names if match)


def save_checkpoint(
    run: Path, step: int, model: nn.Module, optimizer: Optimizer, state: dict[str, Any], *, keep: int
) -> Path:
    """Write the checkpoint of ``step`` and, once it is complete, remove all but the ``keep`` newest up to it.

    Those above ``step`` were damaged and passed over, for the run stands at ``step``: they do not count.

    Args:
        state: plain data: the position of the run and what a loader must know (model, vocabulary size).
    """
    final = run / "checkpoints" / f"step-{step:08d}"
    with staged_directory(final) as aside:
        weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
        _write(weights, aside / "model.safetensors", metadata={"format": "pt"})
        _write(_optimizer_tensors(model, optimizer), aside / "optimizer.safetensors")
        _write(_random_state(), aside / "random.safetensors")
        write_json(aside / "state.json", state)
        write_manifest(aside, stage="checkpoint", key=fingerprint(step), inputs={}, settings={}, counts={"step": step})
    before = [path for number, path in checkpoints(run) if number < step]
    halves = final.parent.glob(".step-*.tmp")  # of a process that was killed while saving
    for path in [*before[: max(0, len(before) - (keep - 1))], *halves]:
        shutil.rmtree(path, ignore_errors=True)
    return final


def save_weights(directory: Path, step: int, model: nn.Module, state: dict[str, Any]) -> None:
    """Write the weights of ``step`` alone, in place of those that are there: to use, not to go on with."""
    with staged_directory(directory) as aside:
        weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
        save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
        write_json(aside / "state.json", state)
        write_manifest(aside, stage="weights", key=fingerprint(step), inputs={}, settings={}, counts={"step": step})


def open_weights(directory: Path) -> Checkpoint:
    """Verify what :func:`save_weights` wrote; see :func:`open_checkpoint`."""
    return open_checkpoint(directory, frozenset({"model.safetensors", "state.json"}))


def _write(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:  # a full disk is told by its number alone
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def open_checkpoint(directory: Path, files: Set[str] = _FILES) -> Checkpoint:
    """Verify the hash of every file of a checkpoint, which holds at least ``files``.

    Raises:
        RequestError: unfinished or damaged; names the file.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        raise RequestError(f"{directory}: not a finished checkpoint (no manifest.json)")
    try:
        for name, facts in manifest["files"].items():
            if sha256_file(directory / name) != facts["sha256"]:
                raise RequestError(f"{directory / name}: damaged: its SHA-256 is not that of the manifest")
        named, step = _NAME.match(directory.name), int(manifest["counts"]["step"])
    except (KeyError, TypeError, ValueError, OSError) as error:  # the manifest itself has no hash
        raise RequestError(f"{directory / MANIFEST}: damaged: {error!r}") from error
    if files - manifest["files"].keys() or (named and int(named[1]) != step):
        raise RequestError(f"{directory / MANIFEST}: damaged: it is not of this checkpoint")
    return Checkpoint(directory, step, read_json(directory / "state.json"))


def newest_checkpoint(run: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint of a run; damaged ones are named and passed over.

    Raises:
        BertptError: there are checkpoints, but none is intact.
    """
    found = checkpoints(run)
    for _, directory in reversed(found):
        try:
            return open_checkpoint(directory)
        except RequestError as error:
            say(f"passing over a damaged checkpoint: {error}")
    if found:
        raise BertptError(f"{run / 'checkpoints'}: no intact checkpoint; --overwrite starts the run again")
    return None


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer | None = None) -> None:
    """Load weights and, with an optimizer, its state and the random state. Every name and shape must agree.

    Raises:
        RequestError: tensors are missing, unexpected, or of another shape.
    """
    weights = checkpoint.tensors("model")
    _check_names(checkpoint.directory / "model.safetensors", weights, dict(model.state_dict()))
    if optimizer is None:
        model.load_state_dict(weights)
        return
    tensors = checkpoint.tensors("optimizer")
    parameters = dict(model.named_parameters())
    _check_moments(checkpoint.directory / "optimizer.safetensors", tensors, parameters)
    model.load_state_dict(weights)
    for name, tensor in tensors.items():
        parameter, _, key = name.rpartition("/")
        target = parameters[parameter]
        # Adam's step count stays where the optimizer keeps it; moments live beside their parameter.
        optimizer.state[target][key] = tensor.to(target.device) if tensor.dim() or target.is_cuda else tensor
    random = checkpoint.tensors("random")
    torch.set_rng_state(random["cpu"])
    if "cuda" in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])


def _check_names(path: Path, found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    faults = [f"missing {name}" for name in sorted(wanted.keys() - found.keys())]
    faults += [f"unexpected {name}" for name in sorted(found.keys() - wanted.keys())]
    faults += [
        f"{name} has shape {list(found[name].shape)}, the model {list(wanted[name].shape)}"
        for name in sorted(found.keys() & wanted.keys())
        if found[name].shape != wanted[name].shape
    ]
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise RequestError(f"{path}: does not fit the model: {'; '.join(faults[:5])}{more}")


def _check_moments(path: Path, found: dict[str, Tensor], parameters: dict[str, nn.Parameter]) -> None:
    faults = []
    for name, tensor in found.items():
        parameter = parameters.get(name.rpartition("/")[0])
        if parameter is None or (tensor.dim() and tensor.shape != parameter.shape):
            faults.append(f"{name} {list(tensor.shape)}")
    if faults:
        raise RequestError(f"{path}: does not fit the model: {'; '.join(faults[:5])}")


def _optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.detach().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state
