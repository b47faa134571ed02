"""Run independent calls in processes of this machine or on a Dask cluster, through joblib."""

import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from analyzer.model.errors import InputError
from analyzer.model.interrupts import die_with_parent

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_CONNECT_TIMEOUT_S = 15


@dataclass(frozen=True, slots=True)
class WorkEngine:
    """Where calls run: on the Dask cluster of a scheduler's address, else in ``workers`` processes.

    With one worker and no scheduler, calls run in this process.
    """

    scheduler: str = ""
    workers: int = 1

    def run(
        self,
        call: Callable[[_Item], _Result],
        items: Sequence[_Item],
    ) -> Iterator[tuple[int, _Result | None]]:
        """Yield the index of each item and the result of ``call``, a module's function, as they finish.

        If a process dies, the remaining calls run one at a time: only the item that kills its process
        has no result (None). InputError if no scheduler answers.
        """
        if not self.scheduler and (self.workers <= 1 or len(items) <= 1):
            yield from ((index, call(item)) for index, item in enumerate(items))
            return

        waiting = dict(enumerate(items))
        with ExitStack() as stack:
            own_folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="analyze-")
            )
            folder = "" if self.scheduler else own_folder
            died = self._connect(stack)

            with suppress(died):
                for index, result in _run_calls(call, dict(waiting), folder):
                    del waiting[index]
                    yield index, result

            for index, item in waiting.items():
                results: list[tuple[int, _Result]] = []
                with suppress(died):
                    results += _run_calls(call, {index: item}, folder)

                yield index, results[0][1] if results else None

    def _connect(self, stack: ExitStack) -> type[BaseException]:
        """Choose joblib's backend until the stack closes; return the error of a dead process."""
        from joblib import parallel_config
        from joblib.externals.loky import get_reusable_executor
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        if not self.scheduler:
            stack.callback(lambda: get_reusable_executor().shutdown(kill_workers=True))
            stack.enter_context(parallel_config("loky", n_jobs=self.workers))

            died: type[BaseException] = TerminatedWorkerError
            return died

        try:
            from distributed import Client, KilledWorker

            client = Client(
                self.scheduler,
                timeout=_CONNECT_TIMEOUT_S,
                set_as_default=False,
            )
        except ImportError:
            hint = "pip install 'tf-memory-analyzer[dask]'"
            raise InputError(
                "--scheduler needs Dask, which is not installed.",
                hint=hint,
            ) from None
        except (OSError, ValueError, TimeoutError) as error:
            reason = str(error).splitlines()[0][:200]
            raise InputError(
                f"No Dask scheduler answers at {self.scheduler}: {reason}.",
                hint="Use the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786.",
            ) from None

        stack.enter_context(
            parallel_config("dask", client=stack.enter_context(client), n_jobs=-1)
        )

        killed: type[BaseException] = KilledWorker

        return killed


def _run_calls(
    call: Callable[[_Item], _Result],
    items: Mapping[int, _Item],
    folder: str,
) -> Iterator[tuple[int, _Result]]:
    from joblib import Parallel, delayed

    parallel = Parallel(
        return_as="generator_unordered",
        pre_dispatch="n_jobs",
        batch_size=1,
    )

    results = parallel(delayed(_call)(call, *item, folder) for item in items.items())

    try:
        for result in results:  # noqa: UP028 - so that they are closed below
            yield result
    finally:
        with warnings.catch_warnings():
            # joblib warns about the calls that it cancels
            warnings.simplefilter("ignore")
            results.close()


def _call(
    call: Callable[[Any], _Result],
    index: int,
    item: Any,
    folder: str,
) -> tuple[int, _Result]:
    """Call a function; a process of this machine (it has a folder) first ties itself to its parent."""
    if folder:
        tempfile.tempdir = folder  # which the parent removes
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        die_with_parent()

    return index, call(item)
