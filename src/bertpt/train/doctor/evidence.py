"""What is known of a run: its settings, its log, and facts of the text it is trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bertpt.config import Config, plain, validate
from bertpt.data.locate import documents_dir, trained_store
from bertpt.data.rows.baselines import store_unigrams, unigram_entropy
from bertpt.data.tokens.store import TokenStore
from bertpt.errors import RequestError
from bertpt.files import read_json, read_manifest
from bertpt.train.reports.logs import read_metrics
from bertpt.train.rundir import Run, open_run


@dataclass(frozen=True, slots=True)
class TextFacts:
    """Of the training text. Shares from 0 to 1; ``None`` where the documents are not there any more.

    Attributes:
        entropy: of the unigrams, nats.
        unknown_share: of the tokens, [UNK].
        copies_share: of the documents, those that repeat another word for word and are still there.
        repeated_lines_share: of the lines, those that repeat another.
    """

    vocab_size: int
    tokens: int
    entropy: float
    unknown_share: float
    copies_share: float | None = None
    repeated_lines_share: float | None = None

    @classmethod
    def of(cls, store: TokenStore, config: Config) -> TextFacts:
        """From a token store, and the manifest of its documents where that is."""
        counts = np.asarray(store.unigram)
        copies, lines = _repeats(config)
        return cls(
            vocab_size=store.vocab_size,
            tokens=len(store.train.ids),
            entropy=unigram_entropy(store_unigrams(store)),
            unknown_share=float(counts[store.special_ids["unk"]] / max(counts.sum(), 1)),
            copies_share=copies,
            repeated_lines_share=lines,
        )


def _repeats(config: Config) -> tuple[float | None, float | None]:
    """Shares of documents and of lines that repeat another one."""
    manifest = read_manifest(documents_dir(config))
    if manifest is None or not (sources := list(manifest["counts"].get("sources", {}).values())):
        return None, None
    documents = sum(source["documents"] + source["heldout"] for source in sources)
    dropped = ("overlap", "copies_dropped", "heldout_copies")
    copies = sum(source["duplicates"] - sum(source.get(key, 0) for key in dropped) for source in sources)
    lines = sum(source["lines"] for source in sources)
    repeated = sum(source["lines"] * source["repeated_lines_share"] for source in sources)
    return max(copies, 0) / max(documents, 1), repeated / max(lines, 1)


Entry = dict[str, Any]
"""A line of ``metrics.jsonl``."""


@dataclass(frozen=True)
class Evidence:
    """All that a diagnosis is made from.

    Attributes:
        train: logged lines of training, oldest first; heldout: those of evaluations.
        baselines: of ``eval.json``, where there is one.
    """

    config: Config
    text: TextFacts
    train: Sequence[Entry]
    heldout: Sequence[Entry]
    baselines: dict[str, float | None]

    @cached_property
    def total(self) -> int:
        """Updates that the run is to make."""
        return sum(phase.steps for phase in self.config.train.phases)

    @cached_property
    def step(self) -> int:
        """Updates that it has made."""
        return max((entry["step"] for entry in (*self.train, *self.heldout)), default=0)

    @cached_property
    def warmup(self) -> int:
        """Updates of warm-up."""
        return self.config.train.schedule.warmup(self.total)

    @property
    def finished(self) -> bool:
        """Whether all updates are made."""
        return self.step >= self.total

    def values(self, name: str, start: float = 0.0, end: float = 1.0) -> list[float]:
        """A figure of the training lines between two shares of the log; lines without it are left out."""
        lines = self.train[math.floor(start * len(self.train)) : math.ceil(end * len(self.train))]
        return [entry[name] for entry in lines if entry.get(name) is not None]

    def mean(self, name: str, start: float = 0.8, end: float = 1.0) -> float:
        """Mean of such a figure; NaN of none."""
        values = self.values(name, start, end)
        return fmean(values) if values else math.nan

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Evidence:
        """The inverse of :meth:`as_dict`; other keys are passed over."""
        text = TextFacts(**{field.name: value["text"][field.name] for field in fields(TextFacts)})
        return cls.of(validate(value["config"]), text, value["metrics"], value["baselines"])

    @classmethod
    def of(
        cls, config: Config, text: TextFacts, metrics: Sequence[Entry], baselines: dict[str, float | None]
    ) -> Evidence:
        """From the lines of a log, of both kinds."""
        kinds = {kind: [entry for entry in metrics if entry["kind"] == kind] for kind in ("train", "heldout")}
        return cls(config, text, kinds["train"], kinds["heldout"], baselines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        metrics = sorted([*self.train, *self.heldout], key=lambda entry: entry["step"])
        return {
            "config": plain(self.config),
            "text": asdict(self.text),
            "baselines": self.baselines,
            "metrics": metrics,
        }


def read_evidence(directory: Path, data_dir: Path | None = None) -> Evidence:
    """Everything that a run's directory and its corpus tell.

    Args:
        data_dir: where the corpora lie, if not where the run's configuration says.

    Raises:
        RequestError: no run, nothing logged yet, a damaged log or ``eval.json``, or the token store that it was
            trained on is gone.
    """
    run = open_run(directory)
    path = directory / "metrics.jsonl"
    metrics = read_metrics(path) if path.is_file() else []
    if not metrics:
        raise RequestError(f"{directory}: nothing is logged yet; `bertpt pretrain` goes on with it")
    config = run.config if data_dir is None else run.config.model_copy(update={"data_dir": str(data_dir)})
    store = TokenStore.open(trained_store(config, run.facts["store"]))
    return Evidence.of(config, TextFacts.of(store, config), metrics, _baselines(run))


def _baselines(run: Run) -> dict[str, float | None]:
    path = run.directory / "eval.json"
    if not path.is_file():
        return {}
    value = read_json(path)
    if not (isinstance(value, dict) and isinstance(value.get("baselines"), dict)):
        raise RequestError(f"{path}: has no baselines; `bertpt eval {run.directory}` writes it anew")
    return dict(value["baselines"])
