"""The directory of a fine-tuning run: its configuration, tokenizer, labels, and what it was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertpt.config import FinetuneConfig, as_yaml, plain, validate_finetune
from bertpt.config.finetune import FREE_KEYS
from bertpt.data.tokenizer import wordpiece
from bertpt.errors import RequestError
from bertpt.files import read_json, sha256_file, staged_directory, write_file, write_json
from bertpt.train.rundir import read_keys, refuse_other

if TYPE_CHECKING:
    from bertpt.tasks.start import Start  # brings torch, which a table of runs does not need

CONFIG, FACTS = "task.yaml", "task.json"


@dataclass(frozen=True, slots=True)
class TaskRun:
    """An opened run.

    Attributes:
        directory: of the run.
        config: its configuration.
        inputs: fingerprints of the weights it started from and of its files.
        facts: plain data of the task: labels, what the baseline says.
    """

    directory: Path
    config: FinetuneConfig
    inputs: dict[str, str]
    facts: dict[str, Any]

    @property
    def tokenizer(self) -> Path:
        """The run's own copy of its tokenizer."""
        return self.directory / "tokenizer"


def is_task_run(directory: Path) -> bool:
    """Whether a directory is a fine-tuning run."""
    return (directory / CONFIG).is_file()


def open_task_run(directory: Path) -> TaskRun:
    """Open an existing run.

    Raises:
        RequestError: there is none, or its configuration is damaged.
    """
    path = directory / CONFIG
    if not path.is_file():
        raise RequestError(f"{directory}: not a fine-tuned run (no {CONFIG}); `bertpt finetune` makes one")
    again = "`bertpt finetune` with --overwrite makes the run again"
    try:
        config = validate_finetune(read_keys(path))
    except RequestError as error:
        faults = [fault.removeprefix(f"{path}: ").removeprefix("damaged: ") for fault in error.faults]
        raise RequestError([f"{path}: damaged: {fault}; {again}" for fault in faults]) from error
    saved = read_json(directory / FACTS)
    if not isinstance(saved, dict) or not all(isinstance(saved.get(key), dict) for key in ("inputs", "facts")):
        raise RequestError(f"{directory / FACTS}: damaged: inputs and facts are expected; {again}")
    _check_tokenizer(directory / "tokenizer", saved.get("tokenizer"), again)
    return TaskRun(directory, config, saved["inputs"], saved["facts"])


def _check_tokenizer(folder: Path, expected: str | None, again: str) -> None:
    """The run's copy of its tokenizer is as it was written (runs of before do not say how)."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise RequestError(f"{path}: is gone; copy it from where the run started, or {again}")
    if expected is not None and sha256_file(path) != expected:
        raise RequestError(f"{path}: damaged: it is not the one of training; {again}")


def newest_task_run(runs_dir: Path) -> Path:
    """The fine-tuned run that was written to last.

    Raises:
        RequestError: there is none.
    """
    found = [path.parent for path in runs_dir.glob(f"*/{FACTS}")]
    if not found:
        raise RequestError(f"{runs_dir}: holds no fine-tuned run; `bertpt finetune` makes one")
    return max(found, key=lambda run: max(p.stat().st_mtime for p in [run / FACTS, *run.glob("metrics.jsonl")]))


def create_or_resume(
    config: FinetuneConfig, start: Start, inputs: dict[str, str], facts: dict[str, Any], *, overwrite: bool
) -> TaskRun:
    """Make the run's directory, or open the one that is there when it is of the same configuration and files.

    Raises:
        RequestError: the directory holds another run; every differing key is listed, old and new value.
    """
    directory = Path(config.runs_dir) / config.name
    if directory.exists() and not overwrite:
        if not is_task_run(directory):
            raise RequestError(f"{directory}: exists and is no fine-tuned run; set another name (--set name=NAME)")
        run = open_task_run(directory)
        there, now = plain(run.config) | {"inputs": run.inputs}, plain(config) | {"inputs": inputs}
        refuse_other(directory, there, now, FREE_KEYS)
        if plain(run.config) != plain(config):  # files that were moved, another test file, another device
            write_file(directory / CONFIG, as_yaml(config))
        return TaskRun(directory, config, inputs, facts)
    if directory.exists() and not is_task_run(directory):
        raise RequestError(f"{directory}: is no fine-tuned run, so --overwrite leaves it; set another name")
    with staged_directory(directory, replace=overwrite) as aside:
        (aside / CONFIG).write_text(as_yaml(config), encoding="utf-8")
        positions = start.model.max_position_embeddings
        wordpiece.save(aside / "tokenizer", start.tokens, start.normalising, max_length=positions)
        tokenizer = sha256_file(aside / "tokenizer" / "tokenizer.json")
        write_json(aside / FACTS, {"inputs": inputs, "facts": facts, "tokenizer": tokenizer})
    return TaskRun(directory, config, inputs, facts)
