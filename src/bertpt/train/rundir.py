"""The directory of a run: its resolved configuration, tokenizer, and what it was trained on."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertpt.config import Config, as_yaml, plain, validate
from bertpt.config.yaml import parse_yaml
from bertpt.errors import RequestError
from bertpt.files import check_hashes, read_json, read_manifest, staged_directory, write_json
from bertpt.locks import only_one

BEST = "best"  # folder of a run that holds the weights with the best held-out score

# Changing these changes neither the result nor the data: a resumed run takes the new values. Weights and words may lie
# elsewhere now, for what they hold is compared by fingerprint.
_FREE = {
    "description",
    "data_dir",
    "runs_dir",
    "model.init_from",
    "tokenizer.extend_from",
    "train.workers",
    "train.device",
    "train.shard_optimizer",
    "train.log_every",
    "train.eval_every",
    "train.histograms",
    "train.save_every",
    "train.keep",
    "train.keep_every",
    "train.max_skips",
    "train.activation_checkpointing",
    "evaluate.max_rows",
    "evaluate.batch_size",
}


def _stated(config: Config) -> set[str]:
    """Keys that may change on a resume, and are said: the batches are the same, or more of them.

    How an update is cut changes its rounding and its dropout; the steps of the last phase and the budget change the
    schedule.
    """
    last = len(config.train.phases) - 1
    return {
        "train.budget",
        f"train.phases.{last}.steps",
        *(f"train.phases.{index}.accumulate" for index in range(last + 1)),
    }


@dataclass(frozen=True, slots=True)
class Run:
    """An opened run directory."""

    directory: Path
    config: Config
    facts: dict[str, Any]

    @property
    def tokenizer(self) -> Path:
        """The run's own copy of its tokenizer."""
        return self.directory / "tokenizer"


def run_path(config: Config) -> Path:
    """Where the run of a configuration lives."""
    return Path(config.runs_dir) / config.name


def open_run(directory: Path) -> Run:
    """Open an existing run.

    Raises:
        RequestError: there is none, or its configuration is damaged.
    """
    path = directory / "config.yaml"
    if not path.is_file():
        raise RequestError(f"{directory}: not a run directory (no config.yaml); `bertpt pretrain` makes one")
    data = read_keys(path)
    _check_tokenizer(directory / "tokenizer")
    return Run(directory, validate(data), read_json(directory / "run.json"))


def read_keys(path: Path) -> dict[str, Any]:
    """The keys of a configuration that a run keeps.

    Raises:
        RequestError: the file is damaged.
    """
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: damaged: {error}") from error
    if not isinstance(data, dict):
        raise RequestError(f"{path}: damaged: it holds no keys")
    return data


def _check_tokenizer(tokenizer: Path) -> None:
    """The run's copy of its tokenizer has the manifest of the stage that made it."""
    try:
        if (manifest := read_manifest(tokenizer)) is not None:
            check_hashes(tokenizer, manifest)
    except RequestError as error:
        fault = str(error).partition("; remove")[0]
        raise RequestError(f"{fault}; copy it from the tokenizer-* folder of the corpus") from error


def newest_run(runs_dir: Path) -> Path:
    """The run that was written to last.

    Raises:
        RequestError: there is no run.
    """
    found = [path.parent for path in runs_dir.glob("*/run.json")]
    if not found:
        raise RequestError(f"{runs_dir}: holds no run; `bertpt pretrain` or `bertpt run` makes one")
    return max(found, key=lambda run: max(p.stat().st_mtime for p in [run / "run.json", *run.glob("metrics.jsonl")]))


def weights_are_gone(config: Config) -> Run | None:
    """The run of a configuration, when it has a checkpoint and what ``model.init_from`` names is not there any more.

    Such a run needs it no longer: its shape, its tokenizer and the weights are its own.
    """
    place, directory = config.model.init_from, run_path(config)
    if place is None or Path(place).exists() or not any((directory / "checkpoints").glob("step-*")):
        return None
    return open_run(directory)


def create_or_resume(
    config: Config,
    facts: dict[str, Any],
    tokenizer: Path,
    *,
    overwrite: bool,
    say: Callable[[str], None] = lambda line: None,
) -> Run:
    """Make the run's directory, or open the one that is there when it is of the same configuration.

    Args:
        facts: what must not change under a run besides its configuration: fingerprints of its inputs.
        say: gets a line for each setting that may change but shapes what comes.

    Raises:
        RequestError: the directory holds another run; every differing key is listed, old and new value.
    """
    directory = run_path(config)
    if directory.exists() and not overwrite:
        run = open_run(directory)
        _refuse_other(run, config, facts)
        old, new = flat(plain(run.config)), flat(plain(config))
        for key in sorted(_stated(config)):
            if old.get(key) != new.get(key):
                say(f"{key}: {old.get(key)!r} there, {new.get(key)!r} from now on")
        return Run(directory, config, facts)
    with staged_directory(directory, replace=overwrite) as aside:
        (aside / "config.yaml").write_text(as_yaml(config), encoding="utf-8")
        shutil.copytree(tokenizer, aside / "tokenizer")
        write_json(aside / "run.json", facts)
    return Run(directory, config, facts)


@contextlib.contextmanager
def opened_alone(
    config: Config, facts: dict[str, Any], tokenizer: Path, *, overwrite: bool, say: Callable[[str], None]
) -> Iterator[Run]:
    """:func:`create_or_resume`, and nobody else trains there while it is open.

    Raises:
        BertptError: another process trains this run.
    """
    directory = run_path(config)
    if directory.exists() and not overwrite and not (directory / "config.yaml").is_file():
        raise RequestError(f"{directory}: exists and is not a run; set another name (--set name=NAME)")
    with contextlib.ExitStack() as held:
        if (directory / "config.yaml").is_file():  # else it is no run, and not ours to put a lock into
            held.enter_context(only_one(directory))
        is_new = overwrite or not directory.exists()
        run = create_or_resume(config, facts, tokenizer, overwrite=overwrite, say=say)
        if is_new:  # else it is held: opening the lock's file once more would drop it
            held.enter_context(only_one(directory))
        yield run


def refuse_another(config: Config) -> None:
    """What can be told before any stage: whether the run's directory is of another configuration.

    The shape of ``model.init_from`` is not known yet; with it, only ``create_or_resume`` can tell.

    Raises:
        RequestError: as ``create_or_resume``.
    """
    directory = run_path(config)
    if config.model.init_from is None and (directory / "config.yaml").is_file():
        run = open_run(directory)
        _refuse_other(run, config, run.facts)


def _refuse_other(run: Run, config: Config, facts: dict[str, Any]) -> None:
    facts = {name: value for name, value in facts.items() if name in run.facts or name != "tokenizer"}  # older runs
    free = _FREE | _stated(config)
    refuse_other(run.directory, plain(run.config) | {"inputs": run.facts}, plain(config) | {"inputs": facts}, free)


def refuse_other(directory: Path, there: dict[str, Any], now: dict[str, Any], free: Set[str]) -> None:
    """Refuse to go on with a run whose configuration or inputs were others.

    Args:
        directory: of the run.
        there: plain data of the run; now: the same of the command.
        free: keys (``train.device``) that may differ.

    Raises:
        RequestError: others differ; each is listed, old and new value.
    """
    old, new = flat(there), flat(now)
    differing = [key for key in sorted(old.keys() | new.keys()) if key not in free and old.get(key) != new.get(key)]
    if differing:
        line = f"{directory}: is a run of another configuration; --overwrite starts it again, --set name=NAME keeps"
        keys = [f"  {key}: {old.get(key)!r} there, {new.get(key)!r} now" for key in differing]
        raise RequestError([f"{line} both. Differing:", *keys])


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts and lists as one dict with dotted keys."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = ((str(i), item) for i, item in enumerate(value))  # type: ignore[assignment]
    else:
        return {prefix: value}
    return {k: v for key, item in items for k, v in flat(item, f"{prefix}.{key}" if prefix else str(key)).items()}
