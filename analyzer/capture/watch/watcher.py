"""The steps of a program that runs by itself: found, counted, a few traced, the rest read cheaply.

What a step is, is told from what the program does again and again: it calls a ``tf.function`` (which
is also what ``fit`` does), or applies an optimizer or takes gradients op by op. What trains goes before
what only computes. A step ends where that call returns; the next one begins there, so that the data of
a step belong to it. A program that only takes gradients may ask one tape for several: its step ends
where the next tape is made. Of what a coordinator schedules, the quickest worker's calls are the steps.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.private_names import (
    context,
    is_eager,
    is_jit_compiled,
    list_concrete_functions,
)
from analyzer.capture.run.instrumentation import Observations, observe_step
from analyzer.capture.run.step_capture import Captured
from analyzer.capture.run.step_failure import describe_failure
from analyzer.capture.watch.data_ledger import DataLedger
from analyzer.capture.watch.function_ledger import FunctionLedger, FunctionRecord, updates_variables
from analyzer.capture.watch.holders.held_after_steps import HeldAfterSteps, held_after_steps
from analyzer.capture.watch.holders.holder_search import HolderSearch
from analyzer.capture.watch.holders.host_containers import count_host_containers
from analyzer.capture.watch.holders.later_look import LaterLook
from analyzer.capture.watch.steps.gradient_steps import GradientSteps
from analyzer.capture.watch.steps.step_candidates import (
    ASKED_AGAIN,
    GRADIENTS,
    StepCandidates,
    StepRank,
)
from analyzer.capture.watch.steps.step_hooks import Hooks
from analyzer.capture.watch.steps.step_readings import StepReadings
from analyzer.capture.watch.steps.traced_window import Window
from analyzer.capture.watch.watch_files import write_untraced
from analyzer.model.contract.run_note import Failure, RunFile, TargetNote, encode_run, read_run_file
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.errors import ExitCode
from analyzer.tracing.parse.logdir import RUN_FILE

_ENOUGH: Final = 2
"""Traced steps that are kept where the program's own profile begins before all are done."""

_MOST_FUNCTIONS: Final = 50
"""Functions that the note tells of, those traced most often."""


class Watcher:
    """One program under watch.

    Args:
        folder: Where the run folder is made.
        steps, warmup: Steps to trace, and steps before them.
        target: What is watched.
        dump: Folder that XLA leaves compiled modules in; None where it leaves none.
        complete: Called with the note of the traced steps, to add what the process alone knows.
    """

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        warmup: int,
        target: TargetNote,
        dump: Path | None = None,
        complete: Callable[[Captured], None] = lambda found: None,
    ) -> None:
        self._folder, self._wanted, self._warmup = folder, steps, warmup
        self._target, self._dump, self._complete = target, dump, complete
        self._owner = os.getpid()
        self._hooks = Hooks(self)
        self._observing = contextlib.ExitStack()
        self._observed: Observations | None = None
        self.functions = FunctionLedger()
        self.data = DataLedger()
        self._scheduled: weakref.WeakKeyDictionary[Any, FunctionRecord] = (
            weakref.WeakKeyDictionary()
        )
        self._worker: int | None = None
        self._stepping: FunctionRecord | None = None
        self._gradients = GradientSteps()
        self._turn = threading.RLock()  # a coordinator's workers end steps on threads of their own
        self._candidates = StepCandidates(warmup)
        self._readings = StepReadings()
        self._window: Window | None = None
        self._first: Window | None = None
        self._has_looked = False
        self._first_key: Hashable = None
        self._first_record: FunctionRecord | None = None
        self._done: Captured | None = None
        self._is_done = False
        self._containers: dict[int, int] = {}
        self._left = HeldAfterSteps()
        self._later: LaterLook | None = None
        self._batch_size: int | None = None
        self._failure: Failure | None = None
        self._starting = False
        self._is_profiled = self._is_put_off = False

    # What the process does with it

    def begin(self) -> None:
        """Put the wrappers in place."""
        self._observed = self._observing.enter_context(observe_step())
        self._hooks.install()

    def finish(self, ended: str = "", error: BaseException | None = None) -> None:
        """Close what is open, write what was seen, and take all wrappers out.

        Args:
            ended: How the program ended, in words; empty for by itself.
            error: What ended it; None where it ended by itself.
        """
        if os.getpid() != self._owner or self._is_done:
            return
        if error is not None:
            self.failed(error)
        elif self._gradients.pending:
            self._boundary(GRADIENTS, StepRank.GRADIENT, None)
        if self._first is not None:
            self._first.discard()
        if self._window is not None and self._window.is_open:
            self._failure = self._failure or (None if error is None else describe_failure(error))
            self._close(interrupted=True)
        self._is_done = True
        self._hooks.remove()
        self._observing.close()
        if self._later is not None and self._later.has_grown(self._readings.last_bytes):
            self._later.look(self._candidates.steps, inspect.currentframe())
        self.save(ended)

    def forget(self) -> None:
        """Let go of everything: in a copy of the process that the program forked."""
        self._is_done = True
        self._hooks.remove()
        self._observing.close()

    # What the wrappers tell

    def function_called(
        self, call: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a ``tf.function``, and count it as a step.

        Args:
            call: What to call with the function and its arguments.
            function: The ``tf.function``.
            args, kwargs: The call's.
        """
        record = self.functions.record_of(function)
        record.calls += 1
        traces = function.experimental_get_tracing_count()
        observed = self._observed
        gradients = 0 if observed is None else len(observed.gradients)
        self._look_first(record)
        collects = not traces and not self._is_done and self._done is None
        if collects:
            context.enable_graph_collection()
        try:
            result = call(function, *args, **kwargs)
        except Exception as error:
            self.failed(error)
            raise
        finally:
            if collects:
                self._collect(record)
        self._note_traces(record, function, (traces, gradients), args, kwargs)
        self._boundary(record.code or id(function), _rank(record), record)
        return result

    def function_scheduled(
        self, call: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Let a coordinator trace a ``tf.function``, and know its calls by what it traced.

        Args:
            call: What to call; it takes nothing.
            function: The ``tf.function``.
            args, kwargs: What it will be called with.
        """
        record = self.functions.record_of(function)
        record.calls += 1
        traces = function.experimental_get_tracing_count()
        gradients = 0 if self._observed is None else len(self._observed.gradients)
        result = call()
        self._note_traces(record, function, (traces, gradients), args, kwargs)
        for concrete in list_concrete_functions(function):
            self._scheduled[concrete] = record
        return result

    def scheduled_ran(self, function: Any, worker: int) -> None:
        """Count a step of a worker; the quickest one's are the steps, and others' lie within them."""
        record = None if function is None else self._scheduled.get(function)
        if record is not None:
            key = (record.code or id(record), worker)
            self._boundary(key, _rank(record), record, worker)

    def _note_traces(
        self,
        record: FunctionRecord,
        function: Any,
        before: tuple[int, int],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Note what a call of a ``tf.function`` traced.

        Args:
            record, function: The function.
            before: How often it had been traced, and gradients taken, before the call.
            args, kwargs: The call's.
        """
        traces, gradients = before
        count = function.experimental_get_tracing_count() - traces
        if count:
            record.traced(self._candidates.steps, args, kwargs, count)
        if self._observed is not None and len(self._observed.gradients) > gradients:
            record.trains = True
        elif traces and record.calls == 1:  # it was traced before it was watched
            record.trains = updates_variables(function)
        if self._done is None:  # a number: to keep the call's tensors would be to hold them
            self._batch_size = _first_axis(args)

    def applied(self, optimizer: Any) -> None:
        """Count a step that was made op by op."""
        self._gradients.began_to_record()
        self._boundary(("optimizer", id(optimizer)), StepRank.TRAINS, None)

    def gradient_taken(self, tape: Any, frame: FrameType | None) -> None:
        """Note that a step of a program without an optimizer ends before something is recorded anew."""
        self.data.tape_used(tape)
        line = None if frame is None else (frame.f_code, frame.f_lasti)
        if self._gradients.taken(tape, line):
            self._boundary(ASKED_AGAIN, StepRank.COMPUTES, None)

    def tape_made(self, tape: Any, frame: FrameType | None) -> None:
        """Note a tape."""
        self._records_anew()
        self._look_first(None)
        self.data.tape_made(tape, frame)

    def tape_entered(self, tape: Any) -> None:
        """Note a tape that records from now on; it may have been made long ago."""
        self._records_anew()
        self._gradients.entered(tape)

    def tape_reset(self) -> None:
        """Note a tape that records from now on."""
        self._records_anew()

    def tape_left(self, tape: Any) -> None:
        """Note a tape that does not record any more."""
        self._gradients.left(tape)

    def _records_anew(self) -> None:
        if self._gradients.began_to_record():
            self._boundary(GRADIENTS, StepRank.GRADIENT, None)

    def model_made(self, model: Any, frame: FrameType | None) -> None:
        """Note a Keras model."""
        self.data.model_made(model, frame)

    def stage_made(self, kind: str, dataset: Any, arguments: tuple[Any, ...], frame: Any) -> None:
        """Note a stage of a data set.

        Args:
            kind, dataset, arguments, frame: As the wrapper tells them.
        """
        if tf.executing_eagerly():
            self.data.stage_made(kind, dataset, arguments, frame)

    def profiler_wanted(self) -> None:
        """Give way to the program's own profile."""
        if self._starting:
            return
        if self._first is not None:
            self._first.discard()
            self._first = None
        window = self._window
        if window is not None and window.is_open:
            if window.done >= _ENOUGH:
                self._close(interrupted=True)
            else:
                window.discard()
        self._is_profiled = True

    def profiler_free(self) -> None:
        """Trace again where the program's own profile came between."""
        if not self._starting:
            self._is_put_off, self._is_profiled = self._is_put_off or self._is_profiled, False

    def failed(self, error: BaseException) -> None:
        """Note how a step failed; end the trace where it was one of those traced."""
        if self._failure is not None or self._is_done:
            return
        failure = describe_failure(error)
        if failure.exit_code is not ExitCode.STEP_OUT_OF_MEMORY:
            return
        if self._first is not None and self._first.is_open:
            self._window, self._first = self._first, None
            self._candidates.choose(self._first_key, self._first_record)
            self._stepping = self._first_record
            self._window.function = self._concrete_of(self._first_record)
        if self._window is not None and self._window.is_open:
            self._failure = failure
            self._close(interrupted=True)

    # Steps

    def _look_first(self, record: FunctionRecord | None) -> None:
        """Trace the first step too, in case that it is the one that runs out of memory."""
        if self._has_looked or self._observed is None:
            return
        self._has_looked = True
        self._first_record = record
        self._first_key = GRADIENTS if record is None else record.code
        self._first = self._opened(None, wanted=1)

    def _opened(self, function: Any, *, wanted: int, is_compiled: bool = False) -> Window:
        assert self._observed is not None
        window = Window(
            folder=self._folder,
            observed=self._observed,
            function=function,
            is_compiled=is_compiled,
            wanted=wanted,
        )
        self._starting = True
        try:
            window.open()
        finally:
            self._starting = False
        return window

    def _concrete_of(self, record: FunctionRecord | None) -> Any:
        """Return the function that was traced last, None where there is none."""
        alive = [] if record is None else record.alive()
        concrete = list_concrete_functions(alive[-1]) if alive else []
        return concrete[-1] if concrete else None

    def _boundary(
        self,
        key: Hashable,
        rank: StepRank,
        record: FunctionRecord | None,
        worker: int | None = None,
    ) -> None:
        """Count a call that may be a step: it ends one, and may begin the trace.

        Args:
            key: What tells such calls from others.
            rank: How much they are like a step.
            record: The function that was called; None where a step runs op by op.
            worker: The worker of a coordinator that made the call; None without one.
        """
        with self._turn:
            self._worker = worker
            self._count_step(key, rank, record)

    def _count_step(self, key: Hashable, rank: StepRank, record: FunctionRecord | None) -> None:
        count = self._candidates.counted(key, rank)
        if self._first is not None:
            self._first.discard()
            self._first = None
        if key == self._candidates.chosen:
            window = self._window
            if window is not None and window.is_open and not window.next_step():
                self._close()
            elif self._is_put_off and self._done is None and not self._is_done:
                self._is_put_off = False
                self._open(key, record)
            self._readings.read(count)
            if self._later is not None and self._later.is_due(count, self._readings.last_bytes):
                self._later.look(count, inspect.currentframe())
        elif self._candidates.goes_before(key):
            self._readings.read(count)
            if self._candidates.is_warm(key) and not self._is_done:
                self._open(key, record)

    def _open(self, key: Hashable, record: FunctionRecord | None) -> None:
        """Begin to trace; what was traced of something less like a step is dropped."""
        if self._window is not None:
            self._window.discard()
        self._done = self._later = None
        if self._observed is None:
            return
        self._candidates.choose(key, record, self._worker)
        self._stepping = record
        self._readings.keep_last()  # those before may be of other calls
        self._containers = count_host_containers()
        alive = [] if record is None else record.alive()
        self._window = self._opened(
            self._concrete_of(record),
            wanted=self._wanted,
            is_compiled=bool(alive) and is_jit_compiled(alive[-1]),
        )

    def _close(self, *, interrupted: bool = False) -> None:
        """End the trace, look at what is left, and keep what is known as plain data."""
        window = self._window
        assert window is not None
        window.close(interrupted=interrupted, failed=self._failure is not None)
        self._left = held_after_steps(window, self._containers, self.functions, self.data)
        self._later = LaterLook(self._candidates.steps, self._readings.last_bytes)
        partitions = [] if self._stepping is None else self._stepping.partitions
        self._done = window.captured(
            partitions,
            batch_size=self._batch_size,
            error=self._failure,
            dump=self._dump,
        )
        self._complete(self._done)
        for record in self.functions.records():
            record.partitions = []
        self._done.run = self._with_note("")
        window.write(self._done, self._target)
        if self._candidates.trains:
            self._hooks.remove()
            self._observing.close()
            self._observed = None
            self._hooks.lighten()

    def _collect(self, record: FunctionRecord) -> None:
        """Keep the graphs that the executor was built for in a function's first call."""
        with contextlib.suppress(Exception):
            metadata = context.export_run_metadata()
            context.disable_graph_collection()
            if metadata is not None:
                record.partitions = [
                    graph for one in metadata.function_graphs for graph in one.partition_graphs
                ]

    # What is left

    def _with_note(self, ended: str) -> RunFile:
        assert self._done is not None
        return replace(self._done.run, target=self._target, watch=self.note(ended))

    def note(self, ended: str) -> WatchNote:
        """Return what was seen as plain data.

        Args:
            ended: How the program ended, in words.
        """
        functions = [one for one in self.functions.records() if one.traces]
        search = HolderSearch(inspect.currentframe())
        return WatchNote(
            step=self._candidates.words,
            where=self._candidates.where,
            warmup=self._warmup,
            steps=self._candidates.most_calls,
            readings=self._readings.rows,
            held=self._left.held,
            on_host=self._left.on_host,
            held_later=() if self._later is None else self._later.held,
            later_step=0 if self._later is None else self._later.step,
            tapes=self._left.tapes,
            functions=tuple(
                one.note(search.container_of(one.alive()[0]) if len(one.alive()) > 2 else "")
                for one in functions[:_MOST_FUNCTIONS]
            ),
            constants=(*self._left.constants, *self.data.slices.values()),
            stages=tuple(self.data.stages.values()),
            models=tuple(self.data.models(search)),
            ended=ended,
        )

    def save(self, ended: str) -> None:
        """Write the note anew, with what was seen since the traced steps."""
        if self._done is None:
            write_untraced(self._folder, self.note(ended))
            return
        run = self._with_note(ended)
        temporary = self._folder / f".{RUN_FILE}"
        # The files that the note names stand in the one that was written.
        written = read_run_file(self._folder / RUN_FILE)
        temporary.write_bytes(encode_run(replace(run, graph=written.graph, xla=written.xla)))
        temporary.replace(self._folder / RUN_FILE)


def _rank(record: FunctionRecord) -> StepRank:
    return StepRank.TRAINS if record.trains else StepRank.COMPUTES


def _first_axis(args: tuple[Any, ...]) -> int | None:
    """Return the length of the first axis of the first tensor among arguments, None without one."""
    for leaf in tf.nest.flatten(args):
        if isinstance(leaf, tf.Tensor) and is_eager(leaf) and leaf.shape.rank:
            return int(leaf.shape[0])
    return None
