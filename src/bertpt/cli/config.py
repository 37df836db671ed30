"""``bertpt config list | show | schema``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bertpt.cli import options

app = typer.Typer(help="Shipped configurations, the resolved one, and the schema.", rich_markup_mode=None)


@app.callback(invoke_without_command=True, epilog=options.examples("bertpt config list"))
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", epilog=options.examples("bertpt config list"))
def list_(as_json: options.Json = False, verbose: options.Verbose = False, debug: options.Debug = False) -> None:
    """List the configurations that come with bertpt: name, layers x width, purpose."""
    from bertpt.config import load_config, shipped_configs

    configs = [load_config(path) for path in shipped_configs().values()]
    configs.sort(key=lambda config: config.model.num_hidden_layers * config.model.hidden_size**2)
    rows = [
        (
            config.name,
            f"{config.model.num_hidden_layers}x{config.model.hidden_size}",
            config.corpus.folder,
            config.description.partition("\n")[0],
        )
        for config in configs
    ]
    keys = ("name", "size", "corpus", "purpose")
    if as_json:
        typer.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2, ensure_ascii=False))
        return
    widths = [max(len(row[column]) for row in [keys, *rows]) for column in range(3)]
    for row in [keys, *rows]:
        typer.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))


@app.command(epilog=options.examples("bertpt config show tiny", "bertpt config show tiny --set train.seed=1 > my.yaml"))
def show(
    name: Annotated[str, typer.Argument(help="A YAML file, or a shipped config.")] = "base",
    overrides: options.Set = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Print a configuration with every setting resolved, as YAML that loads again."""
    from bertpt.config import as_yaml, load_config, plain

    config = load_config(name, overrides or [])
    typer.echo(json.dumps(plain(config), indent=2, ensure_ascii=False) if as_json else as_yaml(config), nl=as_json)


@app.command(epilog=options.examples("bertpt config schema > bertpt.schema.json"))
def schema(verbose: options.Verbose = False, debug: options.Debug = False) -> None:
    """Print the JSON Schema of configurations, by which an editor completes and checks keys."""
    from bertpt.config import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=2, ensure_ascii=False))
