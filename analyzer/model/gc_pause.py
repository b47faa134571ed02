"""Control of Python's garbage collector: a third of a large prediction went to full collections."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_THRESHOLDS: Final = (50_000, 20, 20)
"""Collector thresholds of a command's own process, which ends within seconds. Python's default is
(700, 10, 10)."""


def collect_rarely() -> None:
    """Make collections rare in this process. Call it only in a process of the package."""
    gc.set_threshold(*_THRESHOLDS)


def freeze_loaded_objects() -> None:
    """Exclude all present objects, such as TensorFlow's modules, from future collections."""
    gc.freeze()


@contextmanager
def pause_collector() -> Iterator[None]:
    """Disable the collector inside the block and restore its state afterwards."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
