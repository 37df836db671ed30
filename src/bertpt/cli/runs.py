"""``bertpt runs`` and ``bertpt runs compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from bertpt.cli import options


class _ListedByDefault(TyperGroup):
    """``bertpt runs DIR`` is ``bertpt runs list DIR``."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


_COMPARE = "bertpt runs compare runs/demo runs/mine"
app = typer.Typer(cls=_ListedByDefault, help="Table of runs, and what two of them differ in.", rich_markup_mode=None)


@app.callback(epilog=options.examples("bertpt runs", "bertpt runs elsewhere/runs", _COMPARE))
def _group() -> None:
    pass


@app.command("list", epilog=options.examples("bertpt runs list", "bertpt runs list --json"))
def list_(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="The folder of runs.")] = Path("runs"),
    as_json: options.Json = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """List the runs of a folder: kind, updates, state, held-out scores, speed. The name may be left out."""
    from bertpt.runs import list_runs

    found = list_runs(directory)
    typer.echo(json.dumps(found.as_dict(), ensure_ascii=False) if as_json else "\n".join(found.lines()))


@app.command("compare", epilog=options.examples(_COMPARE))
def compare(
    one: Annotated[Path, typer.Argument(help="A run.")],
    other: Annotated[Path, typer.Argument(help="Another of the same kind.")],
    as_json: options.Json = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Show the settings that differ, the last held-out scores, and both curves at the same updates."""
    from bertpt.runs import compare_runs

    found = compare_runs(one, other)
    typer.echo(json.dumps(found.as_dict(), ensure_ascii=False) if as_json else "\n".join(found.lines()))
