"""Commands to type next, as this program was started: in a virtual environment that is not active, too."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def module(name: str, *arguments: str | Path) -> str:
    """``PYTHON -m NAME ARGUMENTS`` for a shell; an interpreter that lies in the current folder is named from there."""
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return shlex.join([str(python), "-m", name, *map(str, arguments)])


def curves(directory: Path) -> str:
    """What opens TensorBoard on a folder."""
    return module("tensorboard.main", "--logdir", directory)
