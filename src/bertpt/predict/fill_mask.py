"""Filling in [MASK]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from bertpt.batch import Batch
from bertpt.data.random import below, bits
from bertpt.data.store import TokenStore
from bertpt.data.wordpiece import WordPieceTokenizer
from bertpt.model.pretraining import BertForPreTraining
from bertpt.predict.opening import open_model
from bertpt.predict.texts import Text, refuse
from bertpt.progress import Progress
from bertpt.progress import say as say_line
from bertpt.train.evaluate import evaluating

MASK = "[MASK]"
BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Filled:
    """One [MASK] and its most probable tokens, best first."""

    tokens: list[str]
    probabilities: list[float]


@dataclass(frozen=True, slots=True)
class Predictor:
    """A model with its tokenizer."""

    model: BertForPreTraining
    tokenizer: WordPieceTokenizer

    @classmethod
    def open(cls, path: Path, *, say: Callable[[str], None] = say_line) -> Predictor:
        """Open a run, a checkpoint, an imported or a transformers directory.

        Raises:
            RequestError: nothing of the kind, or no masked-word head.
        """
        return cls(*open_model(path, mlm=True, say=say))

    def fill_mask(self, text: str, *, top: int = 5) -> list[Filled]:
        """The ``top`` most probable tokens for each [MASK] of ``text``, in order.

        Raises:
            RequestError: no [MASK], or more tokens than the model has positions for.
        """
        [filled] = self.fill_masks([Text("the text", text)], top=top)
        return filled

    def fill_masks(self, texts: Sequence[Text], *, top: int = 5, shown: bool = False) -> Iterator[list[Filled]]:
        """:meth:`fill_mask` of each text, in batches.

        Args:
            texts: each with the name that a fault calls it by.
            top: guesses for each [MASK].
            shown: whether progress is.

        Raises:
            RequestError: names every text without [MASK] or with too many tokens, before any work.
        """
        rows = [self.tokenizer.encode_with_mask(text) for _, text in texts]
        refuse([fault for text, ids in zip(texts, rows, strict=True) if (fault := self._fault(text, ids))])
        with Progress("fill-mask", unit="texts", total=len(rows), shown=shown) as progress:
            for begin in range(0, len(rows), BATCH_SIZE):
                batch = rows[begin : begin + BATCH_SIZE]
                yield from self.fill_ids(batch, top=top)
                progress.add(len(batch))

    def _fault(self, text: Text, ids: Sequence[int]) -> str | None:
        if self.tokenizer.mask_id not in ids:
            return f"{text.place}: no {MASK} in {text.text[:60]!r}; write {MASK} where a word is to be found"
        positions = self.model.config.max_position_embeddings
        if len(ids) + 2 > positions:
            return f"{text.place}: {len(ids) + 2} tokens with [CLS] and [SEP], the model has {positions} positions"
        return None

    def fill_ids(self, rows: Sequence[Sequence[int]], *, top: int) -> list[list[Filled]]:
        """``fill_mask`` for rows of token ids without [CLS] and [SEP], in one batch."""
        tokenizer = self.tokenizer
        packed = [index for ids in rows for index in (tokenizer.cls_id, *ids, tokenizer.sep_id)]
        input_ids = torch.tensor(packed)
        batch = Batch.from_lengths(
            input_ids,
            torch.zeros_like(input_ids),
            torch.tensor([len(ids) + 2 for ids in rows]),
            masked_positions=torch.nonzero(input_ids == tokenizer.mask_id)[:, 0],
        )
        with evaluating(self.model):
            logits = self.model(batch.to(next(self.model.parameters()).device)).mlm_logits
            best = logits.float().softmax(-1).topk(min(top, logits.shape[1]))
        filled = (
            Filled([tokenizer.token(index) for index in indices], values)
            for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )
        return [list(islice(filled, sum(index == tokenizer.mask_id for index in ids))) for ids in rows]


@dataclass(frozen=True, slots=True)
class Sample:
    """A held-out sentence with one word masked, the word, and what the model says."""

    text: str
    original: str
    filled: Filled


def heldout_samples(predictor: Predictor, store: TokenStore, *, count: int = 3, top: int = 3) -> list[Sample]:
    """``count`` held-out sentences of 10 to 24 tokens from documents spread over the split, always the same."""
    tokens, tokenizer = store.heldout, predictor.tokenizer
    lengths, starts = np.asarray(tokens.lengths), tokens.sentence_offsets()
    fitting = np.flatnonzero((lengths >= 10) & (lengths <= 24))
    samples: list[Sample] = []
    for turn in range(4 * count):
        if len(samples) == count or not len(fitting):
            break
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
        masked = ids.copy()
        masked[at] = tokenizer.mask_id
        text = f"{tokenizer.decode(ids[:at].tolist())} {MASK} {tokenizer.decode(ids[at + 1 :].tolist())}"
        [[filled]] = predictor.fill_ids([masked.tolist()], top=top)
        samples.append(Sample(text, tokenizer.token(int(ids[at])), filled))
    return samples
