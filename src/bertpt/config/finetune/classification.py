"""The configuration of ``bertpt finetune classification`` and ``sentiment``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from bertpt.config.finetune.common import Column, FileData, FinetuneConfig, HubSplits, TaskTrain, keys, names
from bertpt.config.schema import NoSwitch, Positive, Section, Share

SENTIMENTS = ("negative", "neutral", "positive")
METRICS = ("accuracy", "f1", "f1_macro", "matthews", "pearson", "spearman")
REGRESSION_METRICS = ("pearson", "spearman")


class TableData(FileData):
    """Where the examples are, and which columns hold what."""

    hub: HubSplits | None = Field(None, description="Splits of a hub data set in place of files.")
    text: Column = Field("text", description="Column of the text: name, or number from 0 (from the end: -1).")
    pair: Column | None = Field(None, description="Column of the second text, for tasks on pairs.")
    label: Column = Field("label", description="Column of the label, or of the score in a regression.")
    labels: Annotated[list[str] | None, BeforeValidator(names)] = Field(
        None, description="All labels in the order of their numbers; default: those of train, sorted."
    )
    label_map: Annotated[dict[str, str | None], BeforeValidator(names)] = Field(
        {}, description="Label in the files -> label of the task; null leaves such rows out. Empty: as they are."
    )


class Head(Section):
    """What stands on the pooled [CLS]."""

    kind: Literal["linear", "deep"] = Field("linear", description="deep: dense, ReLU, dropout before the last layer.")
    width: Positive | None = Field(None, description="deep: width of the dense layer; default: hidden_size.")
    dropout: Share | None = Field(None, description="Dropout in the head; default: that of the encoder.")


class ClassificationTrain(TaskTrain):
    """The training run; texts above ``max_length`` are cut and counted."""

    class_weights: Literal["none", "balanced"] = Field(
        "none", description="Weight of each label's loss; balanced: rows / (labels x rows of the label)."
    )
    label_weights: Annotated[dict[str, Annotated[float, Field(gt=0.0), NoSwitch]], BeforeValidator(keys)] = Field(
        {}, description="Weight of the loss by label, in place of class_weights; 1 for labels that are not named."
    )
    metric: Literal["accuracy", "f1", "f1_macro", "matthews", "pearson", "spearman"] | None = Field(
        None, description="Score on dev that chooses the best epoch; default: accuracy, in a regression pearson."
    )


class ClassificationConfig(FinetuneConfig):
    """Labels, or one number, of a text or a pair."""

    task: Literal["classification", "sentiment"]
    regression: bool = Field(False, description="Labels are numbers, and the loss is the squared error.")
    data: TableData
    head: Head = Head()
    train: ClassificationTrain = ClassificationTrain()

    @property
    def metric(self) -> str:
        """As set, else ``pearson`` in a regression and ``accuracy`` otherwise."""
        return self.train.metric or ("pearson" if self.regression else "accuracy")

    @property
    def segments(self) -> int:
        """2 where ``data.pair`` is set."""
        return 1 if self.data.pair is None else 2

    def impossible(self) -> Iterator[str]:
        """Combinations that cannot be, a line for each."""
        yield from super().impossible()
        yield from _labels(self)
        data = self.data
        if data.label in (data.text, data.pair) or data.text == data.pair:
            yield "data.text, data.pair, data.label: one column is read twice; name different ones"
        if data.hub is not None and data.format not in ("auto", "parquet"):
            yield f"data.format: {data.format}: splits of data.hub are kept as Parquet; leave it out"
        if data.format == "fasttext" and data.pair is not None:
            yield "data.pair: fasttext files hold one text a line; leave it out"
        if data.format == "jsonl":
            for key in ("text", "pair", "label"):
                if isinstance(value := getattr(data, key), int):
                    yield f"data.{key}: {value}: JSON lines have names, not numbers, of columns"
        if not data.header and data.format in ("csv", "tsv"):
            for key in ("text", "pair", "label"):
                if isinstance(value := getattr(data, key), str):
                    yield f"data.{key}: {value}: without a header a column is a number from 0, e.g. -1"
        if self.head.width is not None and self.head.kind == "linear":
            yield f"head.width: {self.head.width}: a linear head has none; set head.kind=deep"


def _labels(config: ClassificationConfig) -> Iterator[str]:
    data, train = config.data, config.train
    if config.regression:
        if config.task == "sentiment":
            yield "regression: sentiment has three classes; set task: classification"
        if data.labels is not None or data.label_map:
            yield "data.labels, data.label_map: a regression has none"
        if train.class_weights != "none" or train.label_weights:
            yield "train.class_weights, train.label_weights: a regression has no classes; leave them out"
    if train.class_weights != "none" and train.label_weights:
        yield "train.class_weights, train.label_weights: both are set; leave one out"
    wrong = REGRESSION_METRICS if not config.regression else [m for m in METRICS if m not in REGRESSION_METRICS]
    if train.metric in wrong:
        fitting = [metric for metric in METRICS if metric not in wrong]
        yield (
            f"train.metric: {train.metric} does not fit regression={str(config.regression).lower()};"
            f" set one of {', '.join(fitting)}"
        )
    if data.labels is not None and len(set(data.labels)) != len(data.labels):
        yield f"data.labels: a label stands twice: {', '.join(data.labels)}"
    if config.task == "sentiment":
        used = [*(data.labels or []), *(label for label in data.label_map.values() if label is not None)]
        for label in dict.fromkeys(used):
            if label not in SENTIMENTS:
                yield f"data.label_map: {label!r} is no sentiment; map each label to one of {', '.join(SENTIMENTS)}"
