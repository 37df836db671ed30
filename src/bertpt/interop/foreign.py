"""Reading a model in the Hugging Face layout: configuration, weights, tokenizer, checked against each other."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from bertpt.config.schema import Model
from bertpt.config.schema import Tokenizer as TokenizerConfig
from bertpt.data.tokenizer.given import read_given
from bertpt.data.tokenizer.wordpiece import Normalising
from bertpt.errors import RequestError
from bertpt.interop.hf_config import check_against_weights, read_config
from bertpt.interop.names import MLM_BIAS, WORDS, arrange, modernise
from bertpt.interop.weights import read_weights, weight_file


class Vocabulary(NamedTuple):
    """Tokens in the order of their ids, the flags of the text, and what must be said about them."""

    tokens: list[str]
    normalising: Normalising
    notes: list[str]


class Foreign(NamedTuple):
    """A model of others by our names; padded rows of its vocabulary are cut off."""

    model: Model
    vocabulary: Vocabulary
    weights: dict[str, Tensor]
    heads: frozenset[str]
    pooler: bool
    notes: list[str]


def read_vocabulary(directory: Path, *, lowercase: bool | None = None) -> Vocabulary:
    """The vocabulary of a folder with ``tokenizer.json`` or ``vocab.txt``.

    Args:
        directory: the folder.
        lowercase: whether text is lower-cased, for a ``vocab.txt`` that comes alone; lower-cased by default.

    Raises:
        RequestError: there is none, it is damaged, or no BERT tokenizer.
    """
    names = ("tokenizer.json", "vocab.txt")
    if not any((directory / name).is_file() for name in names):
        raise RequestError(f"{directory}: holds neither tokenizer.json nor vocab.txt")
    alone = not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    if (directory / "added_tokens.json").is_file() and not (directory / "tokenizer.json").is_file():
        raise RequestError(f"{directory}: added_tokens.json needs a tokenizer.json; transformers writes one")
    if not alone and lowercase is not None:
        raise RequestError(f"{directory}: its tokenizer says whether text is lower-cased; leave that option out")
    chosen = lowercase is not False
    tokens, normalising = read_given(directory, TokenizerConfig(lowercase=chosen))
    note = f"vocab.txt alone: text is {'lower-cased' if chosen else 'not lower-cased'}"
    return Vocabulary(tokens, normalising, [note] if alone else [])


def read_foreign(directory: Path, *, lowercase: bool | None = None) -> Foreign:
    """Read a transformers directory.

    Raises:
        RequestError: a file is missing or damaged, the network is not supported, or the files contradict each other.
    """
    described = read_config(directory / "config.json")
    vocabulary = read_vocabulary(directory, lowercase=lowercase)
    size, rows = len(vocabulary.tokens), described.rows
    if size > rows:
        raise RequestError(f"{directory}: the tokenizer has {size:,} entries, config.json a vocab_size of {rows:,}")
    file = weight_file(directory)
    modern = modernise(read_weights(file), str(file))
    check_against_weights(described, modern.tensors, directory / "config.json")
    arranged = arrange(modern.tensors, described.model, rows, str(file))
    notes = [*described.notes, *vocabulary.notes, *modern.notes]
    weights = dict(arranged.weights)
    if size < rows:
        notes.append(f"{rows - size:,} rows of the token embedding past the vocabulary of {size:,} left out")
        weights |= {name: weights[name][:size].clone() for name in (WORDS, MLM_BIAS) if name in weights}
    return Foreign(described.model, vocabulary, weights, arranged.heads, arranged.pooler, notes)
