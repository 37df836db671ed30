"""All stages of one configuration, in order: raw text to an evaluated model."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bertpt.config import Config
from bertpt.config.schema import DocstringsSource, FilesSource, Heldout, Limit
from bertpt.data.download import download
from bertpt.data.prepare import prepare
from bertpt.data.tokenizer import train_tokenizer
from bertpt.progress import say as say_line
from bertpt.train.evaluation import Evaluation, evaluate_run
from bertpt.train.pretrain import pretrain

Say = Callable[[str], None]


def run_pipeline(config: Config, *, overwrite: bool = False, say: Say = say_line) -> Evaluation:
    """Make every stage that is missing or out of date, train, evaluate.

    A finished stage with unchanged inputs and settings is skipped with one line.

    Args:
        overwrite: start the training run again; finished data stages are kept.

    Raises:
        RequestError, BertptError, Stopped: as the stages do.
    """
    for number, (title, stage) in enumerate(_STAGES, 1):
        say(f"[{number}/{len(_STAGES) + 2}] {title}")
        begun = time.monotonic()
        result = stage(config, say=say)
        if not result.skipped:
            say(f"      {time.monotonic() - begun:.0f} s")
    say(f"[{len(_STAGES) + 1}/{len(_STAGES) + 2}] pre-training")
    run = pretrain(config, overwrite=overwrite, say=say)
    say(f"[{len(_STAGES) + 2}/{len(_STAGES) + 2}] evaluation")
    return evaluate_run(run.directory, data_dir=Path(config.data_dir), say=say)


_STAGES = (("corpus", download), ("tokenizer", train_tokenizer), ("token store", prepare))


def dry_run(config: Config, *, say: Say = say_line) -> Evaluation:
    """Prove a configuration in seconds: the whole path on a handful of documents, in a folder that is removed.

    Local files are read in part; what would have to be downloaded is stood in for by documentation text of the
    running Python. The model has its full shape; each phase makes one update of two rows.
    """
    with tempfile.TemporaryDirectory(prefix="bertpt-dry-run-") as folder:
        return run_pipeline(_reduced(config, Path(folder)), say=say)


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
    phases = [phase.model_copy(update={"steps": 1, "batch_size": 2, "accumulate": 1}) for phase in config.train.phases]
    schedule = config.train.schedule.model_copy(update={"warmup_steps": 0})
    return config.model_copy(
        update={
            "data_dir": str(folder / "data"),
            "runs_dir": str(folder / "runs"),
            "corpus": corpus,
            "train": config.train.model_copy(update={"phases": phases, "schedule": schedule, "workers": 0}),
            "evaluate": config.evaluate.model_copy(update={"max_rows": 4, "batch_size": 2}),
        }
    )
