"""``bertpt plan`` and ``bertpt graph``: what a configuration means, before it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bertpt.cli import options
from bertpt.shell import curves

_EXAMPLES = (
    "bertpt plan --config tiny",
    "bertpt plan --config base --gpu A100 --mfu 0.4",
    "bertpt plan --config base --gpu A100 --devices 8",
)
_GRAPH = ("bertpt graph --config base", "bertpt graph --config mine.yaml --out graphs/mine")


def register(app: typer.Typer) -> None:
    """Add ``plan`` and ``graph`` to the program."""
    app.command("plan", epilog=options.examples(*_EXAMPLES))(plan)
    app.command("graph", epilog=options.examples(*_GRAPH))(graph)


def plan(
    config: options.Config = "base",
    overrides: options.Set = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="A GPU of the table, in place of trying this machine.")
    ] = None,
    mfu: Annotated[
        float, typer.Option("--mfu", min=0.01, max=1.0, help="With --gpu: share of its speed to reckon with.")
    ] = 0.4,
    devices: Annotated[
        int, typer.Option("--devices", min=1, help="How many train together, each with its share of every update.")
    ] = 1,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Parameters, memory, disk, speed and hours of a configuration, before it runs.

    Speed is measured by a few updates on this machine, or reckoned for a GPU that is not here.
    """
    from bertpt.train.plan import plan_run

    found = plan_run(
        options.load(config, overrides, data_dir),
        gpu=gpu,
        mfu=mfu,
        devices=devices,
        say=options.sayer(quiet),
        progress=not quiet,
    )
    typer.echo(json.dumps(found.as_dict()) if as_json else found.table())


def graph(
    config: options.Config = "base",
    overrides: options.Set = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write it; default: graphs/NAME in the folder of runs.")
    ] = None,
    runs_dir: options.RunsDir = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Write the graph of a configuration's model for TensorBoard, without training and without data."""
    from bertpt.train.reports.graph import draw_graph

    configuration = options.load(config, overrides, None, runs_dir)
    drawn = draw_graph(configuration, out or Path(configuration.runs_dir) / "graphs" / configuration.name)
    options.sayer(quiet)(f"{sum(drawn.parameters.values()):,} parameters; look at it: {curves(drawn.directory)}")
    typer.echo(json.dumps(drawn.as_dict()) if as_json else drawn.directory)
