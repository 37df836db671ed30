"""Runs commands in forked processes and strikes them at a given moment: a kill costs no start of Python.

Reads one JSON object a line (arguments, folder, log, delay, signal, file_limit) and answers with one (struck, code,
seconds).
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from bertpt.cli.main import run as program

MODULES = (
    "bertpt.pipeline",
    "bertpt.data.sources.local",
    "bertpt.interop.export_hf",
    "bertpt.interop.finetuning",
    "bertpt.interop.import_",
    "bertpt.tasks.finetune",
    "sentencex",
    "tensorboard.compat.proto.event_pb2",
    "transformers.models.bert.modeling_bert",
)


def child(order: dict[str, Any]) -> int:
    os.setsid()
    os.chdir(order["folder"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if order.get("file_limit"):  # larger files cannot be written, as on a disk that is full
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"],) * 2)
    return program(order["arguments"])


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


def serve(order: dict[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    number = forked(lambda: child(order))
    struck = False
    while not (found := os.waitpid(number, os.WNOHANG))[0]:
        if not struck and order.get("delay") is not None and time.monotonic() - begun >= order["delay"]:
            os.kill(number, order.get("signal", signal.SIGKILL))
            struck = True
        time.sleep(0.0005)
    return {"struck": struck, "code": os.waitstatus_to_exitcode(found[1]), "seconds": time.monotonic() - begun}


def main() -> None:
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None  # no power is lost here
    for name in MODULES:
        importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
