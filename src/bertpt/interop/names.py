"""Tensor names: ours (one fused ``qkv``) and those of the Hugging Face ``BertForPreTraining``.

Pure functions on dicts of tensors. A head is there in full or not at all; whatever else is missing, unexpected or of
another shape is a fault. Old files say ``gamma`` and ``beta``, leave out ``bert.``, or store the tied decoder again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bertpt.config.schema import Model
from bertpt.errors import RequestError

SHOWN = 5  # names in a message
WORDS = "bert.embeddings.word_embeddings.weight"
MLM_BIAS = "cls.predictions.bias"
_TIED = {"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": MLM_BIAS}
_BUFFERS = {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}
_WRAPPERS = ("module.", "_orig_mod.")
_BASE = ("embeddings.", "encoder.", "pooler.")
_QUERY = re.compile(r"\.self\.query\.(weight|bias)$")


class Modern(NamedTuple):
    """Tensors by today's names, with the ``bert.`` prefix, and what was done to get there."""

    tensors: dict[str, Tensor]
    notes: list[str]


class Arranged(NamedTuple):
    """Weights by our names, and which heads they hold."""

    weights: dict[str, Tensor]
    heads: frozenset[str]
    pooler: bool


def few(names: Iterable[str]) -> str:
    """A handful of names and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


def shapes(model: Model, rows: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """Shapes by Hugging Face name, in the parts ``encoder``, ``pooler``, ``mlm`` and ``nsp``.

    Args:
        model: the shape of the network.
        rows: of the token embedding.
    """
    hidden, inner = model.hidden_size, model.ffn_size

    def linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}

    def norm(name: str) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)}

    encoder: dict[str, tuple[int, ...]] = {
        WORDS: (rows, hidden),
        "bert.embeddings.position_embeddings.weight": (model.max_position_embeddings, hidden),
        "bert.embeddings.token_type_embeddings.weight": (model.type_vocab_size, hidden),
        **norm("bert.embeddings.LayerNorm"),
    }
    for index in range(model.num_hidden_layers):
        layer = f"bert.encoder.layer.{index}"
        for part in ("query", "key", "value"):
            encoder |= linear(f"{layer}.attention.self.{part}", hidden, hidden)
        encoder |= linear(f"{layer}.attention.output.dense", hidden, hidden)
        encoder |= norm(f"{layer}.attention.output.LayerNorm")
        encoder |= linear(f"{layer}.intermediate.dense", inner, hidden)
        encoder |= linear(f"{layer}.output.dense", hidden, inner) | norm(f"{layer}.output.LayerNorm")
    transform = "cls.predictions.transform"
    return {
        "encoder": encoder,
        "pooler": linear("bert.pooler.dense", hidden, hidden),
        "mlm": {MLM_BIAS: (rows,), **linear(f"{transform}.dense", hidden, hidden), **norm(f"{transform}.LayerNorm")},
        "nsp": linear("cls.seq_relationship", 2, hidden),
    }


def modernise(tensors: Mapping[str, Tensor], place: str) -> Modern:
    """Undo wrappers, old names and the missing prefix; drop the decoder where it is the tied one, and buffers.

    Args:
        tensors: as they stand in the file.
        place: names the file in messages.

    Raises:
        RequestError: two tensors become one name, or the decoder is not the token embedding.
    """
    notes, found, clashes = [], {}, []
    for wrapper in _WRAPPERS:
        if tensors and all(name.startswith(wrapper) for name in tensors):
            tensors = {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}
            notes.append(f"names without their prefix {wrapper!r}")
    for old, tensor in tensors.items():
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", old)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        name = f"bert.{name}" if name.startswith(_BASE) else name
        if name in found:
            clashes.append(old)
        found[name] = tensor
    if clashes:
        raise RequestError(f"{place}: two tensors for one parameter: {few(clashes)}")
    if any(re.search(r"LayerNorm\.(gamma|beta)$", name) for name in tensors):
        notes.append("LayerNorm gamma and beta renamed to weight and bias")
    if any(name.startswith(_BASE) for name in tensors):
        notes.append("names given the prefix 'bert.'")
    if passed := sorted(_BUFFERS & found.keys()):
        notes.append(f"passed over {few(passed)} (a constant, no weight)")
    found = {name: tensor for name, tensor in found.items() if name not in _BUFFERS}
    return Modern(_tie(found, place), notes)


def _tie(tensors: dict[str, Tensor], place: str) -> dict[str, Tensor]:
    """Without the second copy of what is tied; a file that holds only the copy gets the name it is tied to."""
    tensors = dict(tensors)
    for copy, original in _TIED.items():
        if copy not in tensors:
            continue
        tensor = tensors.pop(copy)
        if original not in tensors:
            tensors[original] = tensor
        elif not torch.equal(tensor, tensors[original]):
            raise RequestError(f"{place}: {copy} is not {original}; only a decoder that is tied to it is supported")
    return tensors


def arrange(tensors: Mapping[str, Tensor], model: Model, rows: int, place: str) -> Arranged:
    """Check every name and shape, and fuse query, key and value.

    Args:
        tensors: by today's names (:func:`modernise`).
        model: the shape of the network.
        rows: of the token embedding.
        place: names the file in messages.

    Raises:
        RequestError: a tensor is missing, unexpected, of another shape, or holds no finite floating-point numbers.
    """
    parts = shapes(model, rows)
    there = {part for part, names in parts.items() if part == "encoder" or tensors.keys() & names.keys()}
    wanted = {name: shape for part in there for name, shape in parts[part].items()}
    both = wanted.keys() & tensors.keys()
    shaped = {name for name in both if tuple(tensors[name].shape) == wanted[name]}
    faults = {
        "missing": wanted.keys() - tensors.keys(),
        "unexpected": tensors.keys() - wanted.keys(),
        "of another shape": {
            f"{name} {list(tensors[name].shape)} in place of {list(wanted[name])}" for name in both - shaped
        },
        "no floating-point numbers": {name for name in both if not tensors[name].is_floating_point()},
        "not finite": {
            name for name in shaped if tensors[name].is_floating_point() and not bool(tensors[name].isfinite().all())
        },
    }
    if any(faults.values()):
        lines = [f"{kind}: {few(names)}" for kind, names in faults.items() if names]
        heads = ("classifier.", "qa_outputs.")
        tuned = faults["unexpected"] and all(name.startswith(heads) for name in faults["unexpected"])
        more = " (the head of a fine-tuned model; name the pre-trained one that it was made from)" if tuned else ""
        raise RequestError(f"{place}: does not hold the BERT of its config: {'; '.join(lines)}{more}")
    return Arranged(from_hf(tensors), frozenset(there & {"mlm", "nsp"}), "pooler" in there)


def from_hf(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our names for complete tensors by today's Hugging Face names, in fp32."""
    ours: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if match := _QUERY.search(name):
            before = name[: match.start()]
            parts = [tensors[f"{before}.self.{part}.{match[1]}"].float() for part in ("query", "key", "value")]
            ours[f"{before}.self.qkv.{match[1]}"] = torch.cat(parts)
        elif not re.search(r"\.self\.(key|value)\.(weight|bias)$", name):
            ours[name] = tensor.float()
    return ours


def to_hf(weights: Mapping[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
    """Hugging Face names for our weights: qkv split, padded rows of the vocabulary cut off, the tied decoder left out.

    An encoder without any head goes by the names of ``BertModel``, without ``bert.``.
    """
    theirs: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if ".self.qkv." in name:
            for part, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                theirs[name.replace("qkv", part)] = piece.contiguous()
        else:
            theirs[name] = (tensor[:vocab_size] if name == WORDS else tensor).contiguous()
    if all(name.startswith("bert.") for name in theirs):
        return {name.removeprefix("bert."): tensor for name, tensor in theirs.items()}
    return theirs
