"""The program ``bertpt``: its commands, and what a fault looks like to the user.

Nothing heavy is imported here or at the top of the command modules: ``bertpt --help`` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import bertpt
from bertpt import signals
from bertpt.cli import config, doctor, exchange, inspect, options, plan, predict, runs, stages, tasks
from bertpt.errors import BertptError, RequestError, Stopped, Told
from bertpt.progress import tell_details
from bertpt.world import of_environment

INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(
    name="bertpt",
    help="Pre-train BERT end to end: raw text in, a trained, evaluated, fine-tuned, exported model out.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(
    invoke_without_command=True,
    epilog=options.examples("bertpt run --config demo", "bertpt pretrain --config base.yaml", "bertpt config list"),
)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    if version:
        typer.echo(f"bertpt {bertpt.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif context.invoked_subcommand != "pretrain":
        _refuse_several(context.invoked_subcommand)


def _refuse_several(command: str) -> None:
    """Only ``pretrain`` is made for several processes; the others would do all their work several times, at once."""
    world = of_environment()
    if world.size == 1:
        return
    # They come together, so that it is said once: launchers stop all as soon as the first ends.
    from bertpt.train.ranks import joined

    with joined():
        raise RequestError(
            f"bertpt {command}: works in one process, and WORLD_SIZE is {world.size}; start it without torchrun (only"
            " bertpt pretrain takes it)"
        )


# The commands, in the order of the help. A module of commands imports what is heavy inside its functions.
stages.register(app)
plan.register(app)
app.add_typer(runs.app, name="runs")
app.add_typer(inspect.app, name="inspect")
doctor.register(app)
tasks.register(app)
app.add_typer(predict.app, name="predict")
exchange.register(app)
app.add_typer(config.app, name="config")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every fault becomes one line (or one per fault) on stderr."""
    try:
        return _answered(arguments)
    except KeyboardInterrupt:  # in the moment between the command's end and that of its handlers
        return Stopped.exit_code


def _answered(arguments: Sequence[str] | None) -> int:
    before, threading.excepthook = threading.excepthook, _thread_fault
    with signals.answered():
        try:
            code = _run(arguments)
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            threading.excepthook = before
            tell_details(False)
        if code != INTERRUPTED:
            return code
        stopped = "interrupted" if (name := signals.received()) is None else f"stopped by {name}"
        if _is_first():
            _say(f"{stopped}; the same command goes on from what was finished")
        return Stopped.exit_code


def _is_first() -> bool:
    """Whether this is the one of several processes that says what all are told by their launcher."""
    try:
        return of_environment().rank == 0
    except RequestError:
        return True


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = app(args=arguments, prog_name="bertpt", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
        return 1
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic in a Rust library is no Exception
        if signals.lost_as(error):
            raise KeyboardInterrupt from error
        signals.too_late()
        if options.debugging():
            traceback.print_exc()
        return _report(error)
    return code if isinstance(code, int) else 0


def _thread_fault(found: threading.ExceptHookArgs) -> None:
    """A library's thread that meets a full or vanished disk: whoever uses it gets the fault as well, and tells it."""
    if options.debugging() or not isinstance(found.exc_value, OSError):
        threading.__excepthook__(found)


def _report(error: BaseException) -> int:
    """Say what went wrong, and return the exit code."""
    if isinstance(error, Told):
        return error.exit_code
    if isinstance(error, BertptError):
        for line in error.faults if isinstance(error, RequestError) else [str(error)]:
            _say(line)
        return error.exit_code
    if isinstance(error, typer.TyperException):  # wrong arguments
        command = getattr(getattr(error, "ctx", None), "command_path", "bertpt")
        _say(f"{' '.join(error.format_message().split()).rstrip('.')}; try {command} --help")
        return RequestError.exit_code
    if isinstance(error, typer.Abort):
        _say("aborted")
        return 1
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        _say(f"{error.filename}: {error.strerror}")
        return 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        _silence_stdout()
        _say(f"what is printed cannot be written: {error.strerror}; make room and give the same command")
        return 1
    message = " ".join(f"{type(error).__name__}: {error}".split())
    _say(message if options.debugging() else f"{message} (unexpected; the same command with --debug shows where)")
    return 1


def _say(line: str) -> None:
    print(f"bertpt: {line}", file=sys.stderr)


def _silence_stdout() -> None:
    """Nobody reads any more: what Python flushes at its end goes nowhere, without a message."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """UTF-8 wherever a terminal does not ask for something else; no character stops a command, nor a closed stream."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  it stays open
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:  # replaced by the embedding program
            continue
        keeps = stream.isatty() and stream.encoding.lower() not in ("ascii", "us-ascii", "ansi_x3.4-1968")
        reconfigure(encoding=stream.encoding if keeps else "utf-8", errors="backslashreplace")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The entry point: run one command and exit."""
    _open_streams()
    with signals.second_at_once():
        code = run(arguments)
    signals.ignore()
    sys.exit(code)
