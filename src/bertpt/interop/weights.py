"""Reading weight files of others: safetensors or ``pytorch_model.bin``, in one file or sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bertpt.errors import RequestError
from bertpt.files import read_json
from bertpt.interop.names import few

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_OTHER = ("tf_model.h5", "flax_model.msgpack", "bert_model.ckpt.index", "model.onnx")
_ZIP = b"PK\x03\x04"


def weight_file(directory: Path) -> Path:
    """The file (or index of shards) that holds the weights, safetensors first.

    Raises:
        RequestError: there is none.
    """
    for name in WEIGHT_FILES:
        if (directory / name).is_file():
            return directory / name
    others = [name for name in _OTHER if (directory / name).is_file()]
    found = f"; {others[0]} is not read: save it as safetensors with transformers first" if others else ""
    raise RequestError(f"{directory}: holds neither model.safetensors nor pytorch_model.bin{found}")


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a weight file, on the CPU; an index is followed to its shards.

    Raises:
        RequestError: the file is damaged or holds something else than tensors.
    """
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickled(path)


def _read_shards(index: Path) -> dict[str, Tensor]:
    value = read_json(index)
    places = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise RequestError(f"{index}: weight_map: a mapping of tensors to files is expected")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(places.values())):
        if Path(shard).name != shard or shard.endswith(".json"):
            raise RequestError(f"{index}: {shard!r} is not a file beside it")
        inside = read_weights(index.with_name(shard))
        if wrong := {name for name in inside if places.get(name) != shard} | {
            name for name, place in places.items() if place == shard and name not in inside
        }:
            raise RequestError(f"{index}: does not agree with {shard} on {few(wrong)}")
        tensors |= inside
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise RequestError(f"{path}: damaged or no safetensors file: {' '.join(str(error).split())}") from error


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """A PyTorch file, tensors only: code inside it is never run. The only place where one is loaded."""
    try:
        with path.open("rb") as file:
            zipped = file.read(4) == _ZIP
        # Files from before PyTorch 1.6 are no zip archives, which is what a memory map needs.
        value: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # whatever a damaged pickle brings up
        reason = next(iter(str(error).split("\n")), "")
        raise RequestError(f"{path}: damaged, or holds more than tensors: {type(error).__name__}: {reason}") from error
    if not isinstance(value, dict) or not all(isinstance(n, str) and isinstance(t, Tensor) for n, t in value.items()):
        raise RequestError(f"{path}: a mapping of names to tensors is expected")
    return dict(value)
