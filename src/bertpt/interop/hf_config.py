"""The Hugging Face ``config.json`` of a BERT and our model section; neither side may mean something else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from torch import Tensor

from bertpt.config.schema import Model
from bertpt.config.validate import fault_line
from bertpt.errors import RequestError
from bertpt.files import read_json
from bertpt.interop.names import WORDS, few

_SHARED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
)
NETWORK = (*_SHARED, "pad_vocab_to_multiple_of")  # the settings of the model section that shape its tensors and numbers
_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
# Anything else than these values is another network.
_ONLY: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "is_encoder_decoder": (False,),
}
# They change nothing in what is computed here.
_HARMLESS = re.compile(
    r"^(_.*|architectures|.*_token_id|classifier_dropout|chunk_size_feed_forward|dtype|torch_dtype|directionality"
    r"|gradient_checkpointing|id2label|label2id|num_labels|output_.*|pooler_.*|return_dict|torchscript|transformers_version"
    r"|use_.*|name_or_path|finetuning_task|problem_type|vocab_size|language)$"
)


class Described(NamedTuple):
    """What a ``config.json`` says: the network, and the rows of its token embedding."""

    model: Model
    rows: int
    notes: list[str]


def read_config(path: Path) -> Described:
    """Read a Hugging Face ``config.json``.

    Raises:
        RequestError: it is not of a BERT that is supported here; each key that is at fault is named.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise RequestError(f"{path}: a JSON object is expected")
    faults = [f"{path}: {key} is missing" for key in _REQUIRED if key not in value]
    faults += [
        f"{path}: {key} is {value[key]!r}, only {allowed[0]!r} is supported"
        for key, allowed in _ONLY.items()
        if key in value and value[key] not in allowed
    ]
    rows = value.get("vocab_size", 1)
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        faults.append(f"{path}: vocab_size: a positive number is expected, not {rows!r}")
    try:
        model = Model.model_validate({key: value[key] for key in _SHARED if key in value})
    except ValidationError as error:
        raise RequestError(faults + [f"{path}: {fault_line(e)}" for e in error.errors(include_url=False)]) from None
    if model.hidden_size % model.num_attention_heads:
        heads, hidden = model.num_attention_heads, model.hidden_size
        faults.append(f"{path}: num_attention_heads: {heads} does not divide hidden_size {hidden}")
    if faults:
        raise RequestError(faults)
    other = [k for k in value if k not in _SHARED and k not in _ONLY and not _HARMLESS.match(k)]
    return Described(model, rows, [f"keys of config.json passed over: {few(other)}"] if other else [])


def write_config(model: Model, vocab_size: int, *, architecture: str, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """The ``config.json`` of a model with a vocabulary of its true size (no padded rows)."""
    shared = {name: getattr(model, name) for name in _SHARED} | {"intermediate_size": model.ffn_size}
    return {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": vocab_size,
        **shared,
        "pad_token_id": special_ids["pad"],
        "tie_word_embeddings": True,
        "is_decoder": False,
        "add_cross_attention": False,
        "use_cache": True,
        "classifier_dropout": None,
        "dtype": "float32",
    }


def check_against_weights(described: Described, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Compare what the configuration says with what the weights show.

    Args:
        described: what the configuration says.
        tensors: by today's names.
        path: of the configuration, for messages.

    Raises:
        RequestError: they contradict each other; one line for each key, with both values.
    """
    said = described.model.model_dump() | {
        "vocab_size": described.rows,
        "intermediate_size": described.model.ffn_size,
    }
    faults = [
        f"{path}: {key} is {said[key]}, the weights hold {shown}"
        for key, shown in _shown(tensors)
        if said[key] != shown
    ]
    if faults:
        raise RequestError(faults)


def _shown(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, int]]:
    """Sizes that weights show by their shapes."""
    sizes = {
        ("vocab_size", "hidden_size"): WORDS,
        ("max_position_embeddings", ""): "bert.embeddings.position_embeddings.weight",
        ("type_vocab_size", ""): "bert.embeddings.token_type_embeddings.weight",
        ("intermediate_size", ""): "bert.encoder.layer.0.intermediate.dense.weight",
    }
    for keys, name in sizes.items():
        if name in tensors and tensors[name].dim() == 2:
            yield from ((key, size) for key, size in zip(keys, tensors[name].shape, strict=True) if key)
    layers = {int(match[1]) for name in tensors if (match := re.match(r"bert\.encoder\.layer\.(\d+)\.", name))}
    if layers:
        yield "num_hidden_layers", max(layers) + 1
