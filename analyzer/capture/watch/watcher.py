"""Find the steps of a program that runs by itself, trace a few, and read memory after the others.

A step is a call that the program repeats: of a ``tf.function`` (also inside ``fit``), an eager update
of an optimizer, or eager gradients. Calls that train take precedence over calls that only compute. A
step ends when its call returns, and the next one begins there, so it includes loading its data. A
program that takes gradients without an optimizer may take several from one tape; its step ends where
the next tape is made. If several such steps precede each update, they are micro-batches. A program
without a repeated call counts as one step.
"""

import inspect
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import ExitStack, suppress
from dataclasses import replace
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from analyzer.capture.private_names import (
    Function,
    collect_executed_graphs,
    framework_ops,
    keras_trainer,
    profiler_v2,
)
from analyzer.capture.run.program_values import ProgramValues
from analyzer.capture.run.step_capture import describe_failure
from analyzer.capture.run.wrapped_calls import Arguments, Call, Keywords, wrap_calls
from analyzer.capture.targets.step_program import find_batch_size
from analyzer.capture.watch.held_tensors import GrowthCheck, find_held_objects
from analyzer.capture.watch.holder_search import HolderSearch
from analyzer.capture.watch.program_objects import ProgramObjects
from analyzer.capture.watch.script_launch import LIVE_FILE, write_fault, write_untraced
from analyzer.capture.watch.step_readings import (
    FailureRecord,
    StepReadings,
    has_new_record,
)
from analyzer.capture.watch.step_trace import StepTrace
from analyzer.capture.watch.traced_functions import (
    FunctionLedger,
    FunctionRecord,
    takes_gradients,
)
from analyzer.capture.watch.user_lines import find_calling_line
from analyzer.model.contract.run_note import (
    FailedStep,
    SimulatedCardNote,
    TargetNote,
    WatchNote,
)
from analyzer.model.errors import FailureKind
from analyzer.model.interrupts import delay_signals
from analyzer.simulated_card.core_calls import describe_refusals

Report = Callable[[Any, Arguments, FrameType | None], object]

# additional calls to wait for, in case a call that trains follows
_EXTRA_CALLS = 3

_SESSION = tf.compat.v1.Session.__base__  # also of interactive sessions

# Key of the steps of a program that takes gradients eagerly and has no optimizer.
GRADIENTS = "gradients"


class StepRank(IntEnum):
    """Kind of a call; a higher rank is more like a step."""

    COMPUTES = 0
    GRADIENT = 1
    TRAINS = 2


class StepCandidates:
    """The calls that may be steps, counted by key, and the chosen key (None before the choice)."""

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._counts: Counter[Hashable] = Counter()
        self._ranks: dict[Hashable, StepRank] = {}
        self.chosen: Hashable | None = None
        self.words = self.where = ""  # the step in words, and its line

    def count(self, key: Hashable, rank: StepRank) -> int:
        """Count a call, and return the number of calls with its key."""
        self._counts[key] += 1
        self._ranks[key] = rank

        return self._counts[key]

    def outranks_chosen(self, key: Hashable) -> bool:
        """Return whether a counted key is more like a step than the chosen one."""
        return self.chosen is None or self._ranks[key] > self._ranks[self.chosen]

    def is_warm(self, key: Hashable) -> bool:
        """Return whether the warm-up of a key is over."""
        extra = 0 if self._ranks[key] is StepRank.TRAINS else _EXTRA_CALLS
        return self._counts[key] >= max(self._warmup + extra, 1)

    def choose(self, key: Hashable, record: FunctionRecord | None) -> None:
        """Choose the key of the steps, calls of the function of ``record`` if there is one."""
        self.chosen = key
        is_run = isinstance(key, tuple) and key[0] is _SESSION
        self.words = "a call of Session.run" if is_run else "eager code"
        self.where = find_calling_line()

        if record is not None:
            owner = "Keras' " if record.is_keras else ""
            self.words = f"a call of {owner}{record.name}"
            self.where = self.where if record.is_keras else record.where

    @property
    def trains(self) -> bool:
        """Whether the chosen calls train."""
        return self._ranks.get(self.chosen) is StepRank.TRAINS

    @property
    def steps(self) -> int:
        """Number of steps so far; 0 before the choice."""
        return self._counts[self.chosen]

    @property
    def most_calls(self) -> int:
        """Number of steps so far; before the choice, calls of the most frequent key."""
        if self.chosen is None:
            return max(self._counts.values(), default=0)

        return self.steps


class GradientSteps:
    """Finds the ends of steps in a program that takes gradients eagerly.

    A step ends when recording starts again after gradients were taken: a tape is made, entered or reset.
    An update of an optimizer also ends a step; several steps for each update are micro-batches whose
    gradients accumulate.
    """

    def __init__(self) -> None:
        self.pending = False  # whether gradients were taken since the last recording
        self._ended = 0
        self._updates = 0

    def start_recording(self) -> bool:
        """Note a tape that was made, entered or reset; return whether a step ends before it."""
        ends = self.pending
        self.pending = False
        self._ended += ends

        return ends

    def update(self) -> bool:
        """Note an update of an optimizer; return whether it ends a micro-batch."""
        ends = self.start_recording()
        self._updates += 1

        return ends and self.micro_batches > 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches for each update; 1 if gradients do not accumulate."""
        if self._updates:
            return max(self._ended // self._updates, 1)

        return 1


# Modules with the functions that start and stop a profile; tf_keras uses the second.
_PROFILERS = (tf.profiler.experimental, profiler_v2)

_MAX_FUNCTIONS = 50  # functions in the note, those traced most often

# time between two checks of the length of the trace before the first step
_CHECK_S = 0.5


class Watcher:
    """A watched program; its hooks call the methods below.

    Args:
        dump: Folder of XLA's compiled modules; None if XLA writes none.
        simulated_card: The simulated cards; None for real devices.
        on_failure: Called when a step has run out of memory and the run folder is written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        warmup: int,
        target: TargetNote,
        dump: Path | None = None,
        simulated_card: SimulatedCardNote | None = None,
        on_failure: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._folder = folder
        self._warmup = warmup
        self._values = ProgramValues() if simulated_card is not None else None
        self._owner = os.getpid()
        self.readings = StepReadings()
        self.trace = StepTrace(
            folder,
            steps=steps,
            target=target,
            dump=dump,
            simulated_card=simulated_card,
            process_peak=self.readings.process_peak,
            values=self._values,
        )

        self.functions = FunctionLedger()
        self.objects = ProgramObjects()
        self.gradients = GradientSteps()

        if (live_file := folder / LIVE_FILE).exists():
            self.readings.live_file = live_file

        self._hooks = Hooks(self)
        self._giving = ExitStack()  # values of a simulated card
        self._candidates = StepCandidates(warmup)

        # fields of objects that are held after the traced steps
        self._held = WatchNote()
        self._failure_record = FailureRecord(folder)
        self._on_failure = on_failure
        self._failed: FailedStep | None = None
        self._growth: GrowthCheck | None = None
        self._record: FunctionRecord | None = None
        self._chosen: FunctionRecord | None = None
        self._first_call_bytes = 0  # own peak after the latest function's first call
        self._top: tuple[FunctionRecord | None, str] = None, ""  # the call of the peak
        self._turn = threading.RLock()  # of the program's threads, and of our own
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Install the hooks, and trace the run."""
        self.trace.observe()
        if self._values is not None:
            self._giving.enter_context(self._values.give())

        self._hooks.install()
        self._failure_record.begin()
        threading.Thread(target=self._limit_run, daemon=True).start()

    def _limit_run(self) -> None:
        while not self._is_over.wait(_CHECK_S) and self.trace.captured is None:
            with self._turn:
                self.trace.limit_run()

    def finish(self, ended: str = "", error: BaseException | None = None) -> None:
        """End the trace, write the note, and remove the hooks."""
        if os.getpid() != self._owner or self._is_over.is_set():
            return

        try:
            tf.config.list_logical_devices()
        except ValueError:  # contradictory settings: TensorFlow allocated nothing
            self.forget()
            write_untraced(self._folder, self._make_note(ended))

            return

        if error is not None:
            self.note_failure(error)
            line = "" if self._values is None else self._values.last_read
            # a missing package has no value for a reason
            is_from_value = isinstance(error, Exception)
            is_from_value &= not isinstance(error, ImportError)
            if line and is_from_value and not self.has_failed:
                ended += f" after it read a value that a simulated card lacks ({line})"
        elif self.gradients.pending:
            self._count_gradients()

        with self._turn:
            if self.trace.is_open and error is not None and self.trace.failure is None:
                self.trace.failure = describe_failure(error)

            self.interrupt_trace()
            self.forget()

        self._check_growth(is_last=True)
        self.readings.read_peaks()
        note = self._make_note(ended)

        if self.trace.captured is None:
            write_untraced(self._folder, note)
        else:
            self.trace.rewrite(note)

    def forget(self) -> None:
        """Remove the hooks without a result, as in a fork of the program."""
        self._is_over.set()
        self._failure_record.end()

        self._hooks.remove()
        self._giving.close()
        self.trace.stop_observing()

    # Calls that may be steps

    def call_function(
        self,
        call: Call,
        function: Any,
        args: Arguments,
        kwargs: Keywords,
    ) -> Any:
        """Call a ``tf.function`` as ``call(function, *args, **kwargs)``, and count it as a step."""
        observed = self.trace.observed
        traces = function.experimental_get_tracing_count()
        gradients = len(observed.gradients)

        partitions = None

        if not (traces or self.trace.captured or self._is_over.is_set()):
            partitions = self.functions.get_record(function).partitions

        self._note_top(None)
        with collect_executed_graphs(partitions):
            result = call(function, *args, **kwargs)

        self._note_call(function, args, kwargs, traces, gradients)
        record = self.functions.get_record(function)
        self._note_top(record, find_calling_line)

        if record.calls == 1:
            self._first_call_bytes = self.readings.top_bytes

        return result

    def call_model(
        self,
        call: Call,
        model: Any,
        args: Arguments,
        kwargs: Keywords,
    ) -> Any:
        """Call a model eagerly, and note whether it needs the most memory so far."""
        self._note_top(None)
        result = call(model, *args, **kwargs)
        self._note_top(None, find_calling_line)

        return result

    def _note_top(
        self, record: FunctionRecord | None, find_line: Callable[[], str] = str
    ) -> None:
        if self.readings.has_new_peak():
            self._top = record, find_line()

    def _note_call(
        self,
        function: Any,
        args: Arguments,
        kwargs: Keywords,
        traces: int,
        gradients: int,
    ) -> None:
        """Count a call; before it there were ``traces`` of the function and ``gradients``."""
        record = self.functions.get_record(function)
        record.calls += 1
        added = function.experimental_get_tracing_count() - traces

        if added > 0:
            record.add_traces(self._candidates.steps, args, kwargs, added)
            record.trains |= len(self.trace.observed.gradients) > gradients
        elif record.calls == 1:  # it was traced before it was watched
            record.trains = takes_gradients(function)

        if self.trace.captured is None:
            self.trace.batch_size = find_batch_size(args)

        rank = StepRank.TRAINS if record.trains else StepRank.COMPUTES
        self._count(id(record), rank, record)

    def call_optimizer(
        self,
        call: Call,
        owner: Any,
        args: Arguments,
        kwargs: Keywords,
    ) -> Any:
        """Call an optimizer eagerly, and count it as a step or as the end of a micro-batch."""
        result = call(owner, *args, **kwargs)
        key = GRADIENTS if self.gradients.update() else ("optimizer", id(owner))
        self._count(key, StepRank.TRAINS)

        return result

    def note_run(self, _: Any, args: Arguments, __: Any) -> None:
        """Count a run of a session of TensorFlow 1; one that fetches an op trains."""
        fetched = []
        with suppress(TypeError):  # the feeds come first, whose keys are tensors
            fetched = tf.nest.flatten(args[1])

        trains = any(isinstance(one, tf.Operation) for one in fetched)
        rank = StepRank.TRAINS if trains else StepRank.COMPUTES
        names = [getattr(one, "name", "") for one in fetched]
        self._count((_SESSION, *names), rank)

    def note_gradient(self, _: Any, args: Arguments, __: Any) -> None:
        """Note eager gradients, which end a step of a program without an optimizer."""
        self.objects.note_gradient(args[0])
        self.gradients.pending = True

    def reset_tape(self, *_: Any) -> None:
        """Note that recording starts again, which ends a step if gradients were taken."""
        if self.gradients.start_recording():
            self._count_gradients()

    def _count_gradients(self) -> None:
        trains = self.gradients.micro_batches > 1
        self._count(GRADIENTS, StepRank.TRAINS if trains else StepRank.GRADIENT)

    @property
    def has_failed(self) -> bool:
        """Whether a step ran out of memory."""
        return self.trace.failure is not None or self._failed is not None

    def note_failure(self, error: BaseException) -> None:
        """Note the first call that ran out of memory; end the trace if it has it."""
        if self.has_failed or self._is_over.is_set():
            return

        if isinstance(error, tf.errors.OpError) and has_new_record():
            # TensorFlow has other errors if a constant, a copy or a trial finds no memory.
            refused = ""
            if self._values is not None:
                refused = describe_refusals()

            error = tf.errors.ResourceExhaustedError(None, None, f"{error}{refused}")

        failure = describe_failure(error)
        if failure.kind is not FailureKind.OUT_OF_MEMORY:
            return

        with self._turn:
            if self.trace.captured is None:
                self.trace.failure = failure
                self.interrupt_trace()
            else:
                step = self._candidates.steps + 1
                self._failed = self._failure_record.read(
                    failure,
                    step,
                    self.trace.variables,
                    inspect.currentframe(),
                )

                self.trace.rewrite(self._make_note(""))

        self._on_failure(error)

    # Steps

    def _count(
        self,
        key: Hashable,
        rank: StepRank,
        record: FunctionRecord | None = None,
    ) -> None:
        """Count a call that may be a step; an error of ours ends the watching, not the program."""
        try:
            with self._turn:
                self._count_step(key, rank, record)
        except Exception:
            self.forget()
            write_fault(self._folder)

    def _count_step(
        self,
        key: Hashable,
        rank: StepRank,
        record: FunctionRecord | None,
    ) -> None:
        """Count a call; it may end a step, or start the trace."""
        count = self._candidates.count(key, rank)
        if key == self._candidates.chosen:
            if self.trace.is_open:
                if not self.trace.next_step():
                    self._close_trace()
            elif self.trace.captured is None and not self._is_over.is_set():
                self._open_trace(key, record)

            if self.readings.read(count):
                self._check_growth()
        elif self._candidates.outranks_chosen(key):
            self._record = self._record if record is None else record
            self.readings.read(count)

            if self._candidates.is_warm(key) and not self._is_over.is_set():
                self._open_trace(key, record)

    def _check_growth(self, *, is_last: bool = False) -> None:
        if self._growth is not None:
            self._growth.look(
                self._candidates.steps,
                self.readings.last_bytes,
                inspect.currentframe(),
                is_last=is_last,
            )

    def _open_trace(self, key: Hashable, record: FunctionRecord | None) -> None:
        """Trace a key's calls as steps, and discard a trace of calls less like a step."""
        self.trace.discard()
        self._growth = None

        if not self.trace.is_observing:
            return

        every = 1
        if key == GRADIENTS:
            every = self.gradients.micro_batches

        self._candidates.choose(key, record)
        self._chosen = record
        del self.readings.rows[:-1]  # other calls are the steps from now on
        self.trace.open(record, least=every)

    def interrupt_trace(self) -> None:
        """End the trace early; without a whole or failed step, the run counts as one step."""
        if self.trace.is_open and (self.trace.done or self.trace.failure is not None):
            self._close_trace(interrupted=True)
        elif self.trace.captured is None and self.trace.close_run(self._record):
            self._write()

    def _close_trace(self, *, interrupted: bool = False) -> None:
        """End the trace of the steps, look for held objects, and write the run folder."""
        self.trace.close(interrupted=interrupted)
        self._write()

        if self._candidates.trains:  # no call outranks it: nothing else will be traced
            self._hooks.remove()  # before the wrappers below them
            self.trace.stop_observing()
            self._hooks.install_lasting(has_tapes=self._candidates.chosen == GRADIENTS)

    def _write(self) -> None:
        with delay_signals():
            self._held = find_held_objects(self.trace, self.functions, self.objects)
            self.objects.add_queues()
            self.trace.describe(self.functions.list_records())

            if not self.trace.is_whole:
                self._growth = GrowthCheck(
                    self._candidates.steps, self.readings.last_bytes
                )
                for one in self.functions.list_records():
                    one.partitions.clear()

            self.trace.write(self._make_note(""))
            self.readings.process_peak.resume()

    def _make_note(self, ended: str) -> WatchNote:
        functions = [one for one in self.functions.list_records() if one.traces]
        search = HolderSearch(inspect.currentframe())
        growth = self._growth

        record, line = self._top
        is_step = False

        # Another phase of training, such as a second ``fit``, is not the traced one.
        if record is not None and record is self._chosen:
            is_step = line in (self._candidates.where, "") or line != record.called_at

        return replace(
            self._held,
            step=self._candidates.words,
            where=self._candidates.where,
            warmup=self._warmup,
            steps=self._candidates.most_calls,
            step_objects=1 if self._chosen is None else self._chosen.made,
            micro_batches=self.gradients.micro_batches,
            own_peaks=self.readings.peaks,
            first_call_bytes=self._first_call_bytes,
            peak_call="" if is_step else line,
            process_peak_bytes=self.readings.process_peak.read(),
            whole_run=self.trace.is_whole,
            is_cut=self.trace.is_cut,
            failed=self._failed,
            readings=tuple(self.readings.rows),
            held_later=() if growth is None else growth.held,
            later_step=0 if growth is None else growth.step,
            functions=tuple(one.describe(search) for one in functions[:_MAX_FUNCTIONS]),
            stages=tuple(self.objects.stages.values()),
            models=tuple(self.objects.list_models(search)),
            ended=ended,
        )


class Hooks:
    """Wrappers that report a program's calls of TensorFlow to methods of ``watcher``.

    Each passes its arguments, result and exceptions through unchanged.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._wrappers = ExitStack()
        self._local = threading.local()
        self._skips = False  # whether a profile of the program is left out

    def install(self) -> None:
        """Install all wrappers."""
        self.install_lasting(has_tapes=True)

        for module in _PROFILERS:
            wrapper = wrap_calls(module, "start", self._skip_profile)
            self._wrappers.enter_context(wrapper)

    def remove(self) -> None:
        """Remove all wrappers."""
        self._wrappers.close()

    def install_lasting(self, *, has_tapes: bool) -> None:
        """Install the wrappers that count steps, functions, models, data sets, and maybe tapes."""
        watcher = self._watcher
        data = self._watcher.objects

        for module in _PROFILERS:
            self._wrappers.enter_context(wrap_calls(module, "stop", self._end_profile))

        dataset = tf.data.Dataset
        self._around(Function, "__call__", watcher.call_function)
        self._around(keras.optimizers.Optimizer, "apply", watcher.call_optimizer)
        self._around(keras.Model, "__call__", watcher.call_model)
        self._report(_SESSION, "run", watcher.note_run)

        for kind in ("shuffle", "cache", "prefetch"):
            self._report(dataset, kind, partial(data.add_stage, kind))

        self._report(keras_trainer.Trainer, "__init__", data.add_model)
        self._report(
            tf.config.experimental,
            "reset_memory_stats",
            lambda *_: watcher.readings.read_peaks(),
            first=True,
        )

        self._report(
            framework_ops, "raise_from_not_ok_status", self._note_op, first=True
        )

        if has_tapes:
            tape = tf.GradientTape
            self._report(tape, "__init__", self._note_tape)
            self._report(tape, "__enter__", watcher.reset_tape, first=True)
            self._report(tape, "reset", watcher.reset_tape)
            self._report(tape, "gradient", watcher.note_gradient)

    def _skip_profile(self, *_: Any, **__: Any) -> None:
        """Leave out the program's own profile, because only one can run."""
        self._skips = True
        warnings.warn(
            "This profile is left out: the program is traced, and only one trace can run.",
            stacklevel=3,
        )

    def _end_profile(
        self, old: Callable[..., None], *args: Any, **options: Any
    ) -> None:
        """End the program's own profile, unless it was left out."""
        if not self._skips:
            old(*args, **options)

        self._skips = False

    def _note_op(self, _: Any, args: Arguments, __: FrameType | None) -> None:
        """Note an eager op that finds no memory, as Keras reports no errors to callbacks."""
        status = args[0]
        if status.code == tf.errors.RESOURCE_EXHAUSTED:
            error = tf.errors.ResourceExhaustedError(None, None, status.message)
            self._watcher.note_failure(error)

    def _note_tape(
        self,
        _: Any,
        args: Arguments,
        frame: FrameType | None,
    ) -> None:
        self._watcher.reset_tape(None, args, frame)
        self._watcher.objects.add_tape(args[0], frame)

    def _is_outermost(self, owner: Any = None) -> bool:
        """Return whether this thread runs eagerly or a session, outside any reported call."""
        runs = owner is _SESSION or tf.executing_eagerly()
        return runs and not getattr(self._local, "inside", False)

    def _around(self, owner: Any, name: str, call: Call) -> None:
        """Let ``call(old, thing, args, kwargs)`` make the outermost calls of a method."""

        def wrapper(old: Any, thing: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_outermost():
                return old(thing, *args, **kwargs)

            self._local.inside = True

            try:
                return call(old, thing, args, kwargs)
            except Exception as error:
                self._watcher.note_failure(error)
                raise
            finally:
                self._local.inside = False

        self._wrappers.enter_context(wrap_calls(owner, name, wrapper))

    def _report(
        self,
        owner: Any,
        name: str,
        report: Report,
        *,
        first: bool = False,
    ) -> None:
        """Report the calls of a function; ``first``: before the call, with None as its result."""

        def wrapper(old: Any, *args: Any, **kwargs: Any) -> Any:
            # No local variable holds a frame: it would keep the callers' local names alive.
            if first and self._is_outermost():
                report(None, args, sys._getframe(2))

            result = old(*args, **kwargs)
            if not first and self._is_outermost(owner):
                report(result, (*args, *kwargs.values()), sys._getframe(2))

            return result

        self._wrappers.enter_context(wrap_calls(owner, name, wrapper))
