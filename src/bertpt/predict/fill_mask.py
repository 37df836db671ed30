"""Using a trained model: filling in [MASK]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bertpt.batch import Batch
from bertpt.data.random import below, bits
from bertpt.data.store import TokenStore
from bertpt.data.wordpiece import WordPieceTokenizer, load_tokenizer
from bertpt.errors import RequestError
from bertpt.model.pretraining import BertForPreTraining
from bertpt.progress import say as say_line
from bertpt.train.checkpoint import newest_checkpoint, restore
from bertpt.train.evaluate import evaluating
from bertpt.train.rundir import open_run

MASK = "[MASK]"


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
    def from_run(cls, directory: Path, *, say: Callable[[str], None] = say_line) -> Predictor:
        """The newest intact checkpoint of a run, on the CPU.

        Raises:
            RequestError: no run, or no checkpoint yet.
        """
        run = open_run(directory)
        checkpoint = newest_checkpoint(directory, say)
        if checkpoint is None:
            raise RequestError(f"{directory}: has no checkpoint yet; `bertpt pretrain` goes on with it")
        tokenizer = load_tokenizer(run.tokenizer)
        model = BertForPreTraining(run.config.model, tokenizer.vocab_size, nsp=run.config.pairs.rule != "none")
        restore(checkpoint, model)
        model.eval()
        return cls(model, tokenizer)

    def fill_mask(self, text: str, *, top: int = 5) -> list[Filled]:
        """The ``top`` most probable tokens for each [MASK] of ``text``, in order.

        Raises:
            RequestError: no [MASK], or more tokens than the model has positions for.
        """
        ids = self.tokenizer.encode_with_mask(text)
        if self.tokenizer.mask_id not in ids:
            raise RequestError(f"no {MASK} in {text!r}; write {MASK} where a word is to be found")
        return self.fill_ids(ids, top=top)

    def fill_ids(self, ids: Sequence[int], *, top: int) -> list[Filled]:
        """``fill_mask`` for token ids without [CLS] and [SEP]."""
        tokenizer = self.tokenizer
        row = torch.tensor([tokenizer.cls_id, *ids, tokenizer.sep_id])
        positions = self.model.config.max_position_embeddings
        if len(row) > positions:
            raise RequestError(
                f"{len(ids)} tokens with [CLS] and [SEP] are more than the model's {positions} positions"
            )
        batch = Batch.from_lengths(
            row,
            torch.zeros_like(row),
            torch.tensor([len(row)]),
            masked_positions=torch.nonzero(row == tokenizer.mask_id)[:, 0],
        )
        with evaluating(self.model):
            probabilities = self.model(batch).mlm_logits.float().softmax(-1)
        best = probabilities.topk(min(top, probabilities.shape[1]))
        return [
            Filled([tokenizer.token(i) for i in index], values)
            for index, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Sample:
    """A held-out sentence with one word masked, the word, and what the model says."""

    text: str
    original: str
    filled: Filled


def heldout_samples(predictor: Predictor, store: TokenStore, *, count: int = 3, top: int = 3) -> list[Sample]:
    """``count`` held-out sentences of 10 to 24 tokens from documents spread over the split, always the same."""
    tokens, tokenizer = store.heldout, predictor.tokenizer
    lengths = np.diff(tokens.sentences)
    fitting = np.flatnonzero((lengths >= 10) & (lengths <= 24))
    samples: list[Sample] = []
    for turn in range(4 * count):
        if len(samples) == count or not len(fitting):
            break
        # One place in each equal part of the split, so that all sources get their turn.
        part = len(fitting) * (turn % count) // count
        sentence = fitting[part + int(below(bits(turn, part), max(1, len(fitting) // count))[0])]
        ids = tokens.ids[tokens.sentences[sentence] : tokens.sentences[sentence + 1]].astype(np.int64)
        inner = store.continues_word[ids]
        whole = np.flatnonzero(~inner[1:-1] & ~inner[2:]) + 1  # words of one piece, not the first token
        whole = np.array([i for i in whole if tokenizer.token(int(ids[i])).isalpha()], np.int64)
        if not len(whole):
            continue
        at = whole[int(below(bits(turn, part, 1), len(whole))[0])]
        masked = ids.copy()
        masked[at] = tokenizer.mask_id
        text = f"{tokenizer.decode(ids[:at].tolist())} {MASK} {tokenizer.decode(ids[at + 1 :].tolist())}"
        [filled] = predictor.fill_ids(masked.tolist(), top=top)
        samples.append(Sample(text, tokenizer.token(int(ids[at])), filled))
    return samples
