"""Run independent calls in processes of this machine or on a Dask cluster."""

import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    ProcessPoolExecutor,
    as_completed,
)
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from analyzer.model.errors import InputError
from analyzer.model.interrupts import die_with_parent

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_CONNECT_TIMEOUT_S = 15


def run_all(
    call: Callable[[_Item], _Result],
    items: Sequence[_Item],
    scheduler: str = "",
    workers: int = 1,
) -> Iterator[tuple[int, _Result | None]]:
    """Yield the index of each item and the result of ``call``, a module's function, as they finish.

    Calls run on the Dask cluster of a scheduler's address, else in ``workers`` processes, or in this
    process for one worker. If a process dies, the remaining calls run one at a time: only the item that
    kills its process has no result (None). InputError if no scheduler answers.
    """
    if scheduler:
        with _connect(scheduler) as client:
            from distributed import KilledWorker

            yield from _run_calls(client.get_executor(), call, items, KilledWorker)

        return

    if workers <= 1 or len(items) <= 1:
        yield from enumerate(map(call, items))
        return

    waiting = set(range(len(items)))
    with _start_processes(workers) as pool, suppress(BrokenExecutor):
        for index, result in _run_calls(pool, call, items):
            waiting.remove(index)
            yield index, result

    for index in waiting:
        result = None
        with _start_processes(1) as pool, suppress(BrokenExecutor):
            result = pool.submit(call, items[index]).result()

        yield index, result


def _run_calls(
    executor: Executor,
    call: Callable[[_Item], _Result],
    items: Sequence[_Item],
    *died: type[Exception],
) -> Iterator[tuple[int, _Result | None]]:
    """Yield the index and the result of each call; None if it raises ``died``."""
    numbers = {executor.submit(call, item): index for index, item in enumerate(items)}
    for done in as_completed(numbers):
        result = None
        with suppress(*died):
            result = done.result()

        yield numbers[done], result


@contextmanager
def _start_processes(count: int) -> Iterator[Executor]:
    """Start processes that end with the block, and with them their temporary folder."""
    with tempfile.TemporaryDirectory(prefix="analyze-") as folder:
        pool = ProcessPoolExecutor(
            count,
            multiprocessing.get_context("spawn"),
            _tie_to_parent,
            (folder,),
        )

        try:
            yield pool
        finally:
            for process in multiprocessing.active_children():
                process.kill()

            pool.shutdown(cancel_futures=True)


def _tie_to_parent(folder: str) -> None:
    """Let a process end with its parent, which removes its temporary files and handles Ctrl-C."""
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()


def _connect(scheduler: str) -> Any:
    """Return the client of a Dask cluster, which closes at the end of a block."""
    try:
        from distributed import Client

        return Client(scheduler, timeout=_CONNECT_TIMEOUT_S, set_as_default=False)
    except ImportError:
        raise InputError(
            "--scheduler needs Dask, which is not installed.",
            "pip install 'tf-memory-analyzer[dask]'",
        ) from None
    except (OSError, ValueError, TimeoutError) as error:
        reason = str(error).splitlines()[0][:200]
        raise InputError(
            f"No Dask scheduler answers at {scheduler}: {reason}.",
            "Use the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786.",
        ) from None
