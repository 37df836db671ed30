"""``bertpt download | train-tokenizer | prepare | pretrain | eval | run``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertpt import signals
from bertpt.cli import options

if TYPE_CHECKING:
    from bertpt.config import Config as Configuration


def _dry(configuration: Configuration, quiet: bool, as_json: bool) -> None:
    from bertpt.pipeline import dry_run

    summary = dry_run(configuration, say=options.sayer(quiet), progress=not quiet)
    line = (
        f"{configuration.name}: dry run passed (1 update of 2 rows, 1 evaluation, 1 save; everything was removed again)"
    )
    scores = summary.evaluation.as_dict()["scores"]  # JSON knows no NaN
    typer.echo(json.dumps({"name": configuration.name, "dry_run": True} | scores) if as_json else line)


def _stage_command(stage: str, module: str, example: str) -> Callable[..., None]:
    """A command that runs one data stage; all three have the same options."""

    def command(
        config: options.Config = "base",
        overrides: options.Set = None,
        data_dir: options.DataDir = None,
        overwrite: options.Overwrite = False,
        dry_run: options.DryRun = False,
        as_json: options.Json = False,
        quiet: options.Quiet = False,
        debug: options.Debug = False,
    ) -> None:
        from importlib import import_module

        configuration = options.load(config, overrides, data_dir)
        if dry_run:
            return _dry(configuration, quiet, as_json)
        run = getattr(import_module(module), stage.replace("-", "_"))
        result: Any = run(configuration, overwrite=overwrite, say=options.sayer(quiet), progress=not quiet)
        if as_json:
            typer.echo(json.dumps({"directory": str(result.directory), "skipped": result.skipped, **result.manifest}))
        else:
            typer.echo(result.directory)
        return None

    return command


def register(app: typer.Typer) -> None:
    """Add the commands to the program, in the order of the pipeline."""
    for stage, module, text in (
        ("download", "bertpt.data.download", "Get the corpus that the configuration names, cleaned and split."),
        (
            "train-tokenizer",
            "bertpt.data.tokenizer",
            "Train the WordPiece vocabulary on the corpus, deterministically.",
        ),
        ("prepare", "bertpt.data.prepare", "Turn the documents into the token store: sentences as ids, once."),
    ):
        command = _stage_command(stage, module, text)
        command.__doc__ = text
        app.command(stage, epilog=options.examples(f"bertpt {stage} --config demo"))(command)
    app.command("pretrain", epilog=options.examples("bertpt pretrain --config base.yaml", _PRETRAIN_SET))(pretrain)
    app.command("eval", epilog=options.examples("bertpt eval", "bertpt eval runs/demo --json"))(evaluate)
    app.command("run", epilog=options.examples("bertpt run --config demo", _RUN_SET))(run)


_PRETRAIN_SET = "bertpt pretrain --config tiny --set train.seed=1 --set name=tiny-seed-1"
_RUN_SET = "bertpt run --config tiny --set 'corpus.sources=[{kind: files, path: my-texts}]'"


def pretrain(
    config: options.Config = "base",
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    runs_dir: options.RunsDir = None,
    overwrite: options.Overwrite = False,
    stop_after: options.StopAfter = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Pre-train, or go on with the run of that name where it stopped."""
    signals.time_limit(stop_after)
    configuration = options.load(config, overrides, data_dir, runs_dir)
    if dry_run:
        return _dry(configuration, quiet, as_json)
    from bertpt.interop.continuing import pretrain as work

    done = work(configuration, overwrite=overwrite, say=options.sayer(quiet), progress=not quiet)
    typer.echo(json.dumps({"run": str(done.directory)}) if as_json else done.directory)
    return None


def evaluate(
    run: Annotated[Path | None, typer.Argument(help="A run directory; the newest pre-training run by default.")] = None,
    max_rows: Annotated[int | None, typer.Option("--max-rows", min=1, help="Held-out rows to use.")] = None,
    data_dir: options.DataDir = None,
    runs_dir: options.RunsDir = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Held-out loss, perplexity and accuracies, beside what needs no context; of a task, its scores. Never trains."""
    from bertpt.tasks.rundir import is_task_run
    from bertpt.train.evaluation import evaluate_run
    from bertpt.train.rundir import newest_run

    directory = run or newest_run(runs_dir or Path("runs"))
    if is_task_run(directory):
        from bertpt.tasks.evaluation import evaluate_task_run

        scores = evaluate_task_run(directory, max_rows=max_rows, say=options.sayer(quiet))
        typer.echo(json.dumps(scores.as_dict()) if as_json else scores.table())
        return
    evaluation = evaluate_run(directory, data_dir=data_dir, max_rows=max_rows, say=options.sayer(quiet))
    typer.echo(json.dumps(evaluation.as_dict()) if as_json else evaluation.table())


def run(
    config: options.Config = "base",
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    runs_dir: options.RunsDir = None,
    overwrite: options.Overwrite = False,
    stop_after: options.StopAfter = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """All stages: download, tokenizer, token store, pre-training, evaluation. Finished ones are skipped."""
    signals.time_limit(stop_after)
    configuration = options.load(config, overrides, data_dir, runs_dir)
    if dry_run:
        return _dry(configuration, quiet, as_json)
    from bertpt.pipeline import run_pipeline

    summary = run_pipeline(configuration, overwrite=overwrite, say=options.sayer(quiet), progress=not quiet)
    typer.echo(json.dumps(summary.as_dict()) if as_json else summary.table())
    return None
