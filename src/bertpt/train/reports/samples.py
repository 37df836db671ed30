"""Held-out sentences with one word masked, and what a model says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from bertpt.batch import Batch
from bertpt.data.random import below, bits
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.data.tokens.store import TokenStore
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train.evaluate import evaluating

MASK = "[MASK]"


@dataclass(frozen=True, slots=True)
class Filled:
    """One [MASK] and its most probable tokens, best first."""

    tokens: list[str]
    probabilities: list[float]

    def said(self, digits: int = 0) -> str:
        """``the 5% · , 4%``: a comma is a frequent guess, so none stands between them."""
        pairs = zip(self.tokens, self.probabilities, strict=True)
        return " · ".join(f"{token} {share:.{digits}%}" for token, share in pairs)


@dataclass(frozen=True, slots=True)
class Masked:
    """A held-out sentence with one word masked: as text and as ids without [CLS] and [SEP], and the word."""

    text: str
    original: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Sample:
    """A held-out sentence with one word masked, the word, and what the model says."""

    text: str
    original: str
    filled: Filled


def fill_ids(
    model: BertForPreTraining, tokenizer: WordPieceTokenizer, rows: Sequence[Sequence[int]], *, top: int
) -> list[list[Filled]]:
    """The ``top`` most probable tokens for each [MASK] in rows of token ids without [CLS] and [SEP], in one batch."""
    packed = [index for ids in rows for index in (tokenizer.cls_id, *ids, tokenizer.sep_id)]
    input_ids = torch.tensor(packed)
    batch = Batch.from_lengths(
        input_ids,
        torch.zeros_like(input_ids),
        torch.tensor([len(ids) + 2 for ids in rows]),
        masked_positions=torch.nonzero(input_ids == tokenizer.mask_id)[:, 0],
    )
    with evaluating(model):
        logits = model(batch.to(next(model.parameters()).device)).mlm_logits
        best = logits.float().softmax(-1).topk(min(top, logits.shape[1]))
    filled = (
        Filled([tokenizer.token(index) for index in indices], values)
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    return [list(islice(filled, sum(index == tokenizer.mask_id for index in ids))) for ids in rows]


def masked_sentences(
    tokenizer: WordPieceTokenizer, store: TokenStore, *, count: int, positions: int = 512
) -> Iterator[Masked]:
    """``count`` held-out sentences from documents spread over the split, always the same.

    They have 10 to 24 tokens; in a text of short sentences, as many as its longer half.

    Args:
        positions: of the model: longer sentences than it can read are left out.
    """
    tokens = store.heldout
    lengths, starts = np.asarray(tokens.lengths), tokens.sentence_offsets()
    most = min(24, positions - 2)
    fitting = np.flatnonzero((lengths >= 10) & (lengths <= most))
    if len(fitting) < count:
        short = lengths[lengths <= most]
        fitting = np.flatnonzero((lengths >= np.median(short)) & (lengths <= most)) if len(short) else fitting
    found = 0
    for turn in range(4 * count):
        if found == count or not len(fitting):
            return
        # One place in each equal part of the split, so that all sources get their turn.
        part = len(fitting) * (turn % count) // count
        sentence = fitting[part + int(below(bits(turn, part), max(1, len(fitting) // count))[0])]
        ids = tokens.ids[starts[sentence] : starts[sentence + 1]].astype(np.int64)
        inner = store.continues_word[ids]
        whole = np.flatnonzero(~inner[1:-1] & ~inner[2:]) + 1  # words of one piece, not the first token
        whole = np.array([i for i in whole if tokenizer.token(int(ids[i])).isalpha()], np.int64)
        if not len(whole):
            continue
        at = whole[int(below(bits(turn, part, 1), len(whole))[0])]
        original = tokenizer.token(int(ids[at]))
        text = f"{tokenizer.decode(ids[:at].tolist())} {MASK} {tokenizer.decode(ids[at + 1 :].tolist())}"
        ids[at] = tokenizer.mask_id
        found += 1
        yield Masked(text, original, ids.tolist())


def fill(
    model: BertForPreTraining, tokenizer: WordPieceTokenizer, sentences: Sequence[Masked], *, top: int
) -> list[Sample]:
    """What the model says of each sentence."""
    if not sentences:
        return []
    filled = fill_ids(model, tokenizer, [sentence.ids for sentence in sentences], top=top)
    return [
        Sample(sentence.text, sentence.original, guesses) for sentence, [guesses] in zip(sentences, filled, strict=True)
    ]
