"""Where many calls run: on the local cores, in this process, or on a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class WorkEngine:
    """Where calls run.

    Attributes:
        scheduler: Address of a Dask scheduler; empty for this machine.
        workers: Processes of this machine at most; 1 for none but this one.
    """

    scheduler: str = ""
    workers: int = 1

    def run(
        self, call: Callable[[_Item], _Made], items: Sequence[_Item]
    ) -> Iterator[tuple[int, _Made | None]]:
        """Yield what a call makes of each item, with the item's place, in the order in which they end.

        Args:
            call: A function of a module, which other processes import.
            items: What it is called with.

        Yields:
            The place of an item and what the call returned; None where its process died each time.

        Raises:
            InputError: no Dask scheduler answers.
        """
        if self.scheduler:
            from analyzer.session.engines.dask_engine import run_on_dask

            yield from run_on_dask(call, items, self.scheduler)
        elif self.workers > 1 and len(items) > 1:
            from analyzer.session.engines.local_engine import run_locally

            yield from run_locally(call, items, workers=self.workers)
        else:
            for place, item in enumerate(items):
                yield place, call(item)


def local_cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
