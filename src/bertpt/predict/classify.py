"""Labels, or scores, of texts by a fine-tuned run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertpt.data.wordpiece import WordPieceTokenizer, load_tokenizer
from bertpt.model.sequence import BertForSequenceClassification
from bertpt.predict.texts import Text, refuse
from bertpt.progress import Progress
from bertpt.progress import say as say_line
from bertpt.tasks.classification import predict_rows
from bertpt.tasks.encode import encode_rows
from bertpt.tasks.evaluation import describe, open_best
from bertpt.tasks.rundir import open_task_run

_GROUP = 1024  # texts that are encoded and sorted by length at a time


@dataclass(frozen=True, slots=True)
class Classifier:
    """The best epoch of a run, in evaluation mode, on a GPU when there is one.

    Attributes:
        model: the model.
        tokenizer: its tokenizer.
        facts: plain data: labels, longest row, whether texts are pairs.
    """

    model: BertForSequenceClassification
    tokenizer: WordPieceTokenizer
    facts: dict[str, Any]

    @classmethod
    def open(cls, directory: Path) -> Classifier:
        """Open a run of ``bertpt finetune``.

        Raises:
            RequestError: no such run, or no epoch of it has been scored yet.
        """
        run = open_task_run(directory)
        model, checkpoint = open_best(run)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return cls(model.to(device).eval(), load_tokenizer(run.tokenizer), checkpoint.state)

    def classify(
        self, texts: Sequence[Text], *, say: Callable[[str], None] = say_line, shown: bool = False
    ) -> Iterator[dict[str, Any]]:
        """What is predicted for each text, in their order: plain data for one JSON line.

        Args:
            texts: where the run is of pairs, each is two texts with a tab between.
            say: gets a line when texts were cut.
            shown: whether progress is.

        Raises:
            RequestError: a text is no pair; names all of them before any work.
        """
        pairs, length = self.facts["pair"], self.facts["max_length"]
        rows = [tuple(text.text.split("\t")) if pairs else (text.text,) for text in texts]
        refuse(
            [
                f"{text.place}: {len(row)} texts; this run is of pairs: two texts with a tab between"
                for text, row in zip(texts, rows, strict=True)
                if pairs and len(row) != 2
            ]
        )
        cut = 0
        with Progress("classify", unit="texts", total=len(texts), shown=shown) as progress:
            for begin in range(0, len(rows), _GROUP):
                group = rows[begin : begin + _GROUP]
                encoded = encode_rows(self.tokenizer, group, length)
                cut += encoded.cut
                for row, found in zip(group, describe(self.facts, predict_rows(self.model, encoded)), strict=True):
                    yield dict(zip(("text", "pair"), row, strict=False)) | found
                progress.add(len(group))
        if cut:
            say(f"{cut:,} of {len(rows):,} texts were cut to the {length} tokens that the run was trained with")
