"""``bertpt inspect corpus | tokenizer | pairs | checkpoint``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from bertpt.cli import options

if TYPE_CHECKING:
    pass

app = typer.Typer(help="Look at what a stage has made: figures and samples.", rich_markup_mode=None)

Samples = Annotated[int, typer.Option("--samples", "-n", min=0, help="How many samples to show.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Chooses the samples.")]


class _Figures(Protocol):
    def as_dict(self) -> dict[str, Any]: ...
    def lines(self) -> list[str]: ...


@app.callback(
    invoke_without_command=True,
    epilog=options.examples("bertpt inspect corpus --config demo", "bertpt inspect checkpoint runs/demo"),
)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _print(figures: _Figures, as_json: bool) -> None:
    typer.echo(json.dumps(figures.as_dict(), ensure_ascii=False) if as_json else "\n".join(figures.lines()))


@app.command(
    epilog=options.examples("bertpt inspect corpus --config demo", "bertpt inspect corpus --config demo -n 10 --seed 1")
)
def corpus(
    config: options.Config = "base",
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    samples: Samples = 3,
    seed: Seed = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Documents: sizes, sentences, repeats, what was dropped or changed, and samples to read."""
    from bertpt.data.inspect.corpus import inspect_corpus

    configuration = options.load(config, overrides, data_dir)
    _print(inspect_corpus(configuration, samples=samples, seed=seed, progress=not quiet), as_json)


@app.command(
    epilog=options.examples(
        "bertpt inspect tokenizer --config demo",
        "bertpt inspect tokenizer --config demo --set tokenizer.vocab_size=4096",
    )
)
def tokenizer(
    config: options.Config = "base",
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    samples: Samples = 5,
    seed: Seed = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Vocabulary: entries, unknown words, pieces per word, coverage of scripts, held-out sentences in pieces."""
    from bertpt.data.inspect.tokenizer import inspect_tokenizer

    configuration = options.load(config, overrides, data_dir)
    _print(inspect_tokenizer(configuration, samples=samples, seed=seed, progress=not quiet), as_json)


@app.command(
    epilog=options.examples(
        "bertpt inspect pairs --config demo", "bertpt inspect pairs --config demo --length 128 --set masking.rate=0.3"
    )
)
def pairs(
    config: options.Config = "base",
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    length: Annotated[
        list[int] | None,
        typer.Option("--length", min=8, help="Length of the rows; by default those of train.phases. May be repeated."),
    ] = None,
    samples: Samples = 3,
    seed: Seed = 0,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Training rows: segments, labels and masks in words, with the figures of an epoch."""
    from bertpt.data.inspect.pairs import inspect_pairs

    configuration = options.load(config, overrides, data_dir)
    _print(inspect_pairs(configuration, lengths=length or (), samples=samples, seed=seed), as_json)


@app.command(
    epilog=options.examples("bertpt inspect checkpoint runs/demo", "bertpt inspect checkpoint --config demo --json")
)
def checkpoint(
    path: Annotated[
        Path | None, typer.Argument(help="A run or a checkpoint; default: --config's run, or the newest.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", "-c", help="The run of this configuration, if no path is given.")
    ] = None,
    overrides: options.Set = None,
    runs_dir: options.RunsDir = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Weights: hashes verified, step, shape, parameters by module, norms, NaN check."""
    from bertpt.train.checkpoints.inspect import inspect_checkpoint

    _print(inspect_checkpoint(path or _run(config, overrides, runs_dir), say=options.sayer(quiet)), as_json)


def _run(config: str | None, overrides: list[str] | None, runs_dir: Path | None) -> Path:
    from bertpt.config import load_config
    from bertpt.train.rundir import newest_run, run_path

    if config is None:
        return newest_run(runs_dir or Path("runs"))
    return run_path(load_config(config, overrides or [], runs_dir=runs_dir))
