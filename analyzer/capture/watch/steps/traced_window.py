"""The few steps of a program that are traced: the profiler started between two steps, and stopped."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import get_shape
from analyzer.capture.process.capture_worker import GRAPH_FILE, write_run
from analyzer.capture.run.instrumentation import Observations
from analyzer.capture.run.step_capture import Captured, Capturing, describe_capture
from analyzer.capture.run.step_variables import StepVariables
from analyzer.capture.run.tensor_addresses import find_address
from analyzer.capture.targets.step_program import Program
from analyzer.capture.watch.holders.live_holders import (
    count_tensor_bytes,
    find_live_tensors,
    references,
)
from analyzer.capture.xla.xla_lowering import read_compiled_functions
from analyzer.model.contract.run_note import Failure, Input, StepConfig, TargetNote
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.xplane import MARKER_PREFIX, WATCHED_STEP

_RESIDENT_BYTES: Final = 256
_MOST_RESIDENT: Final = 2000


@dataclass(kw_only=True)
class Window:
    """A few traced steps.

    Attributes:
        folder: The run folder.
        observed: Gradients and layers, as they are seen from the program's start.
        function: The concrete function of the step; None where it runs op by op.
        is_compiled: XLA compiles the whole step.
        wanted: Steps to trace.
        done: Steps traced.
        before: The tensors that were alive before the first, by their identity.
        resident: Those of them that are large, with their addresses; named when the steps are done.
        is_open: The profiler runs.
    """

    folder: Path
    observed: Observations
    wanted: int
    function: Any = None
    is_compiled: bool = False
    done: int = 0
    is_open: bool = False
    before: dict[int, Any] = field(default_factory=dict)
    resident: dict[int, Input] = field(default_factory=dict)
    _variables: Any = None
    _program: Program | None = None
    _mark: Any = None

    def open(self) -> bool:
        """Start to trace; return False where the program's own profiler runs."""
        self._look_before()
        self._program = Program(
            call=lambda: None,
            args=(),
            config=StepConfig(jit=True if self.is_compiled else None),
            function=self.function,
        )
        self._variables = StepVariables(self._program, function=self.function)
        self._variables.refresh()
        try:
            tf.profiler.experimental.start(str(self.folder))
        except tf.errors.OpError:
            return False
        self.is_open = True
        self.observed.restart()
        self.observed.eager = self.function is None
        self._snapshot(0)
        self._enter()
        return True

    def _look_before(self) -> None:
        """Note the tensors that are there before the trace: no event will tell of them."""
        tensors = find_live_tensors()
        self.before = references(tensors)
        for tensor in tensors:
            size_bytes = count_tensor_bytes(tensor)
            if size_bytes >= _RESIDENT_BYTES and len(self.resident) < _MOST_RESIDENT:
                address = find_address(tensor)
                self.resident[id(tensor)] = Input(
                    "a tensor", tensor.dtype.name, get_shape(tensor), address
                )

    def next_step(self) -> bool:
        """End a step and begin another; return False where all are done."""
        self._leave()
        self.done += 1
        if self.done >= self.wanted:
            return False
        self._enter()
        return True

    def close(self, *, interrupted: bool = False, failed: bool = False) -> None:
        """End the trace.

        Args:
            interrupted: Within a step, which is left out.
            failed: Unless it is the one that failed, which is what there is to see.
        """
        if not self.is_open:
            return
        self.is_open = False
        if not interrupted or failed:
            self._leave()
            with contextlib.suppress(Exception):
                self._snapshot(1)
        self._stop()

    def _stop(self, *, save: bool = True) -> None:
        self.observed.eager = False
        tf.profiler.experimental.stop(save=save)
        self._leave()  # a mark that ends after the trace is not in it

    def discard(self) -> None:
        """End the trace and remove what it left."""
        if self.is_open:
            self.is_open = False
            self._stop(save=False)
        for name in ("plugins",):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in (GRAPH_FILE, RUN_FILE):
            (self.folder / name).unlink(missing_ok=True)

    def captured(
        self,
        partitions: Sequence[Any],
        *,
        batch_size: int | None,
        error: Failure | None,
        dump: Path | None,
    ) -> Captured:
        """Return what is known of the traced steps as plain data.

        Args:
            partitions: The graphs that the executor ran, empty where not known.
            batch_size: Size of the first axis of what the steps were fed; None where not known.
            error: How a step failed.
            dump: Folder that XLA leaves compiled modules in, None where it leaves none.
        """
        assert self._program is not None
        jit = True if self.is_compiled else None if self.function is not None else False
        self._program.config = StepConfig(jit=jit, batch_size=batch_size)
        found = describe_capture(
            Capturing(
                program=self._program,
                observed=self.observed,
                variables=self._variables,
                inputs=[],
                function=self.function,
                wanted=self.wanted,
                started=True,
                done=self.done,
                error=error,
            ),
            partitions,
        )
        found.run = replace(found.run, inputs=tuple(self.resident.values()))
        if dump is not None and self.function is not None:
            found.compiled = read_compiled_functions(self.function, dump)
        return found

    def write(self, found: Captured, target: TargetNote) -> None:
        """Write the note and the graph into the run folder."""
        found.run = replace(found.run, target=target)
        write_run(self.folder, found)

    def _snapshot(self, index: int) -> None:
        with tf.profiler.experimental.Trace(f"{MARKER_PREFIX}snapshot", index=index):
            self._variables.snapshot()

    def _enter(self) -> None:
        self._mark = tf.profiler.experimental.Trace(WATCHED_STEP, step_num=self.done, _r=1)
        self._mark.__enter__()

    def _leave(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)
