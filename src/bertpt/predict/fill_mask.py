"""Filling in [MASK]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.model.pretraining import BertForPreTraining
from bertpt.predict.opening import open_model
from bertpt.predict.texts import Text, refuse
from bertpt.progress import Progress
from bertpt.progress import say as say_line
from bertpt.train.reports.samples import MASK, Filled, fill_ids

BATCH_SIZE = 32


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
                yield from fill_ids(self.model, self.tokenizer, batch, top=top)
                progress.add(len(batch))

    def _fault(self, text: Text, ids: Sequence[int]) -> str | None:
        if self.tokenizer.mask_id not in ids:
            return f"{text.place}: no {MASK} in {text.text[:60]!r}; write {MASK} where a word is to be found"
        positions = self.model.config.max_position_embeddings
        if len(ids) + 2 > positions:
            return f"{text.place}: {len(ids) + 2} tokens with [CLS] and [SEP], the model has {positions} positions"
        return None
