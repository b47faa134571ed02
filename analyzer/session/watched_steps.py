"""Watch the steps that the user's own code makes, in a block or between two calls."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.model.contract.capture_request import SCRIPT_STEPS, SCRIPT_WARMUP_STEPS
from analyzer.report.result import Result
from analyzer.session.opening import open_result
from analyzer.session.target_results import save_report

if TYPE_CHECKING:
    from analyzer.capture.watch.watch_block import WatchBlock
    from analyzer.model.contract.report.subject import Finding


@dataclass
class Watched:
    """The outcome of a ``with analyzer.watch():`` block."""

    # the traced steps, explained; None while the block runs, or if no step was traced
    result: Result | None = None
    steps: int = 0  # number of steps in the block

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the result, the most important first."""
        return () if self.result is None else self.result.findings


@contextmanager
def watch(
    out: str | os.PathLike[str] | None = None,
    *,
    steps: int = SCRIPT_STEPS,
    warmup: int = SCRIPT_WARMUP_STEPS,
    name: str = "watch",
    force: bool = False,
    on_oom: str | os.PathLike[str] | None = None,
) -> Iterator[Watched]:
    """Find the training or inference steps in the block, trace a few, and explain them.

    If a later step runs out of memory, the report also names the buffers that were alive.

    Args:
        out: The run folder, with ``report.html`` and ``report.json``; default ``traces/NAME-TIME``.
        steps: Steps to trace.
        warmup: Steps before them.
        name: Name of the steps in the report.
        force: Replace an earlier run in ``out``.
        on_oom: The run folder if a step runs out of memory. Without ``out``, nothing is written unless
            that happens.

    Raises:
        InputError: a folder cannot be used, or another block is active.
        TargetError: TensorFlow was imported with an allocator that records no memory events.
    """
    watched = Watched()
    block = begin_watch(
        out, steps=steps, warmup=warmup, name=name, force=force, on_oom=on_oom, watched=watched
    )
    try:
        yield watched
    except BaseException as error:
        end_watch(block, watched, error)
        raise
    end_watch(block, watched)


@cache
def callback_class() -> type[Any]:
    """Return ``MemoryCallback``; this imports Keras."""
    from analyzer.capture.process.live_capture import can_trace_here

    can_trace_here()  # chooses the allocator if TensorFlow is not imported yet
    from analyzer.capture.watch.keras_callback import MemoryCallback

    MemoryCallback.begin_watch = staticmethod(begin_watch)
    MemoryCallback.end_watch = staticmethod(end_watch)
    return MemoryCallback


def begin_watch(
    out: str | os.PathLike[str] | None = None,
    *,
    steps: int = SCRIPT_STEPS,
    warmup: int = SCRIPT_WARMUP_STEPS,
    name: str = "watch",
    force: bool = False,
    on_oom: str | os.PathLike[str] | None = None,
    watched: Watched | None = None,
) -> WatchBlock:
    """Watch the steps of this process until ``end_watch``; arguments as for ``watch``.

    If a step runs out of memory, the watching ends there and ``watched`` is filled.
    """
    from analyzer.capture.watch.watch_block import WatchBlock

    block = WatchBlock(
        None if out is None else Path(out),
        steps=steps,
        warmup=warmup,
        name=name,
        force=force,
        on_oom=None if on_oom is None else Path(on_oom),
        on_failure=lambda error: _end_at_failure(block, watched, error),
    )
    return block


def _end_at_failure(block: WatchBlock, watched: Watched | None, error: BaseException) -> None:
    """End the block; an error of ours must not replace the program's."""
    with suppress(Exception):
        end_watch(block, watched, error)


def end_watch(
    block: WatchBlock, watched: Watched | None = None, error: BaseException | None = None
) -> Watched:
    """Stop watching, explain the traced steps and save the report in the run folder.

    ``watched`` is filled, a new one if None; ``error`` is the exception that ended the steps.
    """
    watched = watched or Watched()
    if not block.is_running:  # it ended when a step ran out of memory
        return watched
    folder = block.end(error)
    if folder is None:
        watched.steps = 0 if block.note is None else block.note.steps
        return watched
    result = open_result(folder)
    seen = result.recording.watch
    watched.steps = 0 if seen is None else seen.steps
    watched.result = save_report(result, folder)
    return watched
