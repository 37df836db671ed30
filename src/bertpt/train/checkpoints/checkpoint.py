"""Checkpoints: found, verified before they are used, loaded. ``saving`` writes them.

``checkpoints/step-00001000/`` holds ``model.safetensors``, ``optimizer.safetensors``, ``random.safetensors``,
``state.json`` and ``manifest.json``. Nothing is pickled.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from bertpt.errors import BertptError, RequestError
from bertpt.files import MANIFEST, OWN_HASH, read_json, read_manifest, sha256_file
from bertpt.train.updates.optim import own_part

_log = logging.getLogger(__name__)
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


def checkpoint_path(run: Path, step: int) -> Path:
    """Where the checkpoint of an update lies."""
    return run / "checkpoints" / f"step-{step:08d}"


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """Step and directory of each checkpoint of a run, by number, oldest first."""
    names = ((_NAME.match(path.name), path) for path in (run / "checkpoints").glob("step-*"))
    return sorted((int(match[1]), path) for match, path in names if match)


def open_weights(directory: Path) -> Checkpoint:
    """Verify what ``saving.save_weights`` wrote; see :func:`open_checkpoint`."""
    return open_checkpoint(directory, frozenset({"model.safetensors", "state.json"}))


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
    if OWN_HASH not in manifest or files - manifest["files"].keys() or (named and int(named[1]) != step):
        raise RequestError(f"{directory / MANIFEST}: damaged: it is not of this checkpoint")
    _log.debug("%s: intact (%d files)", directory, len(manifest["files"]))
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
    """Load weights and, with an optimizer, its state. Every name and shape must agree.

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
    own = own_part(optimizer)
    updated = {id(parameter) for group in own.param_groups for parameter in group["params"]}
    for name, tensor in tensors.items():
        parameter, _, key = name.rpartition("/")
        target = parameters[parameter]
        if id(target) in updated:
            # Adam's step count stays where the optimizer keeps it; moments live beside their parameter.
            own.state[target][key] = tensor.to(target.device) if tensor.dim() or target.is_cuda else tensor


def restore_random(checkpoint: Checkpoint, rank: int = 0, size: int = 1) -> int:
    """Go on with the random numbers of process ``rank``, where ``size`` processes wrote the checkpoint.

    Returns:
        How many did.
    """
    random = checkpoint.tensors("random")
    writers = sum(name.startswith("cpu") for name in random)
    if writers != size:
        return writers
    torch.set_rng_state(random[random_name("cpu", rank)])
    if (name := random_name("cuda", rank)) in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random[name])
    return writers


def random_name(device: str, rank: int) -> str:
    """Name of a generator's state in a checkpoint: ``cpu`` of the first process, ``cpu/1`` of the next."""
    return f"{device}/{rank}" if rank else device


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
