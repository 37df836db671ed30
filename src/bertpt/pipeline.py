"""All stages of one configuration, in order: raw text to an evaluated model."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertpt.config import Config, plain
from bertpt.config.schema import DocstringsSource, FilesSource, Heldout, Limit
from bertpt.data.corpus.download import download
from bertpt.data.locate import documents_dir, tokenizer_dir, trained_store
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokens.prepare import prepare
from bertpt.data.tokens.store import TokenStore
from bertpt.files import fingerprint, read_json, write_json
from bertpt.interop.continuing import pretrain
from bertpt.predict.opening import open_model
from bertpt.progress import say as say_line
from bertpt.shell import curves, module
from bertpt.train.checkpoints.checkpoint import checkpoints
from bertpt.train.evaluation import Evaluation, evaluate_run
from bertpt.train.reports.samples import Filled, Sample, fill, masked_sentences
from bertpt.train.rundir import Run, refuse_another, weights_are_gone

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a finished pipeline has made: scores, sentences with a filled [MASK], and where everything lies."""

    evaluation: Evaluation
    samples: list[Sample]
    places: dict[str, Path]

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Summary:
        """The inverse of ``as_dict``."""
        samples = [Sample(**sample | {"filled": Filled(**sample["filled"])}) for sample in value["samples"]]
        places = {name: Path(path) for name, path in value["places"].items()}
        return cls(Evaluation.from_dict(value), samples, places)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        samples = [dataclasses.asdict(sample) for sample in self.samples]
        places = {name: str(path) for name, path in self.places.items()}
        return self.evaluation.as_dict() | {"samples": samples, "places": places}

    def table(self) -> str:
        """Everything as lines of text, and what to type next."""
        lines = [self.evaluation.table()]
        lines += ["", "Held-out sentences with one word masked:"] * bool(self.samples)
        for sample in self.samples:
            lines += [f"  {sample.text}", f"    model: {sample.filled.said()}; original: {sample.original}"]
        lines += ["", "Made:"] + [f"  {name:<12}{path}" for name, path in self.places.items()]
        run = self.places["run"]
        text = min((sample.text for sample in self.samples), key=len, default=_EXAMPLE)
        return "\n".join(
            [
                *lines,
                "",
                f"Curves:  {curves(run / 'tb')}",
                f"Try it:  {module('bertpt', 'predict', 'fill-mask', text, '--model', run)}",
            ]
        )


_EXAMPLE = "in the beginning [MASK] created the heavens"  # where no held-out sentence fits


def run_pipeline(config: Config, *, overwrite: bool = False, say: Say = say_line, progress: bool = True) -> Summary:
    """Make every stage that is missing or out of date, train, evaluate.

    A finished stage with unchanged inputs and settings is skipped with one line.

    Args:
        overwrite: start the training run again; finished data stages are kept.
        progress: show progress on stderr.

    Raises:
        RequestError, BertptError, Stopped: as the stages do.
    """
    if not overwrite:
        refuse_another(config)
    gone = None if overwrite else weights_are_gone(config)
    if gone is not None:
        say(f"{config.model.init_from}: not there any more; {gone.directory} keeps the data that it was trained on")
    for number, (title, stage) in enumerate(_STAGES if gone is None else (), 1):
        say(f"[{number}/{len(_STAGES) + 2}] {title}")
        begun = time.monotonic()
        result = stage(config, say=say, progress=progress)
        if not result.skipped:
            say(f"      {time.monotonic() - begun:.0f} s")
    say(f"[{len(_STAGES) + 1}/{len(_STAGES) + 2}] pre-training")
    run = pretrain(config, overwrite=overwrite, say=say, progress=progress)
    say(f"[{len(_STAGES) + 2}/{len(_STAGES) + 2}] evaluation")
    return _summary(config, run, say, progress)


def _summary(config: Config, run: Run, say: Say, progress: bool) -> Summary:
    """Evaluate the finished run, unless ``summary.json`` is of this very checkpoint, store and evaluation."""
    store = TokenStore.open(trained_store(config, run.facts["store"]))
    path = run.directory / "summary.json"
    steps = checkpoints(run.directory)[-1][0]
    key = fingerprint([store.manifest["fingerprint"], steps, plain(config)])
    if path.is_file() and (known := read_json(path)).get("key") == key:
        say(f"{path}: up to date")
        return Summary.from_dict(known)
    model, tokenizer = open_model(run.directory, mlm=True, say=say)
    positions = model.config.max_position_embeddings
    sentences = list(masked_sentences(tokenizer, store, count=3, positions=positions))
    summary = Summary(
        evaluate_run(run.directory, data_dir=Path(config.data_dir), say=say, progress=progress),
        fill(model, tokenizer, sentences, top=3),
        {
            "documents": documents_dir(config),
            "tokenizer": run.tokenizer if weights_are_gone(config) else tokenizer_dir(config),
            "store": store.directory,
            "run": run.directory,
            "weights": checkpoints(run.directory)[-1][1],
            "scores": run.directory / "eval.json",
            "summary": path,
        },
    )
    write_json(path, {"key": key} | summary.as_dict())
    return summary


_STAGES = (("corpus", download), ("tokenizer", train_tokenizer), ("token store", prepare))


def dry_run(config: Config, *, say: Say = say_line, progress: bool = True) -> Summary:
    """Prove a configuration in seconds: the whole path on a handful of documents, in a folder that is removed.

    Local files are read in part; what would have to be downloaded is stood in for by documentation text of the
    running Python. The model has its full shape; each phase makes one update of two rows.
    """
    if not all(isinstance(source, FilesSource) for source in config.corpus.sources):
        say("dry run: nothing is downloaded; local texts stand in for the sources that would be")
    with tempfile.TemporaryDirectory(prefix="bertpt-dry-run-") as folder:
        return run_pipeline(_reduced(config, Path(folder)), say=say, progress=progress)


def _reduced(config: Config, folder: Path) -> Config:
    local = [source for source in config.corpus.sources if isinstance(source, FilesSource)]
    corpus = config.corpus.model_copy(
        update={
            "name": "dry-run",
            "sources": local or [DocstringsSource(kind="docstrings")],
            "fallback": [],
            "limit": Limit(documents=60),
            "heldout": Heldout(share=0.2, min_documents=2),
            "min_sentences": 1,
        }
    )
    phases = [
        phase.model_copy(update={"steps": 1, "batch_size": 2, "accumulate": 1, "ramp": None})
        for phase in config.train.phases
    ]
    schedule = config.train.schedule.model_copy(update={"warmup_steps": 0, "warmup_ratio": 0.0})
    return config.model_copy(
        update={
            "data_dir": str(folder / "data"),
            "runs_dir": str(folder / "runs"),
            "corpus": corpus,
            "train": config.train.model_copy(update={"phases": phases, "schedule": schedule, "workers": 0}),
            "evaluate": config.evaluate.model_copy(update={"max_rows": 4, "batch_size": 2}),
        }
    )
