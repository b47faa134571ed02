"""The trace of a program's steps: when it is opened, closed or discarded, and its run folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from analyzer.capture.private_names import is_jit_compiled, list_concrete_functions
from analyzer.capture.process.capture_worker import write_run
from analyzer.capture.run.instrumentation import Observations, observe_step
from analyzer.capture.run.step_capture import Captured
from analyzer.capture.watch.data_ledger import DataLedger
from analyzer.capture.watch.function_ledger import FunctionLedger, FunctionRecord
from analyzer.capture.watch.holders.host_containers import count_host_containers
from analyzer.capture.watch.holders.live_holders import HeldObjects, find_held_objects
from analyzer.capture.watch.step_recording import Window
from analyzer.model.contract.run_note import Failure, TargetNote, encode_run, read_run_file
from analyzer.model.contract.watch_note import WatchNote
from analyzer.tracing.parse.logdir import RUN_FILE

_ENOUGH: Final = 2
"""Traced steps that suffice if the program's own profile ends the trace early."""


class StepTrace:
    """The trace of the chosen steps, and before it that of the very first step.

    Attributes:
        observed: Gradients and layers; None after the trace.
        captured: The traced steps; None until the trace is closed.
        held: Objects held when the trace was closed.
        batch_size: First axis of the steps' input; None if unknown.
        failure: How a traced step failed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        target: TargetNote,
        dump: Path | None,
        complete: Callable[[Captured], None],
    ) -> None:
        self._folder, self._steps, self._target = folder, steps, target
        self._dump, self._complete = dump, complete
        self._observing = contextlib.ExitStack()
        self.observed: Observations | None = None
        self.captured: Captured | None = None
        self.held = HeldObjects()
        self.batch_size: int | None = None
        self.failure: Failure | None = None
        self._window: Window | None = None
        self._first: Window | None = None
        self._record: FunctionRecord | None = None
        self._containers: dict[int, int] = {}
        self._has_looked = self._is_starting = False
        self._is_suspended = self._is_postponed = False

    @property
    def is_open(self) -> bool:
        """Whether chosen steps are being traced."""
        return self._window is not None and self._window.is_open

    def observe(self) -> None:
        """Start to observe gradients and layers."""
        self.observed = self._observing.enter_context(observe_step())

    def stop_observing(self) -> None:
        """Stop to observe gradients and layers."""
        self._observing.close()
        self.observed = None

    def open_first(self) -> bool:
        """Trace the first step, in case it runs out of memory; return False if it is over."""
        if self._has_looked or self.observed is None:
            return False
        self._has_looked = True
        self._first = self._start(None, wanted=1)
        return True

    def discard_first(self) -> None:
        """Discard the trace of the first step, if it runs."""
        if self._first is not None:
            self._first.discard()
            self._first = None

    def promote_first(self, record: FunctionRecord | None) -> bool:
        """Make the failed first step, a call of ``record``, the traced one; return whether it was."""
        if self._first is None or not self._first.is_open:
            return False
        self._window, self._first = self._first, None
        self._record = record
        self._window.function = _find_last_concrete(record)
        return True

    def open(self, record: FunctionRecord | None) -> None:
        """Trace the following calls of a function; None for eager steps."""
        self._record = record
        self._containers = count_host_containers()
        alive = [] if record is None else record.alive()
        self._window = self._start(
            _find_last_concrete(record),
            wanted=self._steps,
            is_compiled=bool(alive) and is_jit_compiled(alive[-1]),
        )

    def discard(self) -> None:
        """Discard the trace, because other calls are more like a step."""
        if self._window is not None:
            self._window.discard()
        self.captured = None

    def next_step(self) -> bool:
        """Count a traced step; return False if the trace is complete and must be closed."""
        assert self._window is not None
        return self._window.next_step()

    def close(
        self, functions: FunctionLedger, data: DataLedger, *, interrupted: bool = False
    ) -> None:
        """End the trace, and look for objects that are still held.

        Args:
            functions, data: The program's functions and data sets.
            interrupted: Whether a step is unfinished.
        """
        assert self._window is not None
        self._window.close(interrupted=interrupted, failed=self.failure is not None)
        self.held = find_held_objects(self._window, self._containers, functions, data)

    def describe(self) -> None:
        """Store the closed trace as plain data."""
        assert self._window is not None
        self.captured = self._window.describe(
            [] if self._record is None else self._record.partitions,
            batch_size=self.batch_size,
            error=self.failure,
            dump=self._dump,
        )
        self._complete(self.captured)

    def write(self, note: WatchNote) -> None:
        """Write the note and the graph into the run folder."""
        assert self.captured is not None
        self.captured.run = replace(self.captured.run, target=self._target, watch=note)
        write_run(self._folder, self.captured)

    def rewrite(self, note: WatchNote) -> None:
        """Replace the note in the run folder by a later one."""
        assert self.captured is not None
        run = replace(self.captured.run, target=self._target, watch=note)
        temporary = self._folder / f".{RUN_FILE}"
        written = read_run_file(self._folder / RUN_FILE)  # names the files of graph and modules
        temporary.write_bytes(encode_run(replace(run, graph=written.graph, xla=written.xla)))
        temporary.replace(self._folder / RUN_FILE)

    def suspend(self) -> bool:
        """Release the profiler for the program's own; return whether the trace must be closed."""
        if self._is_starting:
            return False
        self.discard_first()
        must_close = self._window is not None and self.is_open and self._window.done >= _ENOUGH
        if self._window is not None and self.is_open and not must_close:
            self._window.discard()
        self._is_suspended = True  # after the discards, which stop the profiler and so call resume
        return must_close

    def resume(self) -> None:
        """Note that the program's own profile is over."""
        if not self._is_starting:
            self._is_postponed = self._is_postponed or self._is_suspended
            self._is_suspended = False

    def take_postponed(self) -> bool:
        """Return once whether the program's own profile prevented a trace."""
        is_due = self._is_postponed and self.captured is None
        if is_due:
            self._is_postponed = False
        return is_due

    def _start(self, function: Any, *, wanted: int, is_compiled: bool = False) -> Window:
        assert self.observed is not None
        window = Window(
            folder=self._folder,
            observed=self.observed,
            function=function,
            is_compiled=is_compiled,
            wanted=wanted,
        )
        self._is_starting = True
        try:
            window.open()
        finally:
            self._is_starting = False
        return window


def _find_last_concrete(record: FunctionRecord | None) -> Any:
    """Return the concrete function that was traced last; None if there is none."""
    alive = [] if record is None else record.alive()
    concrete = list_concrete_functions(alive[-1]) if alive else []
    return concrete[-1] if concrete else None
