"""One way to open a trained model, wherever it came from: a run, a checkpoint, an import, a transformers directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bertpt.config.schema import Model
from bertpt.data.tokenizer.wordpiece import Normalising, WordPieceTokenizer
from bertpt.data.tokenizer.wordpiece import build as build_tokenizer
from bertpt.errors import RequestError
from bertpt.files import MANIFEST, read_json, read_manifest, sha256_file
from bertpt.interop.foreign import Vocabulary, read_foreign, read_vocabulary
from bertpt.interop.hf_config import NETWORK
from bertpt.interop.names import few, shapes
from bertpt.model.pretraining import BertForPreTraining
from bertpt.progress import say as say_line
from bertpt.tasks.rundir import is_task_run
from bertpt.train.checkpoints.checkpoint import Checkpoint, newest_checkpoint, open_checkpoint, open_weights
from bertpt.train.rundir import open_run

IMPORT_STAGE = "import"
HEADS = ("mlm", "nsp")


@dataclass(frozen=True, slots=True)
class Pretrained:
    """Weights with all that is needed to use them.

    Attributes:
        model: the shape of the network; its padded rows are those of ``weights``.
        vocab_size: entries of the tokenizer, at most the rows of the token embedding.
        heads: those of "mlm" and "nsp" that are in the weights.
        pooler: whether the weights have one.
        weights: fp32 on the CPU, by the names of ``BertForPreTraining`` here.
        tokenizer: folder of ``tokenizer.json`` or, in a directory of others, perhaps only ``vocab.txt``.
        origin: where it came from, for people.
        tokens: the vocabulary in the order of ids.
        normalising: what happens to text before it is split.
        notes: what was done to the weights on reading, for people.
    """

    model: Model
    vocab_size: int
    heads: frozenset[str]
    pooler: bool
    weights: dict[str, Tensor]
    tokenizer: Path
    origin: str
    tokens: list[str]
    normalising: Normalising
    notes: tuple[str, ...] = ()

    def open_tokenizer(self) -> WordPieceTokenizer:
        """The tokenizer, from whatever files there are."""
        return WordPieceTokenizer(build_tokenizer(self.tokens, self.normalising), str(self.tokenizer))


def load_pretrained(path: Path, *, lowercase: bool | None = None, say: Callable[[str], None] = say_line) -> Pretrained:
    """Open a run (its newest intact checkpoint), a checkpoint, an imported or a transformers directory.

    Args:
        path: the directory.
        lowercase: whether text is lower-cased, for a transformers directory whose ``vocab.txt`` comes alone.
        say: gets the names of damaged checkpoints that are passed over.

    Raises:
        RequestError: nothing of the kind, a file is damaged, or the files contradict each other.
    """
    if not path.is_dir():
        raise RequestError(f"{path}: no such directory; a run, a checkpoint, an import or a transformers directory is")
    if is_task_run(path):
        raise RequestError(
            f"{path}: is a fine-tuned run; `bertpt eval`, `bertpt export hf` and `bertpt predict classification`"
            " take it; here a pre-trained one is expected"
        )
    if (path / "config.yaml").is_file():
        run = open_run(path)
        checkpoint = newest_checkpoint(path, say)
        if checkpoint is None:
            raise RequestError(f"{path}: has no checkpoint yet; `bertpt pretrain` goes on with it")
        return _from_checkpoint(checkpoint, run.tokenizer)
    if (path / "config.json").is_file():
        return _from_foreign(path, lowercase)
    manifest = read_manifest(path)
    if manifest is not None and manifest.get("stage") == "checkpoint":
        return _from_checkpoint(open_checkpoint(path), path.parent.parent / "tokenizer")
    if manifest is not None and manifest.get("stage") == "weights" and (path.parent / "config.yaml").is_file():
        return _from_checkpoint(open_weights(path), path.parent / "tokenizer")
    if manifest is not None and manifest.get("stage") == IMPORT_STAGE:
        return _from_import(path, manifest)
    raise RequestError(
        f"{path}: neither a run (config.yaml), a checkpoint or import (manifest.json), nor a transformers directory"
        " (config.json)"
    )


def build(pretrained: Pretrained, *, nsp: bool) -> tuple[BertForPreTraining, list[str]]:
    """A model with these weights; what they lack keeps its random initial values.

    Args:
        pretrained: the weights.
        nsp: whether the model gets pooler and next-sentence head. What it has no place for is left out.

    Returns:
        The model in training mode on the CPU, and the names of the parameters that are newly initialised.

    Raises:
        RequestError: something else than a head is missing, or has another shape.
    """
    model = BertForPreTraining(pretrained.model, pretrained.vocab_size, nsp=nsp)
    own, given = model.state_dict(), pretrained.weights
    new = sorted(own.keys() - given.keys())
    heads = ("bert.pooler.", "cls.")
    faults = [name for name in new if not name.startswith(heads)]
    faults += [name for name in own.keys() & given.keys() if own[name].shape != given[name].shape]
    if faults:
        raise RequestError(f"{pretrained.origin}: missing or of another shape: {few(faults)}")
    with torch.no_grad():
        for name in own.keys() & given.keys():
            own[name].copy_(given[name])
    return model, new


def _from_foreign(path: Path, lowercase: bool | None) -> Pretrained:
    found = read_foreign(path, lowercase=lowercase)
    return Pretrained(
        model=found.model,
        vocab_size=len(found.vocabulary.tokens),
        heads=found.heads,
        pooler=found.pooler,
        weights=found.weights,
        tokenizer=path,
        origin=f"{path} (transformers)",
        tokens=found.vocabulary.tokens,
        normalising=found.vocabulary.normalising,
        notes=tuple(found.notes),
    )


def _from_checkpoint(checkpoint: Checkpoint, tokenizer: Path) -> Pretrained:
    vocabulary = read_vocabulary(tokenizer)
    return _from_own(
        checkpoint.directory,
        checkpoint.state,
        checkpoint.tensors("model"),
        vocabulary,
        tokenizer,
        str(checkpoint.directory),
    )


def _from_import(path: Path, manifest: dict[str, Any]) -> Pretrained:
    for name, facts in manifest["files"].items():
        if sha256_file(path / name) != facts["sha256"]:
            raise RequestError(f"{path / name}: damaged: its SHA-256 is not that of {MANIFEST}")
    try:
        weights = load_file(path / "model.safetensors")
    except (SafetensorError, OSError) as error:
        raise RequestError(f"{path / 'model.safetensors'}: cannot be read: {error}") from error
    state = read_json(path / "state.json")
    vocabulary = read_vocabulary(path / "tokenizer")
    origin = f"{path} (imported from {state.get('origin')})"
    return _from_own(path, state, weights, vocabulary, path / "tokenizer", origin)


def _from_own(
    path: Path, state: dict[str, Any], weights: dict[str, Tensor], vocabulary: Vocabulary, tokenizer: Path, origin: str
) -> Pretrained:
    """From files of ours: the weights go by our names."""
    try:
        model = Model.model_validate({key: value for key, value in state["model"].items() if key in NETWORK})
        vocab_size = int(state["vocab_size"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RequestError(f"{path / 'state.json'}: does not say what model it is: {error!r}") from error
    if len(vocabulary.tokens) != vocab_size:
        raise RequestError(
            f"{path}: trained with {vocab_size:,} entries, the tokenizer {tokenizer} has {len(vocabulary.tokens):,}"
        )
    heads = {head for head in HEADS if weights.keys() & shapes(model, vocab_size)[head].keys()}
    return Pretrained(
        model=model,
        vocab_size=vocab_size,
        heads=frozenset(heads),
        pooler="bert.pooler.dense.weight" in weights,
        weights=weights,
        tokenizer=tokenizer,
        origin=origin,
        tokens=vocabulary.tokens,
        normalising=vocabulary.normalising,
    )
