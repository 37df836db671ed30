"""``bertpt plan``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bertpt.cli import options

_EXAMPLES = ("bertpt plan --config tiny", "bertpt plan --config base --gpu A100 --mfu 0.4")


def register(app: typer.Typer) -> None:
    """Add ``plan`` to the program."""
    app.command("plan", epilog=options.examples(*_EXAMPLES))(plan)


def plan(
    config: options.Config = "base",
    overrides: options.Set = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="A GPU of the table, in place of trying this machine.")
    ] = None,
    mfu: Annotated[
        float, typer.Option("--mfu", min=0.01, max=1.0, help="With --gpu: share of its speed to reckon with.")
    ] = 0.4,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Parameters, memory, disk, speed and hours of a configuration, before it runs.

    Speed is measured by a few updates on this machine, or reckoned for a GPU that is not here.
    """
    from bertpt.train.plan import plan_run

    found = plan_run(options.load(config, overrides, data_dir), gpu=gpu, mfu=mfu, say=options.sayer(quiet))
    typer.echo(json.dumps(found.as_dict()) if as_json else found.table())
