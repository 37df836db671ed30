"""What a fine-tuning starts from: an encoder's weights, or none for a random one, and a vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertpt.config import FinetuneConfig, plain
from bertpt.config.schema import Model
from bertpt.data.tokenizer.wordpiece import Normalising, WordPieceTokenizer, build
from bertpt.errors import RequestError


@dataclass(frozen=True, slots=True)
class Start:
    """Weights to start from.

    Attributes:
        place: for people.
        model: the shape of the network.
        weights: fp32 on the CPU, by the names of ``BertForPreTraining``; empty: a random encoder.
        tokens: the vocabulary in the order of ids.
        normalising: what happens to text before it is split.
    """

    place: str
    model: Model
    weights: Mapping[str, Tensor]
    tokens: list[str]
    normalising: Normalising

    def open_tokenizer(self) -> WordPieceTokenizer:
        """The tokenizer."""
        return WordPieceTokenizer(build(self.tokens, self.normalising), self.place)

    def fingerprint(self) -> str:
        """Hex SHA-256 of shape, weights, vocabulary and normalising; the place takes no part."""
        digest = hashlib.sha256("\n".join(self.tokens).encode())
        digest.update(repr((self.normalising, sorted(plain(self.model).items()))).encode())
        for name in sorted(self.weights):
            tensor = self.weights[name].contiguous()
            digest.update(f"{name} {list(tensor.shape)}".encode())
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


def take_encoder(model: nn.Module, start: Start) -> list[str]:
    """Copy the encoder's weights, and the pooler's where there is one; lines that say which parts are new.

    Raises:
        RequestError: something else than a head is missing, or has another shape.
    """
    if not start.weights:
        return ["a random encoder, as a control: every weight is new"]
    own = model.state_dict()
    encoder = {name for name in own if name.startswith("bert.")}
    new = sorted(encoder - start.weights.keys())
    faults = [name for name in new if not name.startswith("bert.pooler.")]
    faults += [name for name in encoder & start.weights.keys() if own[name].shape != start.weights[name].shape]
    if faults:
        raise RequestError(f"{start.place}: missing or of another shape: {', '.join(sorted(faults)[:5])}")
    with torch.no_grad():
        for name in encoder & start.weights.keys():
            own[name].copy_(start.weights[name])
    head = sorted({name.split(".")[0] for name in own} - {"bert"})
    pooler = ["pooler (these weights were trained without sentence pairs)"] if new else []
    return [f"new, at random: {', '.join([*pooler, *head])}; from {start.place}: all else"]


def shaped(model: Model, config: FinetuneConfig) -> Model:
    """The encoder's shape with the dropout of the configuration.

    Raises:
        RequestError: it has too few positions, or no second segment for pairs.
    """
    length, dropout = config.train.max_length, config.train.dropout
    faults = []
    if length > model.max_position_embeddings:
        faults.append(
            f"train.max_length: {length} is above the {model.max_position_embeddings} positions of {config.from_}"
        )
    if config.segments > model.type_vocab_size:
        faults.append(f"{config.from_} has one segment, so it takes no pairs")
    if faults:
        raise RequestError(faults)
    changes = {} if dropout is None else {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return model.model_copy(update={"init_from": None, **changes})
