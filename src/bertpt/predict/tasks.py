"""What a fine-tuned run predicts for given examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer, clean, load_tokenizer
from bertpt.errors import RequestError
from bertpt.predict.texts import Text, refuse
from bertpt.progress import Progress
from bertpt.progress import say as say_line
from bertpt.tasks.classification.labelled import Example
from bertpt.tasks.evaluation import open_best
from bertpt.tasks.kinds import TASKS
from bertpt.tasks.qa.questions import Question, read_questions
from bertpt.tasks.rundir import open_task_run
from bertpt.tasks.task import Facts, Task

_GROUP = 1024  # examples that are encoded and sorted by length at a time


@dataclass(frozen=True, slots=True)
class TaskPredictor:
    """The best epoch of a run, in evaluation mode, on a GPU when there is one.

    Attributes:
        task: its kind.
        model: the model.
        tokenizer: its tokenizer.
        facts: of the run.
    """

    task: Task
    model: nn.Module
    tokenizer: WordPieceTokenizer
    facts: Facts

    @classmethod
    def open(cls, directory: Path, *tasks: str) -> TaskPredictor:
        """Open a run of ``bertpt finetune``.

        Args:
            directory: of the run.
            tasks: what it may be of.

        Raises:
            RequestError: no such run, of another task, or no epoch of it has been scored yet.
        """
        run = open_task_run(directory)
        if run.config.task not in tasks:
            kind = run.config.task
            raise RequestError(f"{directory}: its task is {kind}; type: bertpt predict {kind} ...")
        model, checkpoint = open_best(run)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return cls(TASKS[run.config.task], model.to(device).eval(), load_tokenizer(run.tokenizer), checkpoint.state)

    def predict(
        self, examples: Sequence[Any], *, say: Callable[[str], None] = say_line, shown: bool = False
    ) -> Iterator[dict[str, Any]]:
        """What is predicted for each example, in their order: plain data for one JSON line.

        Args:
            examples: of the task; their labels are not looked at.
            say: gets a line when some do not fit a row.
            shown: whether progress is.
        """
        cut, counts = 0, Counter[str]()
        with Progress("predict", unit=self.task.unit, total=len(examples), shown=shown) as progress:
            for begin in range(0, len(examples), _GROUP):
                group = examples[begin : begin + _GROUP]
                encoded = self.task.encode(group, self.tokenizer, self.facts, known=False)
                cut += encoded.cut
                counts += encoded.counts
                predictions = self.task.predict(self.model, encoded, self.facts)
                yield from self.task.describe(group, predictions, self.facts)
                progress.add(len(group))
        if cut:
            length = self.facts["max_length"]
            say(f"{cut:,} of {len(examples):,} {self.task.unit} {self.task.overflow} {length} tokens, as in training")
        for name, count in counts.items():
            say(f"{count:,} {self.task.count_words[name]}")


def labelled_texts(texts: Sequence[Text], facts: Facts) -> list[Example]:
    """Examples of a classification, whose labels are not known.

    Args:
        texts: where the run is of pairs, each is two texts with a tab between.
        facts: of the run.

    Raises:
        RequestError: a text is no pair; names all of them.
    """
    rows = [tuple(text.text.split("\t")) if facts["pair"] else (text.text,) for text in texts]
    refuse(
        [
            f"{text.place}: {len(row)} texts; this run is of pairs: two texts with a tab between"
            for text, row in zip(texts, rows, strict=True)
            if facts["pair"] and len(row) != 2
        ]
    )
    return [Example(text.place, row, "") for text, row in zip(texts, rows, strict=True)]


def unanswered(texts: Sequence[Text]) -> list[Question]:
    """Questions whose answers are not known, each with its context behind a tab; further tabs are of the context.

    Raises:
        RequestError: a text is no such pair, or half of it is blank; names all of them.
    """
    pairs = [text.text.partition("\t")[::2] for text in texts]
    refuse(
        [
            f"{text.place}: a question, a tab and its context are expected"
            for text, pair in zip(texts, pairs, strict=True)
            if not all(part.strip() for part in pair)
        ]
    )
    return [
        Question(text.place, text.place, clean(question), clean(context))
        for text, (question, context) in zip(texts, pairs, strict=True)
    ]


def unanswered_file(path: Path) -> list[Question]:
    """The questions of a file (SQuAD, JSON lines, Parquet); answers in it are not looked at.

    Raises:
        RequestError: it cannot be read, holds no question, or some are malformed; names all of them.
    """
    found = read_questions(path, answered=False)
    refuse(found.faults)
    if not found.rows:
        raise RequestError(f"{path}: holds no questions")
    return found.rows
