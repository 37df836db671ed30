"""``bertpt import`` and ``bertpt export hf | onnx``."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from bertpt.cli import options

Source = Annotated[Path, typer.Argument(help="A run, a checkpoint, an import, or a transformers directory.")]
Out = Annotated[Path, typer.Argument(help="The directory to make.")]

_IMPORT = ("bertpt import bert-base-uncased imported/base", "bertpt import their-model imported/theirs --cased")
_HF = ("bertpt export hf runs/demo exports/demo", "bertpt export hf imported/base exports/base --overwrite")

export_app = typer.Typer(help="Write a model for other programs, and check it there.", rich_markup_mode=None)


@export_app.callback(invoke_without_command=True, epilog=options.examples(_HF[0]))
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def register(app: typer.Typer) -> None:
    """Add ``import`` and ``export`` to the program."""
    app.command("import", epilog=options.examples(*_IMPORT))(import_)
    app.add_typer(export_app, name="export")


def import_(
    directory: Annotated[Path, typer.Argument(help="A transformers directory: config.json, weights, tokenizer.")],
    out: Out,
    cased: Annotated[
        bool | None,
        typer.Option("--cased/--uncased", help="For a vocab.txt that comes alone; --uncased by default."),
    ] = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Read a BERT from transformers: weights, heads and tokenizer, every name and shape checked."""
    from bertpt.interop.import_ import import_model

    lowercase = None if cased is None else not cased
    done = import_model(directory, out, lowercase=lowercase, overwrite=overwrite, say=options.sayer(quiet))
    typer.echo(json.dumps(done.as_dict(), ensure_ascii=False) if as_json else "\n".join(done.lines()))
    options.sayer(quiet)(f"next: bertpt inspect checkpoint {shlex.quote(str(out))}")


@export_app.command("hf", epilog=options.examples(*_HF))
def hf(
    source: Source,
    out: Out,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Write a directory that transformers loads, read it back, and compare what both models say."""
    from bertpt.interop.export_hf import export_hf
    from bertpt.interop.export_task import export_task
    from bertpt.tasks.rundir import is_task_run

    export = export_task if is_task_run(source) else export_hf
    done = export(source, out, overwrite=overwrite, say=options.sayer(quiet), progress=not quiet)
    typer.echo(json.dumps(dataclasses.asdict(done), default=str) if as_json else "\n".join(done.lines()))


@export_app.command("onnx", epilog=options.examples("bertpt export onnx runs/demo exports/demo-onnx"))
def onnx(
    source: Source,
    out: Out,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Write encoder and masked-word model as ONNX graphs, and compare what onnxruntime computes."""
    from bertpt.interop.export_onnx import export_onnx

    done = export_onnx(source, out, overwrite=overwrite, say=options.sayer(quiet), progress=not quiet)
    typer.echo(json.dumps(dataclasses.asdict(done), default=str) if as_json else "\n".join(done.lines()))
