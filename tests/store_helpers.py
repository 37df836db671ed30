"""Small token stores for tests of pairs, masks, batches and evaluation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from bertpt.data.stage import Split
from bertpt.data.tokens.store import STORE_FORMAT, Tokens, TokenStore
from bertpt.data.tokens.store_writer import StoreWriter
from bertpt.files import write_manifest

Document = list[list[int]]
"""Sentences of ids."""

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def random_documents(
    count: int,
    *,
    seed: int = 0,
    vocab_size: int = 100,
    first_id: int = 5,
    sentences: tuple[int, int] = (1, 12),
    tokens: tuple[int, int] = (1, 20),
) -> list[Document]:
    """Documents with that many sentences of that many tokens (least, most)."""
    draw = random.Random(seed)

    def sentence() -> list[int]:
        return [draw.randrange(first_id, vocab_size) for _ in range(draw.randint(*tokens))]

    return [[sentence() for _ in range(draw.randint(*sentences))] for _ in range(count)]


def make_tokens(documents: Sequence[Document], sources: Sequence[int] | None = None) -> Tokens:
    """A split in memory."""
    lengths = [len(sentence) for document in documents for sentence in document]
    ids = [token for document in documents for sentence in document for token in sentence]
    sizes = [len(document) for document in documents]
    return Tokens.build(
        np.array(ids, np.uint16 if max(ids, default=0) < 2**16 else np.uint32),
        np.array(lengths, np.int64),
        np.array(sizes, np.int64),
        np.array(sources or [0] * len(documents), np.uint8),
    )


def as_documents(tokens: Tokens) -> list[Document]:
    """The way back from offsets to lists."""
    spans = [tokens.ids[start:end].tolist() for start, end in pairwise(tokens.sentence_offsets().tolist())]
    return [spans[start:end] for start, end in pairwise(tokens.documents.tolist())]


def make_store(
    directory: Path,
    train: Sequence[Document],
    heldout: Sequence[Document] | None = None,
    *,
    vocab_size: int = 100,
    special_ids: dict[str, int] | None = None,
    continues: Sequence[int] = (),
    train_sources: Sequence[int] | None = None,
    heldout_sources: Sequence[int] | None = None,
) -> TokenStore:
    """A finished store in ``directory``; ``continues`` are the ids of pieces that continue a word."""
    directory.mkdir(parents=True, exist_ok=True)
    flags = np.zeros(vocab_size, np.bool_)
    flags[list(continues)] = True
    parts: dict[Split, Tokens] = {
        "train": make_tokens(train, train_sources),
        "heldout": make_tokens(train if heldout is None else heldout, heldout_sources),
    }
    counts = {}
    with StoreWriter(directory, flags) as writer:
        for name, part in parts.items():
            sizes = np.diff(part.documents)
            writer.split(name).add(part.ids, part.lengths, sizes, part.sources)
            counts[name] = {
                "documents": len(sizes),
                "documents_of_two_sentences_or_more": int((sizes > 1).sum()),
                "tokens": len(part.ids),
            }
    labels = [f"s{i}" for i in range(1 + max(max(part.sources.tolist(), default=0) for part in parts.values()))]
    settings = {
        "format": STORE_FORMAT,
        "vocab_size": vocab_size,
        "special_ids": special_ids or SPECIAL,
        "sources": labels,
    }
    write_manifest(directory, stage="prepare", key="key", inputs={}, settings=settings, counts=counts)
    return TokenStore.open(directory)


def plain_bits(*counters: int, state: int = 0) -> int:
    """``bertpt.data.random.bits`` in Python's unbounded integers: SplitMix64's finaliser over a fold."""
    modulus = 2**64
    for counter in counters:
        state = (state + 0x9E3779B97F4A7C15 + counter * 0xBF58476D1CE4E5B9) % modulus
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % modulus
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % modulus
        state ^= state >> 31
    return state
