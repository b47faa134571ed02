"""Calls in processes of this machine, as many at a time as it has cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Final, TypeVar

from analyzer.model.interrupts import die_with_parent

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

_TRIES: Final = 2
"""A call whose process died is made again alone, so often."""


def run_locally(
    call: Callable[[_Item], _Made], items: Sequence[_Item], *, workers: int
) -> Iterator[tuple[int, _Made | None]]:
    """Yield what a call makes of each item, with the item's place, in the order in which they end.

    A process that dies takes no other call's result with it: what it had in hand is called again, one
    at a time, so that the item that kills its process is found and given up alone.

    Args:
        call: A function of a module; it is imported in each process.
        items: What it is called with.
        workers: Processes at most.

    Yields:
        The place of an item and what the call returned; None where its process died each time.
    """
    waiting = dict(enumerate(items))
    died: dict[int, int] = {}
    together = max(workers, 1)
    while waiting:
        # After a death one at a time, until all that were in hand then are done.
        first = next((place for place in waiting if place in died), None)
        chosen = list(waiting) if first is None else [first]
        try:
            for place, made in _round(call, {place: waiting[place] for place in chosen}, together):
                del waiting[place]
                died.pop(place, None)
                yield place, made
        except BrokenProcessPool:
            if first is None:
                died = dict.fromkeys(list(waiting)[: 2 * together], 0)
                continue
            died[first] += 1
            if died[first] >= _TRIES:
                del waiting[first], died[first]
                yield first, None


def _round(
    call: Callable[[_Item], _Made], items: dict[int, _Item], workers: int
) -> Iterator[tuple[int, _Made]]:
    """Yield what the call makes of each item.

    Raises:
        BrokenProcessPool: a process died; all that is done by then was yielded.
    """
    with tempfile.TemporaryDirectory(prefix="analyze-") as place:
        yield from _placed_round(call, items, workers, place)


def _placed_round(
    call: Callable[[_Item], _Made], items: dict[int, _Item], workers: int, place: str
) -> Iterator[tuple[int, _Made]]:
    """Do what ``_round`` says, with the processes' temporary files in a folder.

    Args:
        call: What is called.
        items: What with, by place.
        workers: Processes at most.
        place: The folder: a process that is killed leaves what it made, and whoever gave the folder
            removes it.
    """
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        min(workers, len(items)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(place,),
    )
    broken: BrokenProcessPool | None = None
    try:
        futures: dict[Future[_Made], int] = {
            pool.submit(call, item): place for place, item in items.items()
        }
        for future in as_completed(futures):
            try:
                made = future.result()
            except BrokenProcessPool as error:
                broken = error
                continue
            yield futures[future], made
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            with contextlib.suppress(OSError):
                process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if broken is not None:
        raise broken


def _begin(place: str) -> None:
    """Leave Ctrl-C to the process that started this one, and end with it; let it clear up after both."""
    tempfile.tempdir = place
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
