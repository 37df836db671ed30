"""The configuration of ``bertpt finetune ner`` and ``tagging``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from bertpt.config.finetune.common import Column, FinetuneConfig, TaskData, TaskTrain
from bertpt.config.schema import Section, Share

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
METRICS = {"ner": ("f1", "precision", "recall", "accuracy"), "tagging": ("accuracy", "f1_macro")}


class TaggedData(TaskData):
    """Where the sentences are, and where in them words and tags stand."""

    format: Literal["auto", "conll", "conllu", "jsonl", "parquet"] = Field(
        "auto",
        description="auto: by the file's ending, conll where it says nothing. conll: a word a line in columns, a blank"
        " line after each sentence. jsonl, parquet: a list of words and one of tags.",
    )
    token: Column | None = Field(
        None, description="Column of the words; default: 0 in conll, form in conllu, tokens in jsonl and parquet."
    )
    tag: Column | None = Field(
        None, description="Column of the tags; default: -1 (the last) in conll, upos in conllu, tags in jsonl, parquet."
    )
    comments: bool = Field(False, description="conll: whether lines that begin with `#` are comments, not words.")
    scheme: Literal["auto", "iob1", "iob2", "bioes", "io"] = Field(
        "auto",
        description="ner: how entities are written; all become IOB2. auto, for each file: bioes where E-, S-, L- or U-"
        " stand; else iob1 where more entities begin with I- than with B-, not counting those after one of their"
        " own type; else iob2. io: a type without prefix.",
    )


class TagHead(Section):
    """What stands on the first piece of each word."""

    crf: bool = Field(False, description="A linear-chain CRF over the tags of a sentence; else each word for itself.")
    dropout: Share | None = Field(None, description="Dropout before the last layer; default: that of the encoder.")


class TaggingTrain(TaskTrain):
    """The training run; sentences above ``max_length`` are read in windows."""

    metric: Literal["f1", "precision", "recall", "accuracy", "f1_macro"] | None = Field(
        None,
        description="Score on dev that chooses the best epoch; ner: f1 (default), precision or recall of entities, or"
        " accuracy of words; tagging: accuracy (default) or f1_macro.",
    )


class TaggingConfig(FinetuneConfig):
    """A tag for each word of a sentence; in ``ner`` the tags are entities in IOB2."""

    task: Literal["ner", "tagging"]
    data: TaggedData
    head: TagHead = TagHead()
    train: TaggingTrain = TaggingTrain()

    @property
    def metric(self) -> str:
        """As set, else ``f1`` of entities and ``accuracy`` of tags."""
        return self.train.metric or METRICS[self.task][0]

    def impossible(self) -> Iterator[str]:
        """Combinations that cannot be, a line for each."""
        yield from super().impossible()
        data = self.data
        if self.metric not in METRICS[self.task]:
            yield f"train.metric: {self.metric} is none of {self.task}: set one of {', '.join(METRICS[self.task])}"
        if self.task != "ner" and data.scheme != "auto":
            yield f"data.scheme: {data.scheme}: tags of {self.task} have none; set task: ner for entities"
        for key in ("token", "tag"):
            value = getattr(data, key)
            if data.format == "conll" and isinstance(value, str):
                yield f"data.{key}: {value}: in conll a column is a number from 0, or from the end: -1"
            if data.format == "jsonl" and isinstance(value, int):
                yield f"data.{key}: {value}: JSON lines have names, not numbers, of columns"
            if data.format == "conllu" and isinstance(value, str) and value not in CONLLU_COLUMNS:
                yield f"data.{key}: {value}: the columns of conllu are {', '.join(CONLLU_COLUMNS)}"
