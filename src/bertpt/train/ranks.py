"""The processes of one training, and what they tell each other; a training of one process is ``ALONE``.

Each holds the whole model and computes a part of each global batch; torch's DDP adds their gradients up while they are
still being computed. Numbers that the host knows (counts, wishes to stop) go through a group of their own, so that
nothing waits for a GPU. What travels are tensors: nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store, _set_pg_timeout, default_pg_timeout
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from bertpt.data.random import bits
from bertpt.errors import BertptError, Stopped, Told
from bertpt.signals import Interrupted
from bertpt.world import World, of_environment

# The others wait while the first evaluates, plans or saves. One that is dead is noticed at once, by its connection.
_PATIENCE = timedelta(hours=24)
_ARRIVAL = timedelta(minutes=10)  # within which all processes have to be there
# Within which those that are there have to connect. Who waits in torch's own code for one that has died hears no
# signal, and launchers kill it after 30 s: each such wait while they come together is shorter.
_MEETING = timedelta(seconds=12)


class Ranks:
    """One process of several; alone, every method gives back what it was given."""

    def __init__(self, world: World, store: Store | None = None, control: dist.ProcessGroup | None = None) -> None:
        self.world, self.rank, self.size = world, world.rank, world.size
        self._store, self._control = store, control

    @property
    def is_main(self) -> bool:
        """Whether this is the one that prints, logs, evaluates and writes."""
        return self.rank == 0

    def model(self, model: nn.Module) -> nn.Module:
        """The model to train: its backward passes add the gradients of all processes up (and average them)."""
        if self.size == 1:
            return model
        # Gradients lie where they are sent from: no copy.
        return DistributedDataParallel(model, gradient_as_bucket_view=True)

    def kept_apart(self, model: nn.Module, *, apart: bool) -> contextlib.AbstractContextManager[object]:
        """Where gradients are only gathered in this process, when ``apart``: all micro-batches but the last."""
        if apart and isinstance(model, DistributedDataParallel):
            return model.no_sync()
        return contextlib.nullcontext()

    # --- numbers ----------------------------------------------------------------------------------------------------

    def sums(self, numbers: Sequence[int]) -> list[int]:
        """Each number summed over the processes; all wait for each other here."""
        if self.size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(sums, group=self._control)
        return sums.tolist()

    def device_sums(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Each value ([]) summed over the processes, in float64, on the device and without waiting for it."""
        if self.size == 1:
            return list(values)
        sums = torch.stack([value.double() for value in values])
        dist.all_reduce(sums)
        return list(sums.unbind())

    def from_main(self, number: int) -> int:
        """The number that the first process gives."""
        return self.sums([number if self.is_main else 0])[0]

    def together(self) -> None:
        """Wait for all."""
        self.sums([0])

    def first(self, text: str | None) -> str | None:
        """The first text that a process gives; ``None`` when none gives any."""
        if self.size == 1 or not self.sums([text is not None])[0]:
            return text
        texts = self._texts(json.dumps(text))
        return next((text for text in map(json.loads, texts) if text is not None), None)

    def _texts(self, text: str) -> list[str]:
        coded = torch.tensor(list(text.encode()), dtype=torch.uint8)
        lengths = [int(length) for length in self.stacked(torch.tensor([len(coded)]))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(coded)] = coded
        found = self.stacked(padded)
        return [bytes(row[:length].tolist()).decode() for row, length in zip(found, lengths, strict=True)]

    def stacked(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, equal in shape and dtype, on the CPU."""
        if self.size == 1:
            return [tensor]
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(found, tensor, group=self._control)
        return found

    def collected(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of all processes (on the CPU, each name in one of them) in the first; nothing in the others."""
        if self.size == 1:
            return dict(tensors)
        kinds = [[name, list(value.shape), str(value.dtype).removeprefix("torch.")] for name, value in tensors.items()]
        listed = [json.loads(text) for text in self._texts(json.dumps(kinds))]
        if not self.is_main:
            for tensor in tensors.values():
                dist.send(tensor, 0, group=self._control)
            return {}
        found = dict(tensors)
        for rank, names in enumerate(listed[1:], 1):
            for name, shape, dtype in names:
                found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                dist.recv(found[name], rank, group=self._control)
        return found

    # --- randomness -------------------------------------------------------------------------------------------------

    def draw_apart(self, seed: int, step: int) -> None:
        """From now on draw dropout from a stream of this process's own, as of update ``step``."""
        torch.manual_seed(int(bits(seed, step, self.size, self.rank)[0] >> 1))

    # --- ends -------------------------------------------------------------------------------------------------------

    def leave(self, error: Exception | Interrupted) -> NoReturn:
        """Raise ``error``, or :class:`Told` when another process says the same or is the cause.

        A process says what is wrong before its connections close, so that the others, who meet closed ones, find it.
        """
        code = Stopped.exit_code if isinstance(error, Interrupted) else getattr(error, "exit_code", 1)
        told, first = error, True
        if _is_lost(error):
            told = BertptError(
                "another process of this training has ended (killed, perhaps for want of memory); the same command goes"
                " on from the last checkpoint"
            )
        store = self._store
        assert store is not None
        with contextlib.suppress(RuntimeError):  # the store is gone with the process that held it
            if (told is not error or isinstance(error, Interrupted)) and store.add("told", 0):
                raise Told(int(store.get("code"))) from error
            first = store.add(hashlib.sha256(f"{type(told).__name__}: {told}".encode()).hexdigest(), 1) == 1
            if not store.add("told", 0):
                store.set("code", str(code))
                store.add("told", 1)
        if not first:
            raise Told(code) from error
        if told is error:
            raise error
        raise told from error


ALONE = Ranks(World())

_joined: Ranks | None = None


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """The processes that the environment names, once all are there; inside another ``joined``, the same again.

    What ends one of them ends all, and each line is said once: by the first that has it to say.

    Raises:
        RequestError: the environment does not fit.
        BertptError: the processes did not come together, or one was killed.
        Told: another one says why.
    """
    global _joined
    if _joined is not None:
        yield _joined
        return
    world = of_environment()
    if world.size == 1:
        yield ALONE
        return
    ranks = _joined = _join(world)
    try:
        yield ranks
        ranks.together()
    except (Exception, Interrupted) as error:
        # The group is left as it is: to end it could mean to wait for who is gone.
        ranks.leave(error)
    else:
        dist.destroy_process_group()
    finally:
        _joined = None


def _join(world: World) -> Ranks:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        _wait_for_store(world)
        store, rank, size = next(rendezvous("env://", timeout=_MEETING))
        _wait_for_all(store, size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_MEETING)
        control = dist.new_group(backend="gloo", timeout=_MEETING)
        # Both once while a wait is short: a meeting may come back without one that has just died.
        for group in (None, control):
            dist.all_reduce(torch.zeros(1), group=group)
        _set_pg_timeout(default_pg_timeout, None)
        _set_pg_timeout(_PATIENCE, control)
    except (RuntimeError, ValueError) as error:
        raise BertptError(
            f"the {world.size} processes did not come together: {' '.join(str(error).split())}"
        ) from error
    return Ranks(world, PrefixStore("bertpt", store), control)


def _wait_for_store(world: World) -> None:
    """Until something answers where the store is to be; the first process may be the one that opens it.

    By looking again and again, here and below: signals are answered meanwhile, which torch's own waiting puts off.
    """
    begun = time.monotonic()
    while world.rank and time.monotonic() - begun < _ARRIVAL.total_seconds():
        with contextlib.suppress(OSError):
            socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 1).close()
            return
        time.sleep(0.05)


def _wait_for_all(store: Store, size: int) -> None:
    begun, here = time.monotonic(), store.add("bertpt/arrived", 1)
    while here < size:
        if time.monotonic() - begun > _ARRIVAL.total_seconds():
            raise RuntimeError(f"{here} of them came within {_ARRIVAL}")
        time.sleep(0.02)
        here = store.add("bertpt/arrived", 0)


def _is_lost(error: BaseException) -> bool:
    """Whether a process was left by another one; torch says so by its libraries' texts alone."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(name in text for name in ("gloo", "nccl", "connection"))
