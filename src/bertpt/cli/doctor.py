"""``bertpt doctor``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bertpt.cli import options


def register(app: typer.Typer) -> None:
    """Add ``doctor`` to the program."""
    app.command("doctor", epilog=options.examples("bertpt doctor", "bertpt doctor runs/demo --json"))(doctor)


def doctor(
    run: Annotated[Path | None, typer.Argument(help="A run directory; the newest pre-training run by default.")] = None,
    data_dir: options.DataDir = None,
    runs_dir: options.RunsDir = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Say whether a pre-training run is healthy, and which known fault it shows. Exit code 1 when there is one."""
    from bertpt.errors import RequestError
    from bertpt.tasks.rundir import is_task_run
    from bertpt.train.doctor.diagnosis import examine
    from bertpt.train.rundir import newest_run

    directory = run or newest_run(runs_dir or Path("runs"))
    if is_task_run(directory):
        raise RequestError(f"{directory}: is a fine-tuned run; `bertpt eval {directory}` shows its scores")
    found = examine(directory, data_dir=data_dir)
    typer.echo(json.dumps(found.as_dict()) if as_json else found.text())
    if not found.healthy:
        raise typer.Exit(1)
