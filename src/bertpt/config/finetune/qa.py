"""The configuration of ``bertpt finetune qa``: questions that are answered by a piece of a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from bertpt.config.finetune.common import FinetuneConfig, TaskData, TaskTrain
from bertpt.config.schema import NoSwitch, Positive, Section

SPECIALS = 3  # [CLS] question [SEP] window [SEP]


class QuestionData(TaskData):
    """Where the questions are."""

    format: Literal["auto", "squad", "jsonl", "parquet"] = Field(
        "auto",
        description="auto: by the file's ending. squad: the JSON of SQuAD 1.1 and 2.0. jsonl, parquet: rows of"
        " question, context, answers (text, answer_start) and id, as in the data sets of the Hugging Face hub.",
    )
    version_2_with_negative: bool | None = Field(
        None,
        description="Whether a question may have no answer; default: whether one of train has none.",
    )


class Answers(Section):
    """How an answer is chosen among the pieces of the context."""

    max_answer_length: Positive = Field(30, description="Most tokens of an answer.")
    n_best: Positive = Field(20, description="Answers that are kept, and among which probabilities are shared.")
    null_score_threshold: Annotated[float, NoSwitch] = Field(
        0.0, description="No answer is given when its score lies this far above that of the best answer."
    )


class QuestionTrain(TaskTrain):
    """The training run; contexts that do not fit a row are read in windows."""

    max_length: Annotated[int, Field(ge=8), NoSwitch] = Field(
        384, description="Most tokens of a row: [CLS] question [SEP] window of the context [SEP]."
    )
    doc_stride: Positive = Field(128, description="Tokens of the context from the begin of a window to the next one's.")
    max_query_length: Positive = Field(64, description="Most tokens of a question; longer ones are cut, and counted.")
    metric: Literal["f1", "exact_match"] = Field("f1", description="Score on dev that chooses the best epoch.")


class QuestionConfig(FinetuneConfig):
    """Answers that stand in a text."""

    task: Literal["qa"]
    data: QuestionData
    answers: Answers = Answers()
    train: QuestionTrain = QuestionTrain()

    @property
    def metric(self) -> str:
        """``f1`` or ``exact_match``."""
        return self.train.metric

    @property
    def segments(self) -> int:
        """2: the question, and the context."""
        return 2

    def impossible(self) -> Iterator[str]:
        """Combinations that cannot be, a line for each."""
        yield from super().impossible()
        train = self.train
        room = train.max_length - SPECIALS - train.max_query_length
        if room < 1:
            yield (
                f"train.max_query_length: {train.max_query_length} leaves no room for the context in rows of"
                f" {train.max_length} tokens; lower it, or set train.max_length higher"
            )
        elif train.doc_stride > room:
            yield (
                f"train.doc_stride: {train.doc_stride} is more than the {room} tokens of a window beside a question of"
                f" {train.max_query_length}, so tokens between windows would never be read; set it to {room} or less"
            )
