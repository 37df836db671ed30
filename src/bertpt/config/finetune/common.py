"""What the configuration of every task has: weights to start from, files, and the training run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from bertpt.config.schema import Count, Model, NoSwitch, Positive, Section, Seed, Share

Column = Annotated[str | int, NoSwitch]


def as_text(value: Any) -> Any:
    """A label as text: YAML reads ``1`` as a number and ``no`` as false; other values stay for the schema to refuse."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def names(value: Any) -> Any:
    """Labels in a list, or in keys and values of a mapping, as text."""
    if isinstance(value, dict):
        return {as_text(key): item if item is None else as_text(item) for key, item in value.items()}
    return [as_text(item) for item in value] if isinstance(value, list) else value


def keys(value: Any) -> Any:
    """Labels in the keys of a mapping, as text."""
    return {as_text(key): item for key, item in value.items()} if isinstance(value, dict) else value


class Limits(Section):
    """Fewer examples, for a first try; which ones depends on their number alone, never on ``train.seed``."""

    train: Positive | None = Field(None, description="At most so many examples of train.")
    dev: Positive | None = Field(None, description="At most so many examples of dev and of test, each.")


class TaskData(Section):
    """Where the examples are."""

    train: str = Field(description="File to train on.")
    dev: str = Field(description="File by which the best epoch is chosen.")
    test: str | None = Field(None, description="File with labels that the best epoch is scored on, once.")
    limit: Limits = Limits()


class FileData(TaskData):
    """Where the examples are, each a row of a table."""

    format: Literal["auto", "csv", "tsv", "jsonl", "parquet", "fasttext"] = Field(
        "auto", description="auto: by the file's ending. fasttext: `__label__NAME` before the text."
    )
    header: bool = Field(True, description="csv, tsv: whether the first line names the columns.")
    quoting: bool | None = Field(
        None, description='csv, tsv: whether "..." encloses a cell; default: in csv it does, in tsv a quote is text.'
    )


class HubSplits(Section):
    """A data set of the Hugging Face hub: ``data.train``, ``dev`` and ``test`` name its splits, not files."""

    dataset: str = Field(min_length=1, description="Name on the hub, e.g. nyu-mll/glue; or a local folder.")
    config: str | None = Field(None, description="Configuration of the data set, e.g. sst2.")
    revision: str | None = Field(None, description="Commit, tag or branch, to pin the content.")
    size: str | None = Field(None, description="Stated download size, e.g. '5 MB', shown before it starts.")
    keep: str = Field("data/hub", description="Folder where splits are kept as Parquet, and fetched files.")


class TaskTrain(Section):
    """The training run."""

    epochs: Positive = 3
    batch_size: Positive = Field(32, description="Rows of an update.")
    accumulation: Positive = Field(1, description="Parts that a batch is computed in, to save memory.")
    lr: Annotated[float, Field(gt=0.0), NoSwitch] = Field(3e-5, description="Peak learning rate.")
    schedule: Literal["linear", "constant"] = "linear"
    warmup_ratio: Annotated[float, Field(ge=0.0, lt=1.0), NoSwitch] = Field(0.1, description="Share of the updates.")
    weight_decay: Annotated[float, Field(ge=0.0), NoSwitch] = 0.01
    clip: Annotated[float, Field(gt=0.0), NoSwitch] = Field(1.0, description="Largest global norm of the gradient.")
    dropout: Share | None = Field(None, description="Dropout of encoder and attention; default: as in the weights.")
    max_length: Annotated[int, Field(ge=4), NoSwitch] = Field(128, description="Most tokens of a row, specials too.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: Seed = Field(0, description="The head's initial weights, order and dropout follow from it.")
    log_every: Positive = 50
    save_every: Count = Field(0, description="Updates between checkpoints; 0: after each epoch.")
    keep: Positive = Field(1, description="Newest checkpoints that are kept, besides the best epoch.")


class FinetuneConfig(Section):
    """One fine-tuning experiment; each task adds what is its own."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(description="Folder under runs_dir.")
    description: str = ""
    runs_dir: str = "runs"
    task: str
    from_: str = Field(
        alias="from",
        description="A run, a checkpoint, or a directory made by `bertpt import` or transformers; or `random`: an"
        " encoder of random weights, as a control.",
    )
    like: str | None = Field(
        None, description="from: random: whose vocabulary, and whose shape where model is not given (as `from`)."
    )
    model: Model | None = Field(None, description="from: random: the shape of the network.")
    data: TaskData
    train: TaskTrain = TaskTrain()

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    @property
    def metric(self) -> str:
        """The score on dev that chooses the best epoch; higher is better."""
        raise NotImplementedError

    @property
    def segments(self) -> int:
        """Texts of a row: 1, or 2 of a pair."""
        return 1

    def impossible(self) -> Iterator[str]:
        """Combinations that cannot be, a line for each."""
        if self.from_ != "random":
            for key in ("like", "model"):
                if getattr(self, key) is not None:
                    yield f"{key}: is of from=random alone; {self.from_} brings its own"
        elif self.like is None:
            yield "like: is required with from=random: a run or directory whose vocabulary is used"
        if self.model is not None:
            if self.model.init_from is not None:
                yield "model.init_from: name the weights in from"
            if self.model.hidden_size % self.model.num_attention_heads:
                yield (
                    f"model.num_attention_heads: {self.model.num_attention_heads} does not divide model.hidden_size"
                    f" {self.model.hidden_size}"
                )
        if self.train.accumulation > self.train.batch_size:
            yield (
                f"train.accumulation: {self.train.accumulation} parts of {self.train.batch_size} rows; lower it, or set"
                " train.batch_size higher"
            )


# Keys whose change changes neither the result nor the examples: a resumed run takes the new values.
FREE_KEYS = {
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
