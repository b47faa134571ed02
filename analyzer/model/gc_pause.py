"""Python's cycle collector, paused or made rarer where many small objects are made.

They hold no cycles, are counted and freed as ever; but the collector would walk all of them again and
again, which takes a third of a large prediction's time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_RARELY: Final = (50_000, 20, 20)
"""Thresholds of a command's own process: objects made before a first look, and looks before a further
one. Python's own (700, 10, 10) suit programs that run for long; a command ends within seconds."""


def collect_rarely() -> None:
    """Let this process look for cycles rarely; for a process of ours, never for the user's own."""
    gc.set_threshold(*_RARELY)


def freeze_loaded_objects() -> None:
    """Leave all objects that are there out of the collector's walks, for this process' whole life.

    For a process of ours that has just imported TensorFlow: a million objects of its modules stay to the
    end, and each full look for cycles would walk them again.
    """
    gc.freeze()


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pause the cycle collector within the block, and leave it as it was."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
