"""The configuration of ``bertpt finetune summarization``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bertpt.config.finetune.common import Column, FileData, FinetuneConfig, TaskTrain
from bertpt.config.languages import language_code
from bertpt.config.schema import NoSwitch, Positive, Section
from bertpt.errors import RequestError

Part = Annotated[float, Field(ge=0.0, lt=1.0), NoSwitch]


class Shares(Section):
    """Parts of one file, by the hash of each article's text, so that copies of an article come together."""

    dev: Annotated[float, Field(gt=0.0, lt=1.0), NoSwitch] = Field(0.1, description="Share of the articles for dev.")
    test: Part = Field(0.1, description="Share of the articles for test; 0: none.")


class ArticleData(FileData):
    """Where the articles are, and which columns hold what."""

    dev: str = Field("", description="File by which the best epoch is chosen; with shares: data.train.")
    shares: Shares | None = Field(None, description="data.train is the only file, of which dev and test are parts.")
    article: Column = Field("article", description="Column of the article: its text, or a list of lines.")
    summary: Column | None = Field("summary", description="Column of the summary: its text, or a list of lines.")
    labels: Column | None = Field(
        None, description="sentences: lines: column of a 0 or 1 for each sentence, in place of those by the summary."
    )
    sentences: Literal["split", "lines"] = Field(
        "split", description="split: find sentences by the rules of the language; lines: each line is one."
    )
    language: str = Field("en", description="Whose rules find sentences: en, de, zh ...")
    headline: bool = Field(
        False, description="The first paragraph is a headline: neither chosen nor read, nor counted by lead-k."
    )
    oracle_limit: Positive | None = Field(
        None, description="Most sentences of a label that is found greedily; default: as long as ROUGE rises."
    )

    @model_validator(mode="before")
    @classmethod
    def _one_file(cls, value: Any) -> Any:
        """With shares, dev (and test) are the file of train."""
        if isinstance(value, dict) and value.get("shares") is not None and isinstance(value.get("train"), str):
            shares = value["shares"]
            has_test = not isinstance(shares, dict) or shares.get("test", 0.1) != 0
            filled = {"dev": value["train"]} | ({"test": value["train"]} if has_test else {})
            return value | {key: place for key, place in filled.items() if not value.get(key)}
        return value


class Summary(Section):
    """What is chosen: the sentences of the highest scores, in the order of the article."""

    k: Positive | Literal["auto"] = Field(
        "auto", description="Sentences of a summary; auto: the mean number of labelled sentences in train."
    )
    share: Annotated[float, Field(gt=0.0, le=1.0), NoSwitch] | Literal["auto"] | None = Field(
        None, description="In place of k: share of the article's sentences; auto: the share that is labelled in train."
    )
    trigram_blocking: bool = Field(
        False, description="Pass over a sentence that shares three words in a row with one chosen before."
    )


class SentenceHead(Section):
    """What gives a sentence its score."""

    pooling: Literal["mean", "cls"] = Field(
        "mean", description="mean: all tokens of the sentence; cls: the [CLS] before it, as in BERTSUM."
    )


class SummarizationTrain(TaskTrain):
    """The training run; a row is a window of whole sentences."""

    batch_size: Positive = Field(8, description="Windows of an update.")
    max_length: Annotated[int, Field(ge=8), NoSwitch] = Field(
        512, description="Most tokens of a window, specials too; longer articles have several."
    )
    metric: Literal["rouge1", "rouge2", "rougeL"] = Field(
        "rouge2", description="Score on dev (F-measure) that chooses the best epoch."
    )


class SummarizationConfig(FinetuneConfig):
    """The sentences of an article that say the most of it."""

    task: Literal["summarization"]
    data: ArticleData
    summary: Summary = Summary()
    head: SentenceHead = SentenceHead()
    train: SummarizationTrain = SummarizationTrain()

    @property
    def metric(self) -> str:
        """As set."""
        return self.train.metric

    def impossible(self) -> Iterator[str]:
        """Combinations that cannot be, a line for each."""
        yield from super().impossible()
        data = self.data
        if not data.dev:
            yield "data.dev: is required; or data.shares, where data.train is the only file"
        if data.format == "fasttext":
            yield "data.format: fasttext files hold no summaries; set csv, tsv, jsonl or parquet"
        if data.summary is None and data.labels is None:
            yield "data.summary: is required; or data.labels, a 0 or 1 for each sentence"
        if data.labels is not None and (data.sentences != "lines" or data.headline):
            yield "data.labels: need data.sentences=lines and no headline: a 0 or 1 for each line"
        if data.shares is not None:
            if any(place not in (None, data.train) for place in (data.dev, data.test)):
                yield "data.shares: dev and test are parts of data.train; leave out data.dev and data.test"
            if data.shares.dev + data.shares.test >= 1:
                yield "data.shares: nothing is left for train; lower dev or test"
        if self.summary.share is not None and self.summary.k != "auto":
            yield "summary.k, summary.share: both are set; leave one out"
        try:
            language_code(data.language)
        except RequestError as error:
            yield str(error).replace("corpus.language", "data.language")
