"""``bertpt inspect checkpoint``: what a checkpoint holds, and whether it is sound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertpt.data.inspect.layout import sections, table
from bertpt.errors import RequestError
from bertpt.files import read_json, read_manifest
from bertpt.train.checkpoints.checkpoint import Checkpoint, newest_checkpoint, open_checkpoint
from bertpt.train.rundir import open_run


@dataclass(frozen=True, slots=True)
class TensorFigures:
    """One tensor; values that are not finite are left out of norm and bounds."""

    name: str
    shape: list[int]
    dtype: str
    norm: float
    smallest: float
    largest: float
    not_finite: int


@dataclass(frozen=True, slots=True)
class CheckpointFigures:
    """A checkpoint whose files have the hashes that its manifest says."""

    directory: str
    step: int
    steps: int | None
    model: dict[str, Any]
    vocab_size: int
    nsp: bool
    parameters: int
    by_module: dict[str, int]
    dtypes: dict[str, int]
    files: dict[str, dict[str, Any]]
    run: dict[str, str]
    tokenizer: str | None
    tensors: list[TensorFigures]
    optimizer_tensors: int
    not_finite: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        return list(sections(_parts(self)))


def inspect_checkpoint(path: Path, *, say: Any = lambda message: None) -> CheckpointFigures:
    """Verify a checkpoint and describe it.

    Args:
        path: a checkpoint, or a run, of which the newest intact one is taken.
        say: gets a line for each damaged one that is passed over.

    Raises:
        RequestError: neither, or the checkpoint is damaged.
        BertptError: the run has no intact checkpoint.
    """
    if (path / "state.json").is_file() or not (path / "config.yaml").is_file():
        if not path.is_dir():
            raise RequestError(f"{path}: no such directory; give a run or one of its checkpoints")
        checkpoint = open_checkpoint(path)
    else:
        found = newest_checkpoint(path, say)
        if found is None:
            raise RequestError(f"{path}: has no checkpoint yet; `bertpt pretrain` goes on with it")
        checkpoint = found
    run = checkpoint.directory.parent.parent
    return _figures(checkpoint, run if (run / "run.json").is_file() else None)


def _figures(checkpoint: Checkpoint, run: Path | None) -> CheckpointFigures:
    weights, optimizer = checkpoint.tensors("model"), checkpoint.tensors("optimizer")
    tensors = [_tensor(name, tensor) for name, tensor in sorted(weights.items())]
    moments = [name for name, tensor in sorted(optimizer.items()) if not bool(torch.isfinite(tensor).all())]
    modules: Counter[str] = Counter()
    for name, tensor in weights.items():
        modules[module_of(name)] += tensor.numel()
    manifest, state = read_manifest(checkpoint.directory) or {}, checkpoint.state
    return CheckpointFigures(
        directory=str(checkpoint.directory),
        step=checkpoint.step,
        steps=_steps(run),
        model=dict(state.get("model", {})),
        vocab_size=int(state.get("vocab_size", 0)),
        nsp=bool(state.get("nsp")),
        parameters=sum(tensor.numel() for tensor in weights.values()),
        by_module=dict(sorted(modules.items(), key=lambda item: _natural(item[0]))),
        dtypes=dict(Counter(_dtype(tensor) for tensor in weights.values())),
        files=dict(manifest.get("files", {})),
        run={} if run is None else _fingerprints(run),
        tokenizer=str(run / "tokenizer") if run else None,
        tensors=tensors,
        optimizer_tensors=len(optimizer),
        not_finite=[tensor.name for tensor in tensors if tensor.not_finite]
        + [f"optimizer: {name}" for name in moments],
    )


def _fingerprints(run: Path) -> dict[str, str]:
    """Of what the run was trained on, by name."""
    found = {str(key): str(value) for key, value in read_json(run / "run.json").items()}
    tokenizer = read_manifest(run / "tokenizer")
    return found | ({"tokenizer": tokenizer["fingerprint"]} if tokenizer else {})


def _steps(run: Path | None) -> int | None:
    """Updates that the run's configuration asks for."""
    return None if run is None else sum(phase.steps for phase in open_run(run).config.train.phases)


def module_of(name: str) -> str:
    """The part of the model that a tensor belongs to, one for each layer."""
    parts = name.split(".")
    if "layer" in parts:
        return ".".join(parts[: parts.index("layer") + 2])
    return ".".join(parts[:2])


def _natural(name: str) -> list[Any]:
    """Orders layer.2 before layer.10, embeddings first and heads last."""
    rank = 0 if "embeddings" in name else 1 if ".layer." in name else 2 if "pooler" in name else 3
    return [rank, *[int(part) if part.isdigit() else -1 for part in name.split(".")], name]


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _tensor(name: str, tensor: Tensor) -> TensorFigures:
    values = tensor.detach().float().flatten()
    finite = values[torch.isfinite(values)]
    return TensorFigures(
        name=name,
        shape=list(tensor.shape),
        dtype=_dtype(tensor),
        norm=float(torch.linalg.vector_norm(finite.double())) if len(finite) else 0.0,
        smallest=float(finite.min()) if len(finite) else 0.0,
        largest=float(finite.max()) if len(finite) else 0.0,
        not_finite=len(values) - len(finite),
    )


def _parts(figures: CheckpointFigures) -> Iterator[tuple[str, list[str]]]:
    of = f" of {figures.steps:,}" if figures.steps else ""
    heads = "heads for words and pairs" if figures.nsp else "a head for words"
    yield (
        f"{figures.directory}: update {figures.step:,}{of}",
        [
            f"  {figures.parameters:,} parameters ({', '.join(figures.dtypes)}), {heads}",
            f"  vocab_size {figures.vocab_size}, {_shape(figures.model)}",
            f"  tokenizer: {figures.tokenizer or 'not beside it'}",
            *(f"  {name} fingerprint: {value[:16]}" for name, value in figures.run.items()),
        ],
    )
    rows = [(name, f"{facts['bytes']:,}", facts["sha256"][:16]) for name, facts in figures.files.items()]
    yield "Files, each with the hash that the manifest says", table(("file", "bytes", "SHA-256"), rows)
    modules = [(name, f"{count:,}", f"{count / figures.parameters:.1%}") for name, count in figures.by_module.items()]
    yield "Parameters by module", table(("module", "parameters", "share"), modules)
    tensors = [
        (t.name, " x ".join(map(str, t.shape)), t.dtype, f"{t.norm:.4g}", f"{t.smallest:.3g}", f"{t.largest:.3g}")
        for t in figures.tensors
    ]
    yield "Tensors", table(("tensor", "shape", "type", "norm", "least", "most"), tensors)
    yield "Soundness", [f"  {line}" for line in _sound(figures)]


def _sound(figures: CheckpointFigures) -> Iterator[str]:
    if figures.not_finite:
        more = f" and {len(figures.not_finite) - 5} more" if len(figures.not_finite) > 5 else ""
        yield f"NaN or infinite values in {', '.join(figures.not_finite[:5])}{more}: go back to an earlier checkpoint"
    else:
        yield f"no NaN and no infinite value in the weights and {figures.optimizer_tensors:,} tensors of the optimizer"


def _shape(model: Mapping[str, Any]) -> str:
    keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
    return ", ".join(f"{key} {model[key]}" for key in keys if model.get(key) is not None)
