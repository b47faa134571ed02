"""Run many independent calls in processes of this machine or on a Dask cluster, through joblib."""

from __future__ import annotations

import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from analyzer.model.errors import InputError
from analyzer.model.interrupts import die_with_parent

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_TRIES: Final = 2
"""Times that a call is repeated alone after a process died."""

_CONNECT_TIMEOUT_S: Final = 15


@dataclass(frozen=True, slots=True)
class WorkEngine:
    """Where calls run.

    Attributes:
        scheduler: Address of a Dask scheduler; empty for this machine.
        workers: Processes on this machine at most; with 1, calls run in this process.
    """

    scheduler: str = ""
    workers: int = 1

    def run(
        self, call: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> Iterator[tuple[int, _Result | None]]:
        """Yield the index of each item and the result of its call, as they finish.

        If a process dies, the calls that may have run there are repeated one at a time, so that only
        the item that kills its process has no result (None).

        Args:
            call: A function of a module; other processes import it.
            items: One argument per call.

        Raises:
            InputError: Dask is not installed, or no scheduler answers.
        """
        if not self.scheduler and (self.workers <= 1 or len(items) <= 1):
            yield from ((index, call(item)) for index, item in enumerate(items))
            return
        waiting = dict(enumerate(items))
        with ExitStack() as stack:
            died = self._connect(stack)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="analyze-"))
            setup = None if self.scheduler else folder
            while waiting:
                try:
                    for index, result in _run_together(call, dict(waiting), setup):
                        del waiting[index]
                        yield index, result
                except died:
                    for index in list(waiting)[: 2 * max(self.workers, 1)]:
                        yield index, _run_alone(call, waiting.pop(index), setup, died)

    def _connect(self, stack: ExitStack) -> tuple[type[BaseException], ...]:
        """Choose joblib's backend until the stack is closed; return the errors of a dead worker."""
        from joblib import parallel_config
        from joblib.externals.loky import get_reusable_executor
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        if not self.scheduler:
            stack.callback(lambda: get_reusable_executor().shutdown(kill_workers=True))
            stack.enter_context(parallel_config("loky", n_jobs=self.workers))
            return (TerminatedWorkerError,)
        try:
            import distributed
        except ImportError:
            raise InputError(
                "--scheduler needs Dask, which is not installed.",
                hint="pip install 'tf-memory-analyzer[dask]'",
            ) from None
        try:
            client = distributed.Client(
                self.scheduler, timeout=_CONNECT_TIMEOUT_S, set_as_default=False
            )
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(
                f"No Dask scheduler answers at {self.scheduler}: "
                f"{str(error).splitlines()[0][:200]}.",
                hint="Use the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786.",
            ) from None
        stack.enter_context(client)
        stack.enter_context(parallel_config("dask", client=client, n_jobs=-1))
        return (distributed.KilledWorker,)


def _run_together(
    call: Callable[[_Item], _Result], items: Mapping[int, _Item], folder: str | None
) -> Iterator[tuple[int, _Result]]:
    """Yield the results of calls as they finish."""
    from joblib import Parallel, delayed

    parallel = Parallel(return_as="generator_unordered", pre_dispatch="n_jobs", batch_size=1)
    results = parallel(
        delayed(_call_in_worker)(call, index, item, folder) for index, item in items.items()
    )
    try:
        for result in results:  # noqa: UP028 - so that they are closed below
            yield result
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # joblib warns about the calls that it cancels
            results.close()


def _run_alone(
    call: Callable[[_Item], _Result],
    item: _Item,
    folder: str | None,
    died: tuple[type[BaseException], ...],
) -> _Result | None:
    """Return the result of a call; None if its process dies each time."""
    for _ in range(_TRIES):
        try:
            return next(_run_together(call, {0: item}, folder))[1]
        except died:
            continue
    return None


def _call_in_worker(
    call: Callable[[Any], _Result], index: int, item: Any, folder: str | None
) -> tuple[int, _Result]:
    """Call a function in a worker; one of this machine first ties itself to its parent.

    It ignores Ctrl-C, which the parent handles, ends with the parent, and keeps its temporary files in
    a folder that the parent removes.
    """
    if folder is not None:
        tempfile.tempdir = folder
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with_parent()
    return index, call(item)


def local_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
