"""``bertpt import``: a transformers directory becomes one of ours, checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertpt.data.tokenizer import wordpiece
from bertpt.errors import BertptError, RequestError
from bertpt.files import (
    FORMAT_VERSION,
    fingerprint,
    read_manifest,
    sha256_file,
    staged_directory,
    write_json,
    write_manifest,
)
from bertpt.interop.hf_config import NETWORK
from bertpt.interop.names import shapes
from bertpt.interop.pretrained import IMPORT_STAGE, Pretrained, load_pretrained
from bertpt.interop.weights import weight_file
from bertpt.progress import say as say_line
from bertpt.train.checkpoints.saving import write_tensors

_PARTS = {"pooler": "pooler", "mlm": "masked-word head (mlm)", "nsp": "next-sentence head (nsp)"}
_READ = ("config.json", "tokenizer.json", "vocab.txt", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported.

    Attributes:
        directory: the import.
        pretrained: the model that was read.
        found: parts of the network in the weights: encoder, pooler, mlm, nsp.
        absent: tensors of the parts that are not, by part; training on starts them from random values.
    """

    directory: Path
    pretrained: Pretrained
    found: list[str]
    absent: dict[str, list[str]]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "directory": str(self.directory),
            "model": _network(self.pretrained),
            "vocab_size": self.pretrained.vocab_size,
            "tensors": len(self.pretrained.weights),
            "parameters": sum(tensor.numel() for tensor in self.pretrained.weights.values()),
            "found": self.found,
            "newly_initialised": self.absent,
            "notes": list(self.pretrained.notes),
        }

    def lines(self) -> Iterator[str]:
        """What was found, absent, and done, for people."""
        value, model = self.as_dict(), self.pretrained.model
        yield (
            f"{self.directory}: {model.num_hidden_layers} layers x {model.hidden_size},"
            f" {model.num_attention_heads} heads, {model.max_position_embeddings} positions,"
            f" {self.pretrained.vocab_size:,} entries, {value['parameters']:,} parameters"
        )
        yield f"  found: {', '.join(['encoder', *(name for part, name in _PARTS.items() if part in self.found)])}"
        for part, names in self.absent.items():
            yield f"  absent: {_PARTS[part]}; newly initialised when training goes on with it: {', '.join(names)}"
        for note in self.pretrained.notes:
            yield f"  {note}"


def import_model(
    source: Path,
    out: Path,
    *,
    lowercase: bool | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = say_line,
) -> Imported:
    """Read a transformers directory and write it as ``out``: weights, state, tokenizer, manifest.

    Args:
        source: ``config.json``, weights (safetensors or ``pytorch_model.bin``), ``tokenizer.json`` or ``vocab.txt``.
        out: the directory to make.
        lowercase: whether text is lower-cased, for a ``vocab.txt`` that comes alone.
        overwrite: replace an import that is there.
        say: gets a line when it is done.

    Raises:
        RequestError: it cannot be read in full, or ``out`` is taken; nothing is written.
    """
    refuse_taken(out, overwrite, lambda: (read_manifest(out) or {}).get("stage") == IMPORT_STAGE)
    if not (source / "config.json").is_file():
        raise RequestError(f"{source}: no config.json; a transformers directory has one")
    pretrained = load_pretrained(source, lowercase=lowercase, say=say)
    there = {"encoder", *pretrained.heads, *(["pooler"] if pretrained.pooler else [])}
    parts = shapes(pretrained.model, pretrained.vocab_size)
    _write(source, out, pretrained)
    say(f"{out}: imported")
    return Imported(
        out,
        pretrained,
        found=[part for part in parts if part in there],
        absent={part: sorted(names) for part, names in parts.items() if part not in there},
    )


def refuse_taken(out: Path, overwrite: bool, ours: Callable[[], bool]) -> None:
    """Never replace what is there without being asked, nor what another program made.

    Raises:
        RequestError: ``out`` is taken.
    """
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() and not overwrite:
        raise RequestError(f"{out}: is there already; name another directory, or replace it with --overwrite")
    if out.exists() and not (out.is_dir() and ours()):
        raise RequestError(f"{out}: was not made by this command, so --overwrite leaves it; name another directory")


def _network(pretrained: Pretrained) -> dict[str, Any]:
    return {name: getattr(pretrained.model, name) for name in NETWORK}


def _write(source: Path, out: Path, pretrained: Pretrained) -> None:
    weights = weight_file(source)
    read = [source / name for name in _READ if (source / name).is_file()]
    inputs = {path.name: sha256_file(path) for path in [*read, weights]}
    settings = {"lowercase": pretrained.normalising.lowercase}
    state = {
        "model": _network(pretrained),
        "vocab_size": pretrained.vocab_size,
        "nsp": "nsp" in pretrained.heads,
        "heads": sorted(pretrained.heads),
        "pooler": pretrained.pooler,
        "origin": source.resolve().name,
    }
    key = fingerprint({"stage": IMPORT_STAGE, "format": FORMAT_VERSION, "settings": settings, "inputs": inputs})
    with staged_directory(out) as aside:
        contiguous = {name: tensor.contiguous() for name, tensor in pretrained.weights.items()}
        write_tensors(contiguous, aside / "model.safetensors")
        write_json(aside / "state.json", state)
        wordpiece.save(
            aside / "tokenizer",
            pretrained.tokens,
            pretrained.normalising,
            max_length=pretrained.model.max_position_embeddings,
        )
        if wordpiece.load_tokenizer(aside / "tokenizer").tokens != pretrained.tokens:
            raise BertptError(f"{out}: the saved tokenizer does not hold the vocabulary of {source}")
        counts = {"tensors": len(pretrained.weights), "notes": list(pretrained.notes)}
        write_manifest(aside, stage=IMPORT_STAGE, key=key, inputs=inputs, settings=settings, counts=counts)
