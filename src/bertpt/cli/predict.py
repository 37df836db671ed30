"""``bertpt predict fill-mask``."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from bertpt.cli import options

app = typer.Typer(help="Use a trained model on given text.", rich_markup_mode=None)


@app.callback(invoke_without_command=True, epilog=options.examples("bertpt predict fill-mask 'the [MASK] of israel'"))
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(
    "fill-mask",
    epilog=options.examples(
        "bertpt predict fill-mask 'the [MASK] of israel'", "cat lines.txt | bertpt predict fill-mask"
    ),
)
def fill_mask(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts with [MASK]; by default lines from stdin.")] = None,
    run: Annotated[Path | None, typer.Option("--run", help="A run directory; the newest run by default.")] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Guesses for each [MASK].")] = 5,
    runs_dir: options.RunsDir = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Guess the words behind [MASK], with their probabilities."""
    from bertpt.predict import Predictor
    from bertpt.train.rundir import newest_run

    predictor = Predictor.from_run(run or newest_run(runs_dir or Path("runs")))
    for text in texts or (line.rstrip("\r\n") for line in sys.stdin):
        for number, filled in enumerate(predictor.fill_mask(text, top=top), 1):
            if as_json:
                typer.echo(json.dumps({"text": text, "mask": number, **dataclasses.asdict(filled)}, ensure_ascii=False))
                continue
            guesses = zip(filled.tokens, filled.probabilities, strict=True)
            typer.echo(f"{text} [{number}]: " + ", ".join(f"{token} {share:.1%}" for token, share in guesses))
