"""Who works on the parts of a preparation: this process, several processes, or the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, ProcessPoolExecutor
from importlib import import_module
from typing import Any, TypeVar

from bertpt.errors import BertptError, RequestError

T = TypeVar("T")

TEXT_FOR_A_PROCESS = 32 * 2**20  # starting one takes as long as encoding half a megabyte
_MEMORY_OF_A_PROCESS = 512 * 2**20
DASK_ANSWER = 10  # seconds


def processors() -> int:
    """Processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def default_workers(text_bytes: int) -> int:
    """As many processes as there are processors, unless the text is small or memory short."""
    most = min(processors(), text_bytes // TEXT_FOR_A_PROCESS)
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not every system says
        most = min(most, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MEMORY_OF_A_PROCESS)
    return max(1, most)


def each_in_order(
    work: Callable[[T], None], tasks: Sequence[T], *, workers: int = 1, dask: str | None = None
) -> Generator[None, None, None]:
    """Do ``work`` for all tasks, by ``workers`` processes or a Dask cluster, and yield once for each, in their order.

    Close the iterator to give up what was not begun.

    Raises:
        BertptError: a worker died or was lost, the cluster cannot be reached; and whatever ``work`` raises.
    """
    if dask is not None:
        yield from _on_dask(work, tasks, dask)
    elif min(workers, len(tasks)) <= 1:
        yield from map(work, tasks)
    else:
        yield from _in_processes(work, tasks, min(workers, len(tasks)))


def _in_processes(work: Callable[[T], None], tasks: Sequence[T], workers: int) -> Iterator[None]:
    # Spawned, never forked: threads of the libraries here would be cut off in the middle of what they hold.
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin_worker)
    try:
        for future in [pool.submit(work, task) for task in tasks]:
            yield future.result()
    except BrokenExecutor as error:
        raise BertptError(
            "a worker process died (memory ran out, or it was killed); what is finished is kept: give the same command"
            f" again, with fewer than --workers {workers} if memory was short"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        pool.shutdown()


def _begin_worker() -> None:
    """Set up a worker process: one thread each, Ctrl-C is the program's to answer, no life without the program."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _on_dask(work: Callable[[T], None], tasks: Sequence[T], address: str) -> Iterator[None]:
    with _client(address) as client:
        futures = client.map(work, tasks, pure=False, retries=1)
        try:
            for future in futures:
                yield future.result()
        except (BertptError, GeneratorExit, KeyboardInterrupt):
            raise
        except (Exception, CancelledError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise BertptError(
                f"--dask {address}: {reason}; what is finished is kept: give the same command again"
            ) from error
        finally:
            with contextlib.suppress(Exception):  # the scheduler may be what was lost
                client.cancel(futures)


@contextlib.contextmanager
def _client(address: str) -> Iterator[Any]:
    """A connection to a scheduler that has at least one worker."""
    try:
        distributed = import_module("distributed")  # an extra, and half of it has types
    except ImportError as error:
        raise RequestError("--dask needs the package distributed: pip install 'bertpt[dask]'") from error
    try:
        client = distributed.Client(address, timeout=DASK_ANSWER, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise RequestError(
            f"--dask {address}: no scheduler answers there; `dask scheduler` starts one and says its address"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=DASK_ANSWER)
        except TimeoutError as error:
            raise RequestError(
                f"--dask {address}: the scheduler has no workers; `dask worker {address} --nthreads 1` starts one"
            ) from error
        yield client
