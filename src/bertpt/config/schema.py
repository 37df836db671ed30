"""The configuration of one experiment: what each key means, its type, default and bounds.

Parameter names of the model follow the Hugging Face ``BertConfig``. ``bertpt config schema`` prints
this file as JSON Schema for editors.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from bertpt.signals import A_TIME, duration_seconds


def _no_switch(value: Any) -> Any:
    # pydantic takes true for 1.
    if isinstance(value, bool):
        raise PydanticCustomError("number", "a number is expected")
    return value


# No path and no UTF-8 file can hold these.
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")

# The name of a folder; file systems hold 255 bytes, of which those that are written aside need some more.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

NoSwitch = BeforeValidator(_no_switch)
# What is counted in a configuration fits 32 bits (bytes of text: 64), as the code that takes it expects.
Positive = Annotated[int, Field(gt=0, lt=2**31), NoSwitch]
Count = Annotated[int, Field(ge=0, lt=2**31), NoSwitch]
Bytes = Annotated[int, Field(gt=0, lt=2**63), NoSwitch]
Seed = Annotated[int, Field(ge=0, lt=2**63), NoSwitch]
Beta = Annotated[float, Field(ge=0.0, lt=1.0), NoSwitch]
Share = Annotated[float, Field(ge=0.0, le=1.0), NoSwitch]


AUTO = 0  # in place of a count


def _count_or_auto(value: Any) -> Any:
    if value == "auto":
        return AUTO
    if isinstance(value, bool) or value == AUTO or (isinstance(value, str) and not value.isdigit()):
        raise PydanticCustomError("number_or_auto", "a number from 1 on, or auto, is expected")
    return value


Cut = Annotated[
    int,
    Field(ge=0, lt=2**31),
    BeforeValidator(_count_or_auto),
    PlainSerializer(lambda count: count or "auto"),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]}),
]


# Options of `pip download` that only choose a file. Others could run code (a build, another interpreter, a keyring
# program) or write elsewhere, and a configuration may come from a stranger.
_PIP_VALUES = (
    *("--platform", "--python-version", "--implementation", "--abi"),
    *("--index-url", "--extra-index-url", "--find-links"),
)
_PIP_FLAGS = ("--only-binary=:all:", "--no-index", "--pre")


def _harmless_pip(arguments: list[str]) -> list[str]:
    waiting = False  # for the value of an option
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if waiting and not argument.startswith("-"):
            waiting = False
        elif not waiting and argument in _PIP_FLAGS:
            continue
        elif not waiting and name in _PIP_VALUES:
            waiting = not equals
        else:
            raise PydanticCustomError(
                "pip_args",
                "only {known}, each with its value, are allowed",
                {"known": ", ".join((*_PIP_FLAGS, *_PIP_VALUES))},
            )
    if waiting:
        raise PydanticCustomError("pip_args", "the last option has no value")
    return arguments


def _is_time(text: object) -> object:
    if text is not None and not (isinstance(text, str) and duration_seconds(text)):
        raise PydanticCustomError("duration", A_TIME)
    return text


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _writable_text(cls, value: Any) -> Any:
        if isinstance(value, str) and _UNWRITABLE.search(value):
            raise PydanticCustomError("text", "text without NUL and without halves of characters is expected")
        return value


# --- corpus ---------------------------------------------------------------------------------------------------


class Source(Section):
    """What every kind of source shares."""

    name: str | None = Field(None, description="Label of the source in reports; default: made from its place.")
    weight: Annotated[float, Field(gt=0.0), NoSwitch] | None = Field(
        None,
        description="Share of the training text that comes from this source, beside the weights of the others; all"
        " sources have one or none has: then each document comes once in an epoch.",
    )
    max_repeats: Annotated[float, Field(gt=0.0), NoSwitch] = Field(
        4.0,
        description="With weights: a document comes at most so often in an epoch, on average; what the source then"
        " lacks goes to the others by their weights.",
    )


class FilesSource(Source):
    """Local files: text, JSON lines, CSV, TSV or Parquet, each also compressed with gzip, bzip2, xz or zstd."""

    kind: Literal["files"]
    path: str = Field(min_length=1, description="A file, a folder (read in full) or a glob pattern.")
    format: Literal["auto", "text", "jsonl", "csv", "tsv", "parquet"] = Field(
        "auto", description="auto: by the file's ending. In tsv quotes are text."
    )
    documents: Literal["auto", "blank-line", "file", "row", "group", "heading"] = Field(
        "auto",
        description="Where a document ends. auto: text files by blank lines when a file has any between"
        " lines and there is one file, else one document per file; rows for all but text.",
    )
    text_column: str = Field("text", description="Column that holds the text, of all but text files.")
    group_column: str | None = Field(None, description="documents: group. Adjacent rows of equal value join.")
    heading: str | None = Field(None, description="documents: heading. Regular expression of a first line.")
    validation: str | None = Field(None, description="Files that are held out, in place of a share of the rest.")


class HubSource(Source):
    """A data set of the Hugging Face hub, read through ``datasets``."""

    kind: Literal["hub"]
    dataset: str = Field(description="Name on the hub, e.g. Salesforce/wikitext; or a local folder.")
    config: str | None = Field(None, description="Configuration of the data set, e.g. wikitext-103-raw-v1.")
    revision: str | None = Field(None, description="Commit, tag or branch, to pin the content.")
    split: str = "train"
    validation_split: str | None = Field(None, description="A split that is held out as it is.")
    text_column: str = "text"
    streaming: bool = Field(False, description="Read without downloading the whole data set first.")
    documents: Literal["row", "blank-line", "group", "heading"] = Field("row", description="Where a document ends.")
    group_column: str | None = None
    heading: str | None = Field(None, description="Regular expression of the line that begins a document.")
    detokenize: Literal["none", "wikitext"] = Field("none", description="wikitext: undo ` @-@ ` and loose punctuation.")
    size: str | None = Field(None, description="Stated download size, e.g. '0.5 GB', shown before it starts.")

    @property
    def label(self) -> str:
        """Data set and configuration, e.g. ``wikipedia-20231101.en``: each language is a corpus of its own."""
        dataset = PurePath(self.dataset).name
        config = self.config or ""
        return config if config.startswith(dataset) else f"{dataset}-{config}".strip("-")


class WikidumpSource(Source):
    """A MediaWiki XML dump (.xml, .bz2, .gz), from a file or an address."""

    kind: Literal["wikidump"]
    path: str | None = Field(None, description="A local dump.")
    url: str | None = Field(None, description="Where to get it; the hash makes the download safe to resume.")
    sha256: str | None = Field(None, description="Hash of the file at url.")
    size: str | None = Field(None, description="Stated download size, shown before it starts.")


class WheelSource(Source):
    """Text shipped inside a pinned package of the package index; one member is read, nothing is installed."""

    kind: Literal["wheel"]
    # No address, no path, no option: those could make pip build, and so run, what lies there.
    package: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*$")] = Field(
        description="Name and version, e.g. gensim==4.4.0."
    )
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = Field(description="Hash of the wheel file.")
    member: str = Field(description="Path of the file inside the wheel.")
    reader: Literal["text", "wikidump", "verses"] = Field(
        description="text: blank lines end documents; wikidump: a MediaWiki dump; verses: a Python source whose"
        " call holds one string and two integer dictionaries verse id -> start / end, one document per chapter."
    )
    pip_args: Annotated[list[str], AfterValidator(_harmless_pip)] = Field(
        [], description="More arguments of `pip download`: where to look, and for which platform, e.g. --platform."
    )
    size: str | None = Field(None, description="Stated download size, shown before it starts.")


class DocstringsSource(Source):
    """Documentation text of the running Python installation; needs no network."""

    kind: Literal["docstrings"]


AnySource = Annotated[
    FilesSource | HubSource | WikidumpSource | WheelSource | DocstringsSource, Field(discriminator="kind")
]


class Limit(Section):
    """Reads less, for a first try."""

    documents: Positive | None = Field(None, description="At most so many documents of each source.")
    bytes: Bytes | None = Field(None, description="At most so many bytes of text of each source (UTF-8).")


class Heldout(Section):
    """Documents that are never trained on."""

    share: Annotated[float, Field(ge=0.0, lt=1.0), NoSwitch] = Field(
        0.05, description="Share of each source's documents, chosen by the hash of their text."
    )
    min_documents: Positive = Field(8, description="At least so many of each source, or a refusal.")
    max_documents: Positive = Field(2000, description="No more than so many of each source.")
    near_duplicates: Share | None = Field(
        0.8,
        description="Training documents that share this part of their word 5-grams with a held-out one (Jaccard"
        " similarity) are removed; 0 or null: none is.",
    )


class Corpus(Section):
    """What text is read and where documents and sentences end."""

    name: Annotated[str, Field(pattern=NAME, max_length=200)] | None = Field(
        None, description="Folder under data_dir; default: made from the first source."
    )
    sources: Annotated[list[AnySource], Field(min_length=1)]
    fallback: list[AnySource] = Field(
        [], description="Used, with a note, when the package index or hub cannot be reached."
    )
    language: str = Field("en", description="Language code for splitting sentences (sentencex, about 300).")
    sentences: Literal["split", "lines"] = Field(
        "split", description="split: sentences are found by language rules; lines: each line is one sentence."
    )
    encoding_errors: Literal["strict", "replace"] = Field(
        "strict", description="Bytes that are not UTF-8: refuse (file, line, byte) or replace and count."
    )
    limit: Limit = Limit()
    heldout: Heldout = Heldout()
    deduplicate: Literal["none", "documents", "near-duplicates"] = Field(
        "none",
        description="documents: of training documents with the same text the first is kept; near-duplicates: also of"
        " those that nearly repeat another one (3.5 KB of memory a document); none: all are. Copies are counted in any"
        " case.",
    )
    similarity: Annotated[float, Field(gt=0.0, le=1.0), NoSwitch] = Field(
        0.8, description="deduplicate near-duplicates: Jaccard similarity of word 5-grams from which one is dropped."
    )
    max_line_documents: Positive | None = Field(
        None,
        description="A line that stands in more documents than this, word for word, is taken out of all of them"
        " (menus, licences); null: none is.",
    )
    min_sentences: Positive = Field(1, description="Shorter documents are dropped and counted.")
    min_letters: Count = Field(0, description="Documents of fewer characters are dropped and counted.")
    max_letters: Positive | None = Field(None, description="Documents of more characters are dropped and counted.")

    @property
    def folder(self) -> str:
        """Folder name under ``data_dir``."""
        if self.name:
            return self.name
        source = self.sources[0]
        if source.name:
            place = source.name
        elif isinstance(source, HubSource):
            place = source.label
        elif path := getattr(source, "path", None) or getattr(source, "url", None):
            place = PurePath(path).stem
        else:
            place = getattr(source, "package", source.kind).partition("==")[0]
        return re.sub(r"[^A-Za-z0-9._-]+", "-", place).strip("-._")[:200] or "corpus"


class Tokenizer(Section):
    """WordPiece vocabulary: trained on the corpus, or a given one."""

    from_: str | None = Field(
        None,
        alias="from",
        description="A vocab.txt or a tokenizer folder to use as it is; default: the tokenizer of model.init_from.",
    )
    extend_from: str | None = Field(
        None,
        description="A file of words, one a line, or a vocab.txt: those that the given tokenizer cuts into pieces"
        " become entries at the vocabulary's end.",
    )
    vocab_size: Annotated[int, Field(ge=6, lt=2**31), NoSwitch] = Field(
        30522, description="At most so many entries, specials included."
    )
    lowercase: bool = Field(True, description="Uncased model: letters are lower-cased.")
    strip_accents: bool | None = Field(None, description="Remove accents; default: as lowercase.")
    handle_chinese_chars: bool = Field(True, description="Each CJK character is a word.")
    min_frequency: Positive = Field(2, description="Pairs seen less often are not merged.")
    sample_bytes: Bytes = Field(
        1_000_000_000, description="Train on at most so much text: whole documents, chosen by the seed."
    )
    seed: Seed = 0

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)


# --- examples -------------------------------------------------------------------------------------------------


class Pairs(Section):
    """How rows are made of sentences (Google's create_pretraining_data)."""

    rule: Literal["next", "order", "none"] = Field(
        "next",
        description="next: B follows A or is random (BERT); order: two segments of one document in a row, in order or"
        " swapped with equal chance (sentence order of ALBERT); none: whole sentences of one document, no pairs.",
    )
    random_share: Share = Field(0.5, description="rule next: share of pairs whose B is from another document.")
    random_from: Literal["corpus", "source"] = Field(
        "corpus",
        description="rule next: where a random B is drawn: any document (as released), or one of A's own source, so"
        " that telling the sources apart does not solve the task.",
    )
    short_share: Share = Field(0.1, description="Share of rows with a shorter random target length.")
    curriculum_epochs: Count = Field(
        0,
        description="In so many first epochs of each phase the rows come by their number of tokens, fewest first, equal"
        " ones shuffled; all later epochs are shuffled.",
    )


class Masking(Section):
    """Which tokens are predicted and what stands in their place."""

    rate: Annotated[float, Field(gt=0.0, le=0.9), NoSwitch] = Field(
        0.15, description="Share of maskable tokens predicted."
    )
    mask_share: Share = Field(0.8, description="Of these, replaced by [MASK].")
    random_share: Share = Field(0.1, description="Of these, replaced by a random token; the rest stay.")
    unit: Literal["token", "whole-word", "ngram"] = Field(
        "token",
        description="What is chosen: single tokens; whole words, with all their pieces; or runs of 1 to max_ngram whole"
        " words of one segment, n words with a chance in proportion to 1/n (ALBERT).",
    )
    max_ngram: Annotated[int, Field(ge=2, le=100), NoSwitch] = Field(
        3, description="unit ngram: most words that are chosen in a run."
    )
    dupe_factor: Count = Field(
        0,
        description="0: new masks in every epoch. N: static masks, for comparisons: a token meets one of N draws,"
        " in turn with the epochs (1: the same in each; Google's data had 10).",
    )


# --- model ----------------------------------------------------------------------------------------------------


class Model(Section):
    """Shape of the network, by the names of the Hugging Face ``BertConfig``."""

    init_from: str | None = Field(
        None,
        description="A run, a checkpoint, or a directory made by `bertpt import` or transformers whose weights, shape"
        " and tokenizer to go on with. Keys of the shape are then left out; max_position_embeddings may be larger.",
    )
    hidden_size: Positive = 768
    num_hidden_layers: Positive = 12
    num_attention_heads: Positive = 12
    intermediate_size: Positive | None = Field(None, description="Default: 4 x hidden_size.")
    hidden_act: Literal["gelu", "gelu_new"] = Field("gelu", description="gelu: exact (erf); gelu_new: tanh form.")
    hidden_dropout_prob: Share = 0.1
    attention_probs_dropout_prob: Share = 0.1
    max_position_embeddings: Positive = 512
    type_vocab_size: Positive = 2
    initializer_range: Annotated[float, Field(gt=0.0), NoSwitch] = 0.02
    layer_norm_eps: Annotated[float, Field(gt=0.0), NoSwitch] = 1e-12
    pad_vocab_to_multiple_of: Positive = Field(
        1, description="Rows of the token embedding; extra rows are never predicted nor drawn."
    )

    shape_keys: ClassVar[tuple[str, ...]] = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_act",
        "max_position_embeddings",
        "type_vocab_size",
        "layer_norm_eps",
    )
    """What weights fix: with ``init_from`` these come from it."""

    @property
    def ffn_size(self) -> int:
        """Width of the feed-forward layer."""
        return self.intermediate_size or 4 * self.hidden_size


# --- training -------------------------------------------------------------------------------------------------


class Ramp(Section):
    """A batch that grows: cheap updates first, while the gradient says little that is new."""

    batch_size: Positive = Field(description="Rows of the first update; a divisor of the phase's batch_size.")
    steps: Positive = Field(
        description="Updates over which the batch grows to the phase's batch_size: by as many rows as it began with, in"
        " stages of equal length."
    )


class Phase(Section):
    """A part of the run at one sequence length."""

    length: Annotated[int, Field(ge=8, lt=2**31), NoSwitch] = Field(
        128, description="Most tokens in a row, specials included."
    )
    steps: Positive = Field(description="Updates in this phase.")
    batch_size: Positive = Field(256, description="Rows in one update, over all devices and micro-batches.")
    accumulate: Cut = Field(
        1,
        description="Micro-batches that one update is computed in; same result. auto: the fewest that a GPU's memory"
        " allows, found at the start (on a CPU 1).",
    )
    ramp: Ramp | None = Field(None, description="Smaller updates at the start of the phase.")

    @property
    def parts(self) -> int:
        """Micro-batches of a full update; 1 where they are not chosen yet."""
        return self.accumulate or 1

    @property
    def stages(self) -> list[tuple[int, int]]:
        """Batches of the phase in their order: update (from 0) from which on, and its rows."""
        if self.ramp is None:
            return [(0, self.batch_size)]
        first, steps = self.ramp.batch_size, self.ramp.steps
        growths = max(1, self.batch_size // first - 1)
        return [(-(-stage * steps // growths), (stage + 1) * first) for stage in range(self.batch_size // first)]

    def rows(self, step: int) -> int:
        """Rows of update ``step`` (from 0)."""
        return next(rows for begin, rows in reversed(self.stages) if step >= begin)

    def rows_before(self, step: int) -> int:
        """Rows of all updates before update ``step`` (from 0)."""
        before = 0
        stages = self.stages
        for (begin, rows), (end, _) in zip(stages, [*stages[1:], (step, 0)], strict=True):
            before += rows * max(0, min(step, end) - begin)
        return before


class Optimizer(Section):
    """AdamW or LAMB, with decoupled weight decay (not on biases and LayerNorm)."""

    kind: Literal["adamw", "lamb"] = Field(
        "adamw", description="lamb: steps are scaled to the norm of each weight, for batches of many thousand rows."
    )
    lr: Annotated[float, Field(gt=0.0), NoSwitch] = Field(1e-4, description="Peak learning rate.")
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0.0), NoSwitch] = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0), NoSwitch] = 0.01
    bias_correction: bool = Field(True, description="false: Google's released optimizer.")


class Schedule(Section):
    """Learning rate over the updates, or the tokens, of all phases."""

    kind: Literal["linear", "cosine", "polynomial", "trapezoid", "inverse_sqrt", "constant"] = Field(
        "linear",
        description="After the warm-up: linear or cosine or polynomial to zero; trapezoid: constant, then linear to"
        " zero; inverse_sqrt: as the root of warm-up / update; constant.",
    )
    over: Literal["updates", "tokens"] = Field(
        "updates",
        description="What counts as the way from start to end. tokens: room for tokens, rows x length, so that updates"
        " of fewer or shorter rows (a ramp, phases) move it less.",
    )
    power: Annotated[float, Field(gt=0.0, le=10.0), NoSwitch] = Field(2.0, description="polynomial: of what is left.")
    decay_ratio: Annotated[float, Field(gt=0.0, le=1.0), NoSwitch] = Field(
        0.2, description="trapezoid: share of the run (see over) over which the rate falls at the end."
    )
    warmup_steps: Count | None = Field(None, description="Updates of rising rate; or give warmup_ratio.")
    warmup_ratio: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="The same as a share of the run (see over), so that it follows when steps are changed."
    )

    def warmup(self, total: int) -> int:
        """Updates of warm-up in a run of ``total``."""
        return int(self.warmup_ratio * total) if self.warmup_steps is None else self.warmup_steps


class Train(Section):
    """The training run."""

    phases: Annotated[list[Phase], Field(min_length=1)]
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    budget: Annotated[str | None, BeforeValidator(_is_time)] = Field(
        None,
        description="Time of the whole run, e.g. 24h or 1d12h, over all its starts, evaluations included: the learning"
        " rate reaches zero at its end, and the update that passes it is the last. steps stay the most.",
    )
    clip: Annotated[float, Field(gt=0.0), NoSwitch] = Field(1.0, description="Largest global norm of the gradient.")
    nsp_weight: Annotated[float, Field(ge=0.0), NoSwitch] = Field(1.0, description="Weight of the next-sentence loss.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="auto: bf16 on a GPU that has it, fp32 on a CPU (bf16 is no faster there, or far slower). fp16: for"
        " GPUs without bf16; losses are scaled, an update whose gradient overflows is left out and counted as skipped.",
    )
    tf32: bool = Field(
        False, description="In fp32 on a GPU of 2020 or later: products of matrices with 10 bits of mantissa, faster."
    )
    activation_checkpointing: bool = Field(
        False,
        description="Keep of each layer its input alone, and compute the layer again in the backward pass: same result,"
        " far less memory, about a third more time.",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: Seed = Field(0, description="Initial weights, pairs, masks, order and dropout follow from it.")
    workers: Count = Field(
        0, description="Loader processes (of each process under torchrun); the batches are the same for any number."
    )
    shard_optimizer: bool = Field(
        False,
        description="Under torchrun each process keeps the optimizer's moments of a part of the weights alone: less"
        " memory, more to send; same result.",
    )
    log_every: Positive = 100
    eval_every: Count = Field(1000, description="Updates between evaluations during training; 0: only at the end.")
    histograms: bool = Field(
        False, description="Distributions of all weights and gradients at each evaluation, in TensorBoard."
    )
    save_every: Positive = Field(1000, description="Updates between checkpoints; one is always saved at the end.")
    keep: Positive = Field(2, description="Newest checkpoints that are kept.")
    keep_every: Count = Field(0, description="Checkpoints of every so many updates are kept for good; 0: of none.")
    max_skips: Positive = Field(
        10,
        description="An update whose loss or gradient is no finite number is left out; after so many in a row the run"
        " stops.",
    )

    @property
    def budget_seconds(self) -> int | None:
        """The budget."""
        return None if self.budget is None else duration_seconds(self.budget)


class Evaluate(Section):
    """Held-out evaluation."""

    max_rows: Positive = Field(2000, description="Rows used during training and by default in `bertpt eval`.")
    batch_size: Positive = 64


class Config(Section):
    """One experiment."""

    name: Annotated[str, Field(pattern=NAME, max_length=200)] = Field(description="Folder under runs_dir.")
    description: str = Field("", description="Purpose, hardware, expected cost and the source of the numbers.")
    data_dir: str = "data"
    runs_dir: str = "runs"
    corpus: Corpus
    tokenizer: Tokenizer = Tokenizer()
    pairs: Pairs = Pairs()
    masking: Masking = Masking()
    model: Model = Model()
    train: Train
    evaluate: Evaluate = Evaluate()
