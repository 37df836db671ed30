"""Runs commands in forked processes and strikes them at a given moment: neither a start nor a kill costs one of Python.

Its arguments are modules to load before; by default all that the stages use. Reads one JSON object a line and answers
with one (struck, code, codes of all processes, seconds):
    arguments, folder, log: of the command; log has what all its processes said, and log.RANK what one of several did.
    more: further arguments of the process ``rank``.
    ranks: so many processes train together, as torchrun starts them; when one fails, the others are asked to stop.
    delay: seconds until the strike, by signal, of the process ``rank``, or of all; or
    update: the number of the update at whose beginning ``rank`` strikes itself.
    file_limit: bytes that a file can have.
"""

from __future__ import annotations

import faulthandler
import importlib
import itertools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from bertpt.cli.main import run as program
from bertpt.train import loop

MODULES = (
    "bertpt.pipeline",
    "bertpt.data.corpus.sources.local",
    "bertpt.interop.export_hf",
    "bertpt.interop.finetuning",
    "bertpt.interop.import_",
    "bertpt.tasks.finetune",
    "sentencex",
    "tensorboard.compat.proto.event_pb2",
    "transformers.models.bert.modeling_bert",
)

# Seconds after the end of one process at which torchrun strikes the others.
TORCHRUN = ((0.1, signal.SIGTERM), (30.0, signal.SIGKILL))


def child(order: dict[str, Any], place: dict[str, str]) -> int:
    os.setsid()
    os.chdir(order["folder"])
    os.environ.update(place)
    name = order["log"] + (f".{place['RANK']}" if place else "")
    log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if order.get("file_limit"):  # larger files cannot be written, as on a disk that is full
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"],) * 2)
    if place:  # where one hangs that should have ended stands in its log
        faulthandler.dump_traceback_later(20)
    is_struck = bool(place) and int(place["RANK"]) == order.get("rank")
    if is_struck and "update" in order:
        strike_in(order["update"], order.get("signal", signal.SIGKILL))
    return program(order["arguments"] + (order.get("more", []) if is_struck else []))


def strike_in(update: int, number: int) -> None:
    made, count = loop.train_step, itertools.count(1)

    def struck(*arguments: Any, **options: Any) -> Any:
        if next(count) == update:
            os.kill(os.getpid(), number)
        return made(*arguments, **options)

    loop.train_step = struck


def forked(work: Callable[[], int]) -> int:
    number = os.fork()
    if number:
        return number
    code = 70
    try:
        code = work()
        sys.stderr.flush()
    finally:
        os._exit(code)


def places(ranks: int, port: int) -> list[dict[str, str]]:
    """What torchrun tells each process; as there, the store outlives all of them."""
    common = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def serve(order: dict[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    ranks = order.get("ranks", 0)
    logs = [Path(f"{order['log']}.{rank}") for rank in range(ranks)]
    for log in logs:  # of the last command: one may be struck before it opens its own
        log.write_text("")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if ranks else None
    numbers = [forked(partial(child, order, place)) for place in (places(ranks, store.port) if store else [{}])]
    codes: dict[int, int] = {}
    struck, failed = False, 0.0
    asked = list(TORCHRUN)
    while len(codes) < len(numbers):
        for number in set(numbers) - codes.keys():
            if (found := os.waitpid(number, os.WNOHANG))[0]:
                codes[number] = os.waitstatus_to_exitcode(found[1])
                if codes[number] and not failed:
                    failed = time.monotonic()
        if failed and asked and time.monotonic() - failed > asked[0][0]:
            ask = asked.pop(0)[1]
            for number in set(numbers) - codes.keys():
                os.kill(number, ask)
        if not struck and order.get("delay") is not None and time.monotonic() - begun >= order["delay"]:
            struck_ones = numbers if order.get("rank") is None else [numbers[order["rank"]]]
            for number in set(struck_ones) - codes.keys():
                os.kill(number, order.get("signal", signal.SIGKILL))
            struck = True
        time.sleep(0.0005)
    if ranks:
        Path(order["log"]).write_text("".join(log.read_text(encoding="utf-8") for log in logs), encoding="utf-8")
    ends = [codes[number] for number in numbers]
    return {"struck": struck, "code": ends[0], "codes": ends, "seconds": time.monotonic() - begun}


def main() -> None:
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None  # no power is lost here
    for name in sys.argv[1:] or MODULES:
        importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
