"""The configuration of ``bertpt finetune``: weights to start from, tables of examples, head, training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from bertpt.config.schema import Count, Model, NoSwitch, Positive, Section, Seed, Share
from bertpt.config.validate import fault_line
from bertpt.errors import RequestError

SENTIMENTS = ("negative", "neutral", "positive")
METRICS = ("accuracy", "f1", "f1_macro", "matthews", "pearson", "spearman")
REGRESSION_METRICS = ("pearson", "spearman")


def _names(value: Any) -> Any:
    # Labels are text, and YAML reads 1 as a number.
    if isinstance(value, dict):
        return {_name(key): item if item is None else _name(item) for key, item in value.items()}
    return [_name(item) for item in value] if isinstance(value, list) else value


def _keys(value: Any) -> Any:
    return {_name(key): item for key, item in value.items()} if isinstance(value, dict) else value


def _name(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


Column = Annotated[str | int, NoSwitch]


class Limits(Section):
    """Fewer rows, for a first try; which ones depends on their number alone, never on ``train.seed``."""

    train: Positive | None = Field(None, description="At most so many rows of train.")
    dev: Positive | None = Field(None, description="At most so many rows of dev and of test, each.")


class TaskData(Section):
    """Where the examples are, and which columns hold what."""

    train: str = Field(description="File to train on.")
    dev: str = Field(description="File by which the best epoch is chosen.")
    test: str | None = Field(None, description="File with labels that the best epoch is scored on, once.")
    format: Literal["auto", "csv", "tsv", "jsonl", "parquet", "fasttext"] = Field(
        "auto", description="auto: by the file's ending. fasttext: `__label__NAME` before the text."
    )
    header: bool = Field(True, description="csv, tsv: whether the first line names the columns.")
    quoting: bool | None = Field(
        None, description='csv, tsv: whether "..." encloses a cell; default: in csv it does, in tsv a quote is text.'
    )
    text: Column = Field("text", description="Column of the text: name, or number from 0 (from the end: -1).")
    pair: Column | None = Field(None, description="Column of the second text, for tasks on pairs.")
    label: Column = Field("label", description="Column of the label, or of the score in a regression.")
    labels: Annotated[list[str] | None, BeforeValidator(_names)] = Field(
        None, description="All labels in the order of their numbers; default: those of train, sorted."
    )
    label_map: Annotated[dict[str, str | None], BeforeValidator(_names)] = Field(
        {}, description="Label in the files -> label of the task; null leaves such rows out. Empty: as they are."
    )
    limit: Limits = Limits()


class Head(Section):
    """What stands on the pooled [CLS]."""

    kind: Literal["linear", "deep"] = Field("linear", description="deep: dense, ReLU, dropout before the last layer.")
    width: Positive | None = Field(None, description="deep: width of the dense layer; default: hidden_size.")
    dropout: Share | None = Field(None, description="Dropout in the head; default: that of the encoder.")


class TaskTrain(Section):
    """The training run."""

    epochs: Positive = 3
    batch_size: Positive = 32
    lr: Annotated[float, Field(gt=0.0), NoSwitch] = Field(3e-5, description="Peak learning rate.")
    schedule: Literal["linear", "constant"] = "linear"
    warmup_ratio: Annotated[float, Field(ge=0.0, lt=1.0), NoSwitch] = Field(0.1, description="Share of the updates.")
    weight_decay: Annotated[float, Field(ge=0.0), NoSwitch] = 0.01
    clip: Annotated[float, Field(gt=0.0), NoSwitch] = Field(1.0, description="Largest global norm of the gradient.")
    dropout: Share | None = Field(None, description="Dropout of encoder and attention; default: as in the weights.")
    max_length: Annotated[int, Field(ge=4), NoSwitch] = Field(
        128, description="Most tokens of a row, specials included; longer texts are cut and counted."
    )
    class_weights: Literal["none", "balanced"] = Field(
        "none", description="Weight of each label's loss; balanced: rows / (labels x rows of the label)."
    )
    label_weights: Annotated[dict[str, Annotated[float, Field(gt=0.0), NoSwitch]], BeforeValidator(_keys)] = Field(
        {}, description="Weight of the loss by label, in place of class_weights; 1 for labels that are not named."
    )
    metric: Literal["accuracy", "f1", "f1_macro", "matthews", "pearson", "spearman"] | None = Field(
        None, description="Score on dev that chooses the best epoch; default: accuracy, in a regression pearson."
    )
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: Seed = Field(0, description="The head's initial weights, order and dropout follow from it.")
    log_every: Positive = 50
    save_every: Count = Field(0, description="Updates between checkpoints; 0: after each epoch.")
    keep: Positive = Field(1, description="Newest checkpoints that are kept, besides the best epoch.")


class FinetuneConfig(Section):
    """One fine-tuning experiment."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(description="Folder under runs_dir.")
    description: str = ""
    runs_dir: str = "runs"
    task: Literal["classification", "sentiment"]
    from_: str = Field(
        alias="from",
        description="A run, a checkpoint, or a directory made by `bertpt import` or transformers; or `random`: an"
        " encoder of random weights, as a control.",
    )
    like: str | None = Field(
        None, description="from: random: whose vocabulary, and whose shape where model is not given (as `from`)."
    )
    model: Model | None = Field(None, description="from: random: the shape of the network.")
    regression: bool = Field(False, description="Labels are numbers, and the loss is the squared error.")
    data: TaskData
    head: Head = Head()
    train: TaskTrain = TaskTrain()

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    @property
    def metric(self) -> str:
        """The score on dev that chooses the best epoch; higher is better."""
        return self.train.metric or ("pearson" if self.regression else "accuracy")


def validate_finetune(data: Mapping[str, Any]) -> FinetuneConfig:
    """Check plain data against the schema and for impossible combinations.

    Raises:
        RequestError: all faults together, one line each, with the nearest valid name.
    """
    try:
        config = FinetuneConfig.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise RequestError(list(dict.fromkeys(fault_line(fault, FinetuneConfig) for fault in errors))) from None
    faults = list(_impossible(config))
    if faults:
        raise RequestError(faults)
    return config


def _impossible(config: FinetuneConfig) -> Iterator[str]:
    yield from _start(config)
    yield from _labels(config)
    data = config.data
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
    if config.head.width is not None and config.head.kind == "linear":
        yield f"head.width: {config.head.width}: a linear head has none; set head.kind=deep"


def _start(config: FinetuneConfig) -> Iterator[str]:
    if config.from_ != "random":
        for key in ("like", "model"):
            if getattr(config, key) is not None:
                yield f"{key}: is of from=random alone; {config.from_} brings its own"
    elif config.like is None:
        yield "like: is required with from=random: a run or directory whose vocabulary is used"
    if config.model is not None:
        if config.model.init_from is not None:
            yield "model.init_from: name the weights in from"
        if config.model.hidden_size % config.model.num_attention_heads:
            yield (
                f"model.num_attention_heads: {config.model.num_attention_heads} does not divide model.hidden_size"
                f" {config.model.hidden_size}"
            )


def _labels(config: FinetuneConfig) -> Iterator[str]:
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


def free_keys() -> set[str]:
    """Keys whose change changes neither the result nor the examples: a resumed run takes the new values."""
    return {
        "description",
        "runs_dir",
        "from",  # what it holds is compared by fingerprint
        "like",
        "data.train",
        "data.dev",
        "data.test",
        "train.device",
        "train.log_every",
        "train.save_every",
        "train.keep",
    }
