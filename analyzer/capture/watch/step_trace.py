"""The trace of a program's steps: when it is opened, closed or discarded, and its run folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from analyzer.capture.private_names import (
    count_eager_tensors,
    is_jit_compiled,
    list_concrete_functions,
)
from analyzer.capture.process.capture_worker import write_run
from analyzer.capture.run.instrumentation import Observations, observe_step
from analyzer.capture.run.step_capture import Captured
from analyzer.capture.watch.data_ledger import DataLedger
from analyzer.capture.watch.function_ledger import FunctionLedger, FunctionRecord
from analyzer.capture.watch.holders.host_containers import count_host_containers
from analyzer.capture.watch.holders.live_holders import HeldObjects, find_held_objects
from analyzer.capture.watch.step_recording import Profile, Window
from analyzer.model.contract.run_note import Failure, TargetNote, encode_run, read_run_file
from analyzer.model.contract.watch_note import WatchNote
from analyzer.tracing.parse.logdir import RUN_FILE

_ENOUGH: Final = 2
"""Traced steps that suffice if the program's own profile ends the trace early."""

_MAX_TENSORS: Final = 200_000
"""Eager tensors before the steps from which on the trace from the program's start ends: about 100 MB."""


class StepTrace:
    """The trace of the chosen steps, which begins with the program; or of its whole run.

    Attributes:
        observed: Gradients and layers; None after the trace.
        captured: The traced steps; None until the trace is closed.
        held: Objects held when the trace was closed.
        batch_size: First axis of the steps' input; None if unknown.
        failure: How a traced step failed.
        is_whole: Whether the whole run counts as one step.
        is_cut: Whether the program went on after the trace of its run ended.
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
        self._profile = Profile(folder)
        self.observed: Observations | None = None
        self.captured: Captured | None = None
        self.held = HeldObjects()
        self.batch_size: int | None = None
        self.failure: Failure | None = None
        self.is_whole = self.is_cut = False
        self._window: Window | None = None
        self._record: FunctionRecord | None = None
        self._containers: dict[int, int] = {}
        self._is_suspended = self._is_postponed = False
        self._first_tensor = 0

    @property
    def is_open(self) -> bool:
        """Whether chosen steps are being traced."""
        return self._window is not None and self._window.is_open

    @property
    def has_steps(self) -> bool:
        """Whether a step was traced to its end, or failed."""
        return self._window is not None and (self._window.done > 0 or self.failure is not None)

    def observe(self) -> None:
        """Start to observe gradients and layers, and to trace the run."""
        self.observed = self._observing.enter_context(observe_step())
        self.observed.eager = self._profile.start()
        self._first_tensor = count_eager_tensors()

    def stop_observing(self) -> None:
        """Stop to observe gradients and layers."""
        self._observing.close()
        self.observed = None

    def limit_run(self) -> None:
        """End the trace of the run if it has become long before any step was chosen."""
        is_waiting = self._window is None and self._profile.is_running
        if is_waiting and count_eager_tensors() - self._first_tensor > _MAX_TENSORS:
            self.is_cut = True
            self._profile.stop()

    def open(self, record: FunctionRecord | None, *, least: int = 1) -> None:
        """Trace the following calls of a function, ``least`` or more; None for eager steps."""
        self._record = record
        self._containers = count_host_containers()
        self._window = self._make_window(record, max(self._steps, least))
        self._window.open()

    def close_run(
        self, record: FunctionRecord | None, ledgers: tuple[FunctionLedger, DataLedger]
    ) -> bool:
        """End the trace of the whole run; return False if there is none."""
        if not (self._profile.is_running or self._profile.has_trace) or self.observed is None:
            return False
        if self._window is None:
            self._record = record
            self._window = self._make_window(record, 1)
        self.is_whole = True
        self._window.close_run()
        self.held = find_held_objects(self._window, {}, *ledgers)
        return True

    def discard(self) -> None:
        """Discard the trace of steps, because other calls are more like a step."""
        if self._window is not None:
            self._profile.discard()
        self._window, self.captured, self.failure, self.is_whole = None, None, None, False

    def next_step(self) -> bool:
        """Count a traced step; return False if the trace is complete and must be closed."""
        assert self._window is not None
        return self._window.next_step()

    def close(
        self, functions: FunctionLedger, data: DataLedger, *, interrupted: bool = False
    ) -> None:
        """End the trace, and look for objects that are still held."""
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
        must_close = self._window is not None and self.is_open and self._window.done >= _ENOUGH
        if self.is_open and not must_close:
            self.discard()
        elif self._profile.is_running and not self.is_open:
            self.is_cut = True
            self._profile.stop()
        self._is_suspended = True
        return must_close

    def resume(self) -> None:
        """Note that the program's own profile is over."""
        self._is_postponed = self._is_postponed or self._is_suspended
        self._is_suspended = False

    def take_postponed(self) -> bool:
        """Return once whether the program's own profile prevented a trace."""
        is_due = self._is_postponed and self.captured is None
        if is_due:
            self._is_postponed = False
        return is_due

    def _make_window(self, record: FunctionRecord | None, wanted: int) -> Window:
        assert self.observed is not None
        alive = [] if record is None else record.alive()
        return Window(
            profile=self._profile,
            observed=self.observed,
            function=_find_last_concrete(record),
            is_compiled=bool(alive) and is_jit_compiled(alive[-1]),
            wanted=wanted,
        )


def _find_last_concrete(record: FunctionRecord | None) -> Any:
    """Return the concrete function that was traced last; None if there is none."""
    alive = [] if record is None else record.alive()
    concrete = list_concrete_functions(alive[-1]) if alive else []
    return concrete[-1] if concrete else None
