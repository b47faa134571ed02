"""One trace from the start of a program to the end of its traced steps, and its run folder."""

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from analyzer.capture.graph.op_phases import list_ran_graphs
from analyzer.capture.graph.plain_graphs import count_bytes, get_shape
from analyzer.capture.private_names import (
    count_eager_tensors,
    is_jit_compiled,
    profiler_v2,
)
from analyzer.capture.process.capture_worker import write_run
from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.capture.run.instrumentation import Observations, observe_step
from analyzer.capture.run.program_values import ProgramValues
from analyzer.capture.run.step_capture import (
    Captured,
    Capturing,
    add_compiled_functions,
    describe_capture,
)
from analyzer.capture.run.step_variables import StepVariables, find_address
from analyzer.capture.targets.step_program import Program
from analyzer.capture.watch.held_tensors import (
    find_live_tensors,
    make_references,
)
from analyzer.capture.watch.program_objects import count_host_containers
from analyzer.capture.watch.step_readings import ProcessPeak
from analyzer.capture.watch.traced_functions import FunctionRecord, get_latest_trace
from analyzer.model.contract.run_note import (
    STEP_WITH_ALL,
    Failure,
    Input,
    SimulatedCardNote,
    StepConfig,
    TargetNote,
    WatchNote,
    encode_run,
    read_run_file,
)
from analyzer.model.machine import send_stderr_to
from analyzer.tracing.parse.event_columns import WATCHED_STEP
from analyzer.tracing.parse.run_folder import GRAPH_FILE, RUN_FILE

# The profiler's functions, as they are before the hooks wrap them.
_START = profiler_v2.start
_STOP = profiler_v2.stop

# Eager tensors before the steps from which on the trace from the program's start ends: about 100 MB.
_MAX_TENSORS = 200_000

# smallest tensor from before the traced steps that is noted
_RESIDENT_BYTES = 256
_MAX_RESIDENT = 2000


class StepTrace:
    """The trace of the chosen steps, which begins with the program; or of its whole run."""

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        target: TargetNote,
        dump: Path | None,
        simulated_card: SimulatedCardNote | None,
        process_peak: ProcessPeak,
        values: ProgramValues | None,
    ) -> None:
        self._process_peak = process_peak
        self._folder = folder
        self._steps = steps
        self._target = target
        self._dump = dump
        self._simulated_card = simulated_card
        self._values = values  # of simulated cards
        self._observing = ExitStack()
        self.observed = Observations()
        self.is_observing = False
        self.batch_size: int | None = None  # first axis of the steps' input

        # whether the program went on after the trace of its run ended
        self.is_cut = False
        self._is_running = self._has_trace = False  # the profiler
        self._first_tensor = 0
        self._reset()

    def _reset(self) -> None:
        self.captured: Captured | None = None  # None until the trace is closed
        self.failure: Failure | None = None  # of a traced step

        # chosen steps are traced; the run counts as one step
        self.is_open = self.is_whole = False
        self.done = self._wanted = 0  # steps

        # By identity: the tensors before the first step, the large ones with their holders, which are
        # named after the last step, and the lengths of host containers.
        self.before: dict[int, Any] = {}
        self.resident: dict[int, Input] = {}
        self.containers: dict[int, int] = {}

        self._record: FunctionRecord | None = None
        self.variables: StepVariables | None = None  # None before steps are chosen
        self._mark: Any = None

    # The profiler

    def _start_profiler(self) -> bool:
        """Start a new trace; return False if the program's own profiler runs."""
        self._discard_profile()

        try:
            with self._keeping_log_lines():
                _START(str(self._folder))
        except tf.errors.OpError:
            return False

        self._is_running = True

        return True

    def _stop_profiler(self) -> None:
        if self._is_running:
            self._is_running = False
            self._has_trace = True
            self._process_peak.pause()
            with self._keeping_log_lines():
                _STOP()

            self._process_peak.subtract_trace()

    def _discard_profile(self) -> None:
        if self._is_running:
            with self._keeping_log_lines():
                _STOP(save=False)

        self._is_running = self._has_trace = False
        shutil.rmtree(self._folder / "plugins", ignore_errors=True)

        for name in (GRAPH_FILE, RUN_FILE):
            (self._folder / name).unlink(missing_ok=True)

    def _keeping_log_lines(self) -> AbstractContextManager[None]:
        """Keep the profiler's log lines, which a run of the program alone lacks, in the run folder."""
        return send_stderr_to(self._folder / LOG_FILE)

    def observe(self) -> None:
        """Start to observe gradients and layers, and to trace the run."""
        self.observed = self._observing.enter_context(observe_step())
        self.is_observing = True
        self.observed.eager = self._start_profiler()
        self._first_tensor = count_eager_tensors()

    def stop_observing(self) -> None:
        """Stop to observe gradients and layers."""
        self._observing.close()
        self.is_observing = False

    def limit_run(self) -> None:
        """End the trace of the run if it has become long before any step was chosen."""
        is_waiting = self.variables is None and self._is_running
        if is_waiting and count_eager_tensors() - self._first_tensor > _MAX_TENSORS:
            self.is_cut = True
            self._stop_profiler()

    # The steps

    def open(self, record: FunctionRecord | None, *, least: int = 1) -> None:
        """Trace the following calls of a function, ``least`` or more; None for eager steps."""
        self.containers = count_host_containers()
        tensors = find_live_tensors()  # some of them without an event
        self.before = make_references(tensors)
        large = [tensor for tensor in tensors if count_bytes(tensor) >= _RESIDENT_BYTES]

        for tensor in large[:_MAX_RESIDENT]:
            self.resident[id(tensor)] = Input(
                "a tensor",
                tensor.dtype.name,
                get_shape(tensor),
                find_address(tensor),
            )

        variables = self._choose(record, max(self._steps, least))

        if not self._is_running:
            self.observed.restart()
            if not self._start_profiler():
                return

        self.is_open = True
        self._process_peak.begin_steps()
        self.observed.eager = variables.function is None
        variables.snapshot()
        self._begin_step()

    def _choose(self, record: FunctionRecord | None, wanted: int) -> StepVariables:
        """Set the steps to the calls of a function; return their variables."""
        self._record = record
        self._wanted = wanted
        function = None
        jit: bool | None = False
        alive = record.list_alive() if record is not None else []

        if alive:
            function = get_latest_trace(alive[-1])
            jit = None if function is not None else jit
            jit = is_jit_compiled(alive[-1]) or jit

        program = Program(call=lambda: None, args=(), config=StepConfig(jit=jit))
        self.variables = StepVariables(program, function=function)
        self.variables.refresh()

        return self.variables

    def next_step(self) -> bool:
        """End a step and begin another; return False if the trace is complete and must be closed."""
        self._end_step()
        self.done += 1

        if self.done >= self._wanted:
            return False

        assert self.variables is not None
        self.variables.snapshot()
        self._begin_step()

        return True

    def close(self, *, interrupted: bool = False) -> None:
        """End the trace of the steps; an unfinished one is included only if it failed."""
        self.is_open = False
        is_whole_step = not interrupted or self.failure is not None

        if is_whole_step:
            self._end_step()

        self._stop(has_snapshot=is_whole_step)

    def close_run(self, record: FunctionRecord | None) -> bool:
        """End the trace of the whole run, which counts as one step; return False if there is none."""
        if not (self._is_running or self._has_trace) or not self.is_observing:
            return False
        if self.variables is None:
            self._choose(record, 1)

        self.is_whole = True
        self.is_open = False
        self.before = {}

        self.containers = {}
        self.done = 1
        self._stop(has_snapshot=True)

        return True

    def discard(self) -> None:
        """Discard the trace of steps, because other calls are more like a step."""
        if self.variables is not None:
            self._discard_profile()

        self._reset()

    def _stop(self, *, has_snapshot: bool) -> None:
        assert self.variables is not None
        if has_snapshot:
            with suppress(Exception):  # reading may need memory
                self.variables.snapshot()

        self.observed.eager = False
        self._stop_profiler()
        self._end_step()  # a marker that ends after the trace is not in it

    def _begin_step(self) -> None:
        self._assume(self.done == STEP_WITH_ALL)
        self._mark = tf.profiler.experimental.Trace(
            WATCHED_STEP,
            step_num=self.done,
            _r=1,
        )

        self._mark.__enter__()

    def _assume(self, selects_all: bool) -> None:
        if self._values is not None and self._values.unknown:
            self._values.assign(selects_all)

    def _end_step(self) -> None:
        self._assume(False)
        mark = self._mark
        self._mark = None

        if mark is not None:
            mark.__exit__(None, None, None)

    # The run folder

    def describe(self, records: Sequence[FunctionRecord]) -> None:
        """Store the closed trace as plain data; ``records`` are of all functions."""
        assert self.variables is not None
        program = self.variables.program
        function = self.variables.function
        batch_size = self.batch_size if function is not None or self.is_whole else None
        program.config = replace(program.config, batch_size=batch_size)
        self.captured = describe_capture(
            Capturing(
                program=program,
                observed=self.observed,
                variables=self.variables,
                inputs=[],
                function=function,
                wanted=self._wanted,
                done=self.done,
                error=self.failure,
                unknown=None if self._values is None else self._values.unknown,
            ),
            [] if self._record is None else self._record.partitions,
            others=list_ran_graphs(
                (one.list_alive()[-1], one.partitions)
                for one in records
                if one is not self._record and one.list_alive()
            ),
        )

        self.captured.run = replace(
            self.captured.run,
            inputs=tuple(self.resident.values()),
            target=self._target,
            simulated_card=self._simulated_card,
        )

        if self._dump is not None and function is not None:
            add_compiled_functions(self.captured, function, self._dump, self.observed)

        self.variables.forget()

    def write(self, note: WatchNote) -> None:
        """Write the note and the graph into the run folder."""
        assert self.captured is not None
        self.captured.run = replace(self.captured.run, watch=note)
        write_run(self._folder, self.captured)

    def rewrite(self, note: WatchNote) -> None:
        """Replace the note in the run folder by a later one."""
        temporary = self._folder / f".{RUN_FILE}"
        run = replace(read_run_file(self._folder / RUN_FILE), watch=note)
        temporary.write_bytes(encode_run(run))
        temporary.replace(self._folder / RUN_FILE)
