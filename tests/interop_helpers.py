"""Tiny models of transformers on disk, and what they say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertpt.data.tokenizer import wordpiece
from bertpt.data.tokenizer.wordpiece import SPECIALS, Normalising

LETTERS = [chr(ord("a") + i) for i in range(26)]
TOKENS = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "##er", "of"]
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 48,
}
WEIGHTS = "model.safetensors"


def their_model(architecture: str, *, seed: int = 0, **changes: Any) -> Any:
    """A random model of transformers whose biases and norms are not at their initial values."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(**({"vocab_size": len(TOKENS)} | SIZES | changes))
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def save_theirs(model: Any, directory: Path, *, tokens: list[str] = TOKENS) -> Path:
    """The model as transformers saves it, with a tokenizer beside it."""
    model.save_pretrained(directory)
    wordpiece.save(directory, tokens, Normalising())
    return directory


def change_config(directory: Path, **changes: Any) -> None:
    """Set keys of ``config.json``; ``...`` takes one away."""
    path = directory / "config.json"
    value = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps({key: item for key, item in value.items() if item is not ...}), encoding="utf-8")


def change_weights(directory: Path, change: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]) -> None:
    """Write the weights again, changed."""
    tensors = change(load_file(directory / WEIGHTS))
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, directory / WEIGHTS)


def renamed(tensors: Mapping[str, Tensor], *pairs: tuple[str, str]) -> dict[str, Tensor]:
    """Every name with each part replaced."""
    found = {}
    for name, tensor in tensors.items():
        for old, new in pairs:
            name = name.replace(old, new)
        found[name] = tensor
    return found


def as_bin(directory: Path) -> None:
    """The weights as ``pytorch_model.bin`` in place of safetensors."""
    torch.save(load_file(directory / WEIGHTS), directory / "pytorch_model.bin")
    (directory / WEIGHTS).unlink()


def shard(directory: Path, stem: str = "model") -> None:
    """The weights in two files with an index."""
    tensors = load_file(directory / WEIGHTS)
    names = sorted(tensors)
    ending = "safetensors" if stem == "model" else "bin"
    places = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"{stem}-0000{number}-of-00002.{ending}"
        inside = {name: tensors[name] for name in part}
        if ending == "bin":
            torch.save(inside, directory / file)
        else:
            save_file(inside, directory / file)
        places |= dict.fromkeys(part, file)
    (directory / WEIGHTS).unlink()
    index = {"metadata": {}, "weight_map": places}
    (directory / f"{stem}.{ending}.index.json").write_text(json.dumps(index), encoding="utf-8")


def their_outputs(model: Any, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a model of transformers says of the real tokens, by our names; as far as it has the parts."""
    with torch.inference_mode():
        output = model(**rows, output_hidden_states=True)
    mask = rows["attention_mask"].bool()
    found = {"hidden": output.hidden_states[-1][mask]}
    kind = type(model).__name__
    if kind in ("BertForPreTraining", "BertForMaskedLM"):
        found["mlm_logits"] = (output.prediction_logits if kind == "BertForPreTraining" else output.logits)[mask]
    if kind in ("BertForPreTraining", "BertForNextSentencePrediction"):
        found["nsp_logits"] = output.seq_relationship_logits if kind == "BertForPreTraining" else output.logits
    if kind == "BertModel":
        found["pooled"] = output.pooler_output
    return found


def assert_same(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], atol: float = 0.0) -> None:
    """The wanted tensors are there, within ``atol``."""
    assert wanted.keys() <= found.keys()
    for name, tensor in wanted.items():
        assert found[name].shape == tensor.shape, name
        assert float((found[name] - tensor).abs().max()) <= atol, name
