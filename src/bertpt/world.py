"""How many processes train together and which of them this one is, as launchers say it (``torchrun`` and others)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from bertpt.errors import RequestError

_SIZE, _NEEDED = "WORLD_SIZE", ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class World:
    """One of ``size`` processes: its ``rank`` among all, its ``local_rank`` among those of its machine, from 0."""

    size: int = 1
    rank: int = 0
    local_rank: int = 0


def of_environment(environment: Mapping[str, str] = os.environ) -> World:
    """The place of this process; alone where WORLD_SIZE is not set, or is 1.

    Raises:
        RequestError: the variables that launchers set are not all there, or are no such numbers.
    """
    size = _number(environment, _SIZE) if environment.get(_SIZE) else 1
    if size <= 1:
        return World()
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing:
        raise RequestError(
            f"{_SIZE} is {size} and {', '.join(missing)} not set; start with torchrun, which sets all, or unset {_SIZE}"
        )
    world = World(size, _number(environment, "RANK"), _number(environment, "LOCAL_RANK"))
    if world.rank >= size:
        raise RequestError(f"RANK: {world.rank} is not below {_SIZE} {size}; start with torchrun, which sets both")
    if (port := _number(environment, "MASTER_PORT")) >= 2**16:
        raise RequestError(f"MASTER_PORT: {port} is no port (up to 65535); start with torchrun, which sets it")
    return world


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit()):
        raise RequestError(f"{name}: {text!r} is no number; start with torchrun, which sets it, or unset {_SIZE}")
    return int(text)
