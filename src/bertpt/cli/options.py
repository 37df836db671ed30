"""Options that several commands share, as annotated types, and the form of an example in the help."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bertpt.config import Config as Configuration

DEBUG = "BERTPT_DEBUG"


def debugging() -> bool:
    """Whether a traceback is wanted: ``--debug``, or BERTPT_DEBUG set to anything but 0."""
    return os.environ.get(DEBUG, "0") not in ("", "0")


def _set_debug(value: bool) -> bool:
    if value:
        os.environ[DEBUG] = "1"
    return value


def _set_verbose(value: bool) -> bool:
    if value:
        from bertpt.progress import tell_details

        tell_details(True)
    return value


def sayer(quiet: bool) -> Callable[[str], None]:
    """Where lines for people go."""
    from bertpt.progress import say

    return (lambda message: None) if quiet else say


def load(
    config: str, overrides: list[str] | None, data_dir: Path | None, runs_dir: Path | None = None
) -> Configuration:
    """The configuration that the shared options name."""
    from bertpt.config import load_config

    found = load_config(config, overrides or [], data_dir=data_dir, runs_dir=runs_dir)
    logging.getLogger(__name__).debug("configuration %s: %s", config, found.model_dump_json())
    return found


def again(
    command: str, config: str, overrides: list[str] | None, data_dir: Path | None, runs_dir: Path | None = None
) -> str:
    """Another command with the same shared options, as it is typed."""
    words = ["bertpt", *command.split(), "--config", config]
    words += [word for override in overrides or [] for word in ("--set", override)]
    words += [] if data_dir is None else ["--data-dir", str(data_dir)]
    words += [] if runs_dir is None else ["--runs-dir", str(runs_dir)]
    return shlex.join(words)


def examples(*lines: str) -> str:
    """Text for ``epilog=``: the help keeps its lines as they are."""
    # \b alone on a line tells the help's formatter not to fill the paragraph.
    return "\b\n" + "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


def _config_names(incomplete: str) -> list[str]:
    """Shipped configurations that begin so, for the completion of a shell."""
    from bertpt.config import shipped_configs

    return [name for name in shipped_configs() if name.startswith(incomplete)]


Config = Annotated[
    str,
    typer.Option(
        "--config",
        "-c",
        help="A YAML file, or a shipped config (see `bertpt config list`).",
        autocompletion=_config_names,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, e.g. train.seed=1; may be repeated."),
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where corpora lie, in place of data_dir.")]
RunsDir = Annotated[Path | None, typer.Option("--runs-dir", help="Where runs lie, in place of runs_dir.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="One update, one evaluation, one save on a handful of documents.")
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", callback=_set_verbose, help="Say on stderr what is done and how long it takes."),
]
StopAfter = Annotated[
    str | None,
    typer.Option(
        "--stop-after",
        metavar="TIME",
        help="Save and stop after so long, with exit code 3, e.g. 3h50m; the same command goes on.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but faults.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start again where a result exists.")]
Debug = Annotated[
    bool, typer.Option("--debug", callback=_set_debug, help="Show the traceback of a fault.", is_eager=True)
]
