"""Measurements of a program: a trace of its first steps, and memory readings after the others."""

from __future__ import annotations

import contextlib
import resource
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import get_shape
from analyzer.capture.private_names import profiler_v2
from analyzer.capture.process.capture_worker import GRAPH_FILE
from analyzer.capture.run.instrumentation import Observations
from analyzer.capture.run.step_capture import Captured, Capturing, describe_capture
from analyzer.capture.run.step_variables import StepVariables, find_address
from analyzer.capture.targets.step_program import Program
from analyzer.capture.watch.holders.live_holders import (
    count_tensor_bytes,
    find_live_tensors,
    make_references,
)
from analyzer.capture.xla.xla_lowering import read_compiled_functions
from analyzer.model.contract.run_note import Failure, Input, StepConfig
from analyzer.model.contract.watch_note import Reading
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.xplane import MARKER_PREFIX, WATCHED_STEP

_START, _STOP = profiler_v2.start, profiler_v2.stop
"""The profiler's functions, as they are before the hooks wrap them."""

_RESIDENT_BYTES: Final = 256
"""Smallest tensor from before the trace that is noted."""
_MAX_RESIDENT: Final = 2000

_ALWAYS_READ: Final = 64
"""First steps that are all read."""
_MAX_READINGS: Final = 1024
"""Number of readings at which every second one is dropped."""
_TIME_SHARE: Final = 0.005
"""Largest share of the run time for readings."""
_HOST_INTERVAL_S: Final = 0.2
"""Time between two readings of the resident memory, a slow system call."""


class Profile:
    """TensorFlow's profiler: one trace from the program's start to the end of its traced steps.

    Attributes:
        is_running: Whether it records.
        has_trace: Whether it recorded and its trace is in ``folder``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_running = self.has_trace = False

    def start(self) -> bool:
        """Start a new trace; return False if the program's own profiler runs."""
        self.discard()
        try:
            _START(str(self.folder))
        except tf.errors.OpError:
            return False
        self.is_running = True
        return True

    def stop(self) -> None:
        """End the trace and write it."""
        if self.is_running:
            self.is_running, self.has_trace = False, True
            _STOP()

    def discard(self) -> None:
        """End the trace and remove the files of a run."""
        if self.is_running:
            self.is_running = False
            _STOP(save=False)
        self.has_trace = False
        shutil.rmtree(self.folder / "plugins", ignore_errors=True)
        for name in (GRAPH_FILE, RUN_FILE):
            (self.folder / name).unlink(missing_ok=True)


@dataclass(kw_only=True)
class Window:
    """The traced steps of a program, or its whole run.

    Attributes:
        profile: The profiler, which may run since the program's start.
        observed: Gradients and layers seen since then.
        wanted: Steps to trace.
        function: The concrete function of the step; None for eager steps.
        is_compiled: Whether XLA compiles the whole step.
        done: Number of traced steps.
        is_open: Whether steps are traced.
        before: The tensors that existed before the first step, by identity.
        resident: The large ones of them, with address; their holders are named after the last step.
    """

    profile: Profile
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

    def open(self) -> None:
        """Mark steps from now on, unless the program's own profiler runs."""
        self._note_resident()
        self._find_variables()
        if not self.profile.is_running:
            self.observed.restart()
            if not self.profile.start():
                return
        self.is_open = True
        self.observed.eager = self.function is None
        self._take_snapshot(0)
        self._begin_step()

    def _find_variables(self) -> None:
        self._program = Program(
            call=lambda: None,
            args=(),
            config=StepConfig(jit=True if self.is_compiled else None),
            function=self.function,
        )
        self._variables = StepVariables(self._program, function=self.function)
        self._variables.refresh()

    def _note_resident(self) -> None:
        """Note the tensors that exist before the steps, some of them without an event."""
        tensors = find_live_tensors()
        self.before = make_references(tensors)
        for tensor in tensors:
            size_bytes = count_tensor_bytes(tensor)
            if size_bytes >= _RESIDENT_BYTES and len(self.resident) < _MAX_RESIDENT:
                self.resident[id(tensor)] = Input(
                    "a tensor", tensor.dtype.name, get_shape(tensor), find_address(tensor)
                )

    def next_step(self) -> bool:
        """End a step and begin another; return False if all steps are traced."""
        self._end_step()
        self.done += 1
        if self.done >= self.wanted:
            return False
        self._begin_step()
        return True

    def close(self, *, interrupted: bool = False, failed: bool = False) -> None:
        """End the trace.

        Args:
            interrupted: Whether a step is unfinished, which is then left out.
            failed: Whether the unfinished step failed, which is then included.
        """
        if not self.is_open:
            return
        self.is_open = False
        if not interrupted or failed:
            self._end_step()
            with contextlib.suppress(Exception):
                self._take_snapshot(1)
        self._stop()

    def close_run(self) -> None:
        """End the trace of a program without a whole traced step: the whole run counts as one."""
        self.is_open = False
        self.before, self.done = {}, 1
        if self._variables is None:
            self._find_variables()
        with contextlib.suppress(Exception):
            self._take_snapshot(1)
        self._stop()

    def describe(
        self,
        partitions: Sequence[Any],
        *,
        batch_size: int | None,
        error: Failure | None,
        dump: Path | None,
    ) -> Captured:
        """Return the traced steps as plain data."""
        assert self._program is not None
        jit = True if self.is_compiled else None if self.function is not None else False
        self._program.config = StepConfig(jit=jit, batch_size=batch_size)
        captured = describe_capture(
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
        captured.run = replace(captured.run, inputs=tuple(self.resident.values()))
        if dump is not None and self.function is not None:
            captured.compiled = read_compiled_functions(self.function, dump)
        return captured

    def _stop(self) -> None:
        self.observed.eager = False
        self.profile.stop()
        self._end_step()  # a marker that ends after the trace is not in it

    def _take_snapshot(self, index: int) -> None:
        with tf.profiler.experimental.Trace(f"{MARKER_PREFIX}snapshot", index=index):
            self._variables.snapshot()

    def _begin_step(self) -> None:
        self._mark = tf.profiler.experimental.Trace(WATCHED_STEP, step_num=self.done, _r=1)
        self._mark.__enter__()

    def _end_step(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)


class StepReadings:
    """Bytes in use after steps, of the allocator and sometimes of the process.

    Attributes:
        rows: The readings, in the order of the steps.
        peaks: TensorFlow's own peak of each GPU since the start; of the CPU if there is none.
    """

    def __init__(self) -> None:
        self.rows: list[Reading] = []
        self.peaks: tuple[int, ...] = ()
        self._stride = 1
        self._next_s = self._next_host_s = 0.0
        self._devices: tuple[str, ...] = ()

    @property
    def last_bytes(self) -> int:
        """Bytes in use at the last reading."""
        return self.rows[-1].in_use_bytes if self.rows else 0

    def read(self, step: int) -> None:
        """Read the bytes in use after a step, unless readings would take too much time."""
        now_s = time.perf_counter()
        if step % self._stride or (now_s < self._next_s and step > _ALWAYS_READ):
            return
        self._find_devices()
        in_use_bytes = _read_statistics(self._devices[0])["current"]
        self._next_s = now_s + (time.perf_counter() - now_s) / _TIME_SHARE
        host_bytes = None
        if now_s >= self._next_host_s:
            host_bytes = _read_resident_bytes()
            self._next_host_s = now_s + _HOST_INTERVAL_S
        self.rows.append(Reading(step=step, in_use_bytes=in_use_bytes, host_bytes=host_bytes))
        if len(self.rows) >= _MAX_READINGS:
            self.rows = self.rows[::2]
            self._stride *= 2

    def read_peaks(self) -> None:
        """Read TensorFlow's own peaks; those of before a reset count."""
        self._find_devices()
        peaks = [_read_statistics(device)["peak"] for device in self._devices]
        before = self.peaks or (0,) * len(peaks)
        self.peaks = tuple(map(max, peaks, before))

    def _find_devices(self) -> None:
        if not self._devices:
            count = len(tf.config.list_logical_devices("GPU"))
            self._devices = tuple(f"GPU:{number}" for number in range(count)) or ("CPU:0",)

    def keep_last(self) -> None:
        """Drop all readings but the last, because other calls are the steps from now on."""
        self.rows = self.rows[-1:]


def _read_statistics(device: str) -> dict[str, int]:
    """Return the allocator's bytes in use and its peak; zeros if it keeps no statistics."""
    try:
        return dict(tf.config.experimental.get_memory_info(device))
    except (ValueError, tf.errors.OpError):
        return {"current": 0, "peak": 0}


def _read_resident_bytes() -> int | None:
    """Return the process' resident memory; None if the system has no ``/proc``."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None
