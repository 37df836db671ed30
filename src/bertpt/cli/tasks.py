"""``bertpt finetune`` and ``bertpt inspect task``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bertpt import signals
from bertpt.cli import inspect, options

if TYPE_CHECKING:
    from bertpt.config import FinetuneConfig

TaskName = Literal["classification", "sentiment", "ner", "tagging", "qa", "summarization"]
TaskConfig = Annotated[
    str, typer.Option("--config", "-c", help="A YAML file, or a shipped one: tasks/sst2, tasks/sentiment, ...")
]

_FINETUNE = (
    "bertpt finetune classification --config tasks/sst2 --set from=runs/base",
    "bertpt finetune sentiment --config mine.yaml --seeds 0,1,2",
)
_INSPECT = ("bertpt inspect task --config tasks/sst2", "bertpt inspect task --config mine.yaml")


def register(app: typer.Typer) -> None:
    """Add ``finetune`` to the program and ``task`` to ``inspect``."""
    app.command("finetune", epilog=options.examples(*_FINETUNE))(finetune)
    inspect.app.command("task", epilog=options.examples(*_INSPECT))(task)


def _load(config: str, overrides: list[str] | None, runs_dir: Path | None = None) -> FinetuneConfig:
    from bertpt.config import load_finetune

    return load_finetune(config, overrides or [], runs_dir=runs_dir)


def _seeds(text: str | None) -> list[int] | None:
    from bertpt.errors import RequestError

    if text is None:
        return None
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0 or max(seeds) >= 2**63:
        raise RequestError(
            f"--seeds: {text[:80]}: different numbers (below 2^63) between commas are expected, as 0,1,2"
        )
    return seeds


def finetune(
    task: Annotated[TaskName, typer.Argument(help="What is learnt; the configuration must agree.")],
    config: TaskConfig,
    overrides: options.Set = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds between commas: a run for each, and mean +- sd of the scores.")
    ] = None,
    runs_dir: options.RunsDir = None,
    overwrite: options.Overwrite = False,
    stop_after: options.StopAfter = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read all files, make one update of 8 rows.")] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Train a pre-trained model for a task, and score its best epoch on dev and test.

    The same command goes on with the run of that name where it stopped.
    """
    from bertpt.errors import RequestError

    signals.time_limit(stop_after)
    chosen = _seeds(seeds)
    configuration = _load(config, overrides, runs_dir)
    if configuration.task != task:
        raise RequestError(f"{config}: task is {configuration.task}; type: bertpt finetune {configuration.task} ...")
    from bertpt.interop.finetuning import read_start
    from bertpt.tasks import finetune as work

    say = options.sayer(quiet)
    start = read_start(configuration, say=say)
    if dry_run:
        work.dry_run(configuration, start, say=say, progress=not quiet)
        line = f"{configuration.name}: dry run passed (1 update of 8 rows, 1 save; everything was removed again)"
        typer.echo(json.dumps({"name": configuration.name, "dry_run": True}) if as_json else line)
        return
    if chosen is not None:
        table = work.finetune_seeds(configuration, start, chosen, overwrite=overwrite, say=say, progress=not quiet)
        typer.echo(json.dumps(table.as_dict()) if as_json else table.table())
        return
    done = work.finetune(configuration, start, overwrite=overwrite, say=say, progress=not quiet)
    typer.echo(json.dumps(done.as_dict()) if as_json else done.table())
    say(f"made: {done.run}: best/, eval.json, predictions-*.jsonl, tb/")
    say(f"next: bertpt predict {task} --model {shlex.quote(done.run)}")


def task(
    config: TaskConfig,
    overrides: options.Set = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Labels, lengths, repeats and malformed rows of a task's files; malformed ones end it with exit code 2."""
    configuration = _load(config, overrides)
    from bertpt.interop.finetuning import read_start
    from bertpt.tasks.examples import refuse
    from bertpt.tasks.inspect import inspect_task

    say = options.sayer(quiet)
    tokenizer = read_start(configuration, say=say).open_tokenizer()
    report = inspect_task(configuration, tokenizer, say=say)
    typer.echo(json.dumps(report.as_dict(), ensure_ascii=False) if as_json else report.table())
    refuse(report.faults)
