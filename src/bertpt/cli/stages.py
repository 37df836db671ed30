"""``bertpt download | train-tokenizer | prepare | pretrain | eval | run``."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertpt import signals
from bertpt.cli import options
from bertpt.errors import RequestError
from bertpt.shell import curves
from bertpt.world import World, of_environment

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


def _run_stage(
    stage: Callable[..., Any],
    configuration: Configuration,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    following: str,
    **more: Any,
) -> None:
    result = stage(configuration, overwrite=overwrite, say=options.sayer(quiet), progress=not quiet, **more)
    if as_json:
        typer.echo(json.dumps({"directory": str(result.directory), "skipped": result.skipped, **result.manifest}))
    else:
        typer.echo(result.directory)
    options.sayer(quiet)(f"next: {following}")


def download(
    config: options.Config = "base",
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Only compare the finished documents with the hashes in their manifest.")
    ] = False,
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Get the corpus that the configuration names, cleaned and split."""
    configuration = options.load(config, overrides, data_dir)
    if verify:
        return _verify(configuration, overwrite or dry_run, as_json, quiet)
    if dry_run:
        return _dry(configuration, quiet, as_json)
    from bertpt.data.corpus.download import download as stage

    following = options.again("train-tokenizer", config, overrides, data_dir)
    return _run_stage(stage, configuration, overwrite, as_json, quiet, following)


def _verify(configuration: Configuration, writes: bool, as_json: bool, quiet: bool) -> None:
    from bertpt.data.corpus.verify import verify_documents

    if writes:
        raise RequestError("--verify: writes nothing; leave --overwrite and --dry-run out")
    found = verify_documents(configuration, progress=not quiet)
    typer.echo(json.dumps(found.as_dict()) if as_json else found.line())


def train_tokenizer(
    config: options.Config = "base",
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Train the WordPiece vocabulary on the corpus, deterministically."""
    configuration = options.load(config, overrides, data_dir)
    if dry_run:
        return _dry(configuration, quiet, as_json)
    from bertpt.data.tokenizer.training import train_tokenizer as stage

    following = options.again("prepare", config, overrides, data_dir)
    return _run_stage(stage, configuration, overwrite, as_json, quiet, following)


def prepare(
    config: options.Config = "base",
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Processes; one for each processor by default, fewer for small texts."),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            "--dask", metavar="ADDRESS", help="Let a Dask cluster work instead; tcp://HOST:PORT, its scheduler."
        ),
    ] = None,
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Turn the documents into the token store: sentences as ids, once. The same store for any number of processes."""
    configuration = options.load(config, overrides, data_dir)
    if dry_run:
        return _dry(configuration, quiet, as_json)
    from bertpt.data.tokens.prepare import prepare as stage

    following = options.again("pretrain", config, overrides, data_dir)
    return _run_stage(stage, configuration, overwrite, as_json, quiet, following, workers=workers, dask=dask)


def register(app: typer.Typer) -> None:
    """Add the commands to the program, in the order of the pipeline."""
    app.command("download", epilog=options.examples("bertpt download --config demo", "bertpt download --verify"))(
        download
    )
    app.command("train-tokenizer", epilog=options.examples("bertpt train-tokenizer --config demo"))(train_tokenizer)
    app.command("prepare", epilog=options.examples("bertpt prepare --config demo", _PREPARE_DASK))(prepare)
    app.command("pretrain", epilog=options.examples("bertpt pretrain --config base.yaml", _PRETRAIN_SET))(pretrain)
    app.command("eval", epilog=options.examples("bertpt eval", "bertpt eval runs/demo --json"))(evaluate)
    app.command("run", epilog=options.examples("bertpt run --config demo", _RUN_SET))(run)


_PREPARE_DASK = "bertpt prepare --config base --dask tcp://10.0.0.1:8786"
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
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Pre-train, or go on with the run of that name where it stopped."""
    world = of_environment()
    with _joined(world):
        signals.time_limit(stop_after)
        configuration = options.load(config, overrides, data_dir, runs_dir)
        if dry_run and world.size > 1:
            raise RequestError("--dry-run: works in one process; start it without torchrun")
        if dry_run:
            return _dry(configuration, quiet, as_json)
        from bertpt.interop.continuing import pretrain as work

        say = options.sayer(quiet or world.rank > 0)
        done = work(configuration, overwrite=overwrite, say=say, progress=not quiet)
        place = done.directory
        if world.rank == 0:
            typer.echo(json.dumps({"run": str(place)}) if as_json else place)
        say(f"made: {place}: checkpoints/, best/ (the weights of the lowest held-out loss), metrics.jsonl, tb/")
        say(f"curves: {curves(place / 'tb')}")
        say(f"next: bertpt eval {shlex.quote(str(place))}")
    return None


def _joined(world: World) -> contextlib.AbstractContextManager[object]:
    """Several processes come together before anything is read, so that what is wrong is said once."""
    if world.size == 1:
        return contextlib.nullcontext()
    from bertpt.train.ranks import joined

    return joined()


def evaluate(
    run: Annotated[Path | None, typer.Argument(help="A run directory; the newest pre-training run by default.")] = None,
    max_rows: Annotated[int | None, typer.Option("--max-rows", min=1, help="Held-out rows to use.")] = None,
    data_dir: options.DataDir = None,
    runs_dir: options.RunsDir = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Held-out loss, perplexity and accuracies, beside what needs no context; of a task, its scores. Never trains."""
    from bertpt.tasks.rundir import is_task_run
    from bertpt.train.evaluation import evaluate_run
    from bertpt.train.rundir import newest_run

    directory = run or newest_run(runs_dir or Path("runs"))
    say, place, name = options.sayer(quiet), shlex.quote(str(directory)), shlex.quote(directory.resolve().name)
    if is_task_run(directory):
        from bertpt.tasks.evaluation import evaluate_task_run

        scores = evaluate_task_run(directory, max_rows=max_rows, say=say)
        typer.echo(json.dumps(scores.as_dict()) if as_json else scores.table())
        say(f"made: {directory}: eval.json, predictions-*.jsonl; next: bertpt export hf {place} exports/{name}")
        return
    evaluation = evaluate_run(directory, data_dir=data_dir, max_rows=max_rows, say=say, progress=not quiet)
    typer.echo(json.dumps(evaluation.as_dict()) if as_json else evaluation.table())
    say(f"made: {directory / 'eval.json'}; next: bertpt export hf {place} exports/{name}")


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
    verbose: options.Verbose = False,
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
