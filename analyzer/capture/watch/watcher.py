"""The steps of a program that runs by itself: found, counted, a few traced, the rest read cheaply.

What a step is, is told from what the program does again and again: it calls a ``tf.function`` (which
is also what ``fit`` does), or applies an optimizer or takes gradients op by op. What trains goes before
what only computes. A step ends where that call returns; the next one begins there, so that the data of
a step belong to it. A program that only takes gradients may ask one tape for several: its step ends
where the next tape is made. Of what a coordinator schedules, one worker's calls are the steps.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import resource
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import tensorflow as tf
from msgspec import to_builtins

from analyzer.capture.private_names import (
    concrete_functions,
    context,
    is_eager,
    is_jit_compiled,
)
from analyzer.capture.run.instrumentation import Observations, observing_step
from analyzer.capture.run.profiled_run import Captured, step_failure
from analyzer.capture.run.tensor_addresses import address_of
from analyzer.capture.watch.data_ledger import DataLedger
from analyzer.capture.watch.function_ledger import FunctionLedger, FunctionRecord, updates_variables
from analyzer.capture.watch.holders.holder_search import HolderSearch
from analyzer.capture.watch.holders.host_containers import grown_since, host_containers
from analyzer.capture.watch.holders.live_holders import (
    bytes_of,
    held_by,
    live_tensors,
    new_since,
)
from analyzer.capture.watch.holders.user_lines import calling_line
from analyzer.capture.watch.step_hooks import Hooks
from analyzer.capture.watch.traced_window import Window
from analyzer.capture.watch.watch_files import UNTRACED_FILE
from analyzer.contract.run_note import Failure, TargetNote, encode_run, read_run_file
from analyzer.contract.watch_note import HeldTensors, LargeConstant, Reading, WatchNote
from analyzer.errors import ExitCode
from analyzer.parse.logdir import RUN_FILE

_TRAINS, _GRADIENT, _COMPUTES = 2, 1, 0
"""What may be a step, the higher the rather."""

_LATER: Final = 3
"""Steps more that are waited for where something that trains may follow."""

_ALL_READ: Final = 64
"""Steps at the beginning of which each is read."""

_READINGS: Final = 1024
"""Readings that are kept; where there are more, every second one goes."""

_SHARE: Final = 0.005
"""Share of the time that readings may take."""

_HOST_EVERY_S: Final = 0.2
"""Seconds between two looks at the resident memory, which the system takes long to tell."""

_NAMED: Final = 64
"""Tensors from before the traced steps whose holders are looked for, the largest."""

_HELD_BYTES: Final = 1 << 20
"""Tensors from this size on that live through all traced steps are noted."""


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
        self._folder, self._steps, self._warmup = folder, steps, warmup
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
        self._has_gradients = False
        self._turn = threading.RLock()  # a coordinator's workers end steps on threads of their own
        self._counts: Counter[Any] = Counter()
        self._ranks: dict[Any, int] = {}
        self._window: Window | None = None
        self._first: Window | None = None
        self._has_looked = False
        self._key: Any = None
        self._first_key: Any = None
        self._first_record: FunctionRecord | None = None
        self._done: Captured | None = None
        self._is_done = False
        self._words, self._where = "", ""
        self._readings: list[Reading] = []
        self._stride = 1
        self._next_s = self._host_s = 0.0
        self._held: tuple[HeldTensors, ...] = ()
        self._on_host: tuple[HeldTensors, ...] = ()
        self._containers: dict[int, int] = {}
        self._tapes: tuple[Any, ...] = ()
        self._constants: list[LargeConstant] = []
        self._batch_size: int | None = None
        self._failure: Failure | None = None
        self._device = ""
        self._starting = False

    # What the process does with it

    def begin(self) -> None:
        """Put the wrappers in place."""
        self._observed = self._observing.enter_context(observing_step())
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
        elif self._has_gradients:
            self._boundary("gradients", _GRADIENT, None)
        if self._first is not None:
            self._first.discard()
        if self._window is not None and self._window.is_open:
            self._failure = self._failure or (None if error is None else step_failure(error))
            self._close(interrupted=True)
        self._is_done = True
        self._hooks.remove()
        self._observing.close()
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
        self._boundary(record.code or id(function), _TRAINS if record.trains else _COMPUTES, record)
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
        for concrete in concrete_functions(function):
            self._scheduled[concrete] = record
        return result

    def scheduled_ran(self, function: Any, worker: int) -> None:
        """Count a step of the worker that made the first; those of others lie within its steps."""
        record = None if function is None else self._scheduled.get(function)
        if record is None:
            return
        if self._worker is None:
            self._worker = worker
        if worker == self._worker:
            rank = _TRAINS if record.trains else _COMPUTES
            self._boundary(record.code or id(record), rank, record)

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
            record.traced(self._counts[self._key], args, kwargs, count)
        if self._observed is not None and len(self._observed.gradients) > gradients:
            record.trains = True
        elif traces and record.calls == 1:  # it was traced before it was watched
            record.trains = updates_variables(function)
        if self._done is None:  # a number: to keep the call's tensors would be to hold them
            self._batch_size = _first_axis(args)

    def applied(self, optimizer: Any) -> None:
        """Count a step that was made op by op."""
        self._has_gradients = False
        self._boundary(("optimizer", id(optimizer)), _TRAINS, None)

    def gradient_taken(self, tape: Any) -> None:
        """Note that a step of a program without an optimizer ends before the next tape is made."""
        self.data.tape_used(tape)
        self._has_gradients = True

    def tape_made(self, tape: Any, frame: FrameType | None) -> None:
        """Note a tape; it begins a step where gradients were taken of the one before."""
        if self._has_gradients:
            self._has_gradients = False
            self._boundary("gradients", _GRADIENT, None)
        self._look_first(None)
        self.data.tape_made(tape, frame)

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
        if self._window is not None and self._window.is_open:
            self._close(interrupted=True)

    def failed(self, error: BaseException) -> None:
        """Note how a step failed; end the trace where it was one of those traced."""
        if self._failure is not None or self._is_done:
            return
        failure = step_failure(error)
        if failure.exit_code is not ExitCode.STEP_OUT_OF_MEMORY:
            return
        if self._first is not None and self._first.is_open:
            self._window, self._first = self._first, None
            self._key = self._first_key
            self._words, self._where = self._described(self._key, self._first_record)
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
        self._first_key = "gradients" if record is None else record.code
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
        concrete = concrete_functions(alive[-1]) if alive else []
        return concrete[-1] if concrete else None

    def _boundary(self, key: Any, rank: int, record: FunctionRecord | None) -> None:
        with self._turn:
            self._count_step(key, rank, record)

    def _count_step(self, key: Any, rank: int, record: FunctionRecord | None) -> None:
        count = self._counts[key] = self._counts[key] + 1
        self._ranks[key] = rank
        if self._first is not None:
            self._first.discard()
            self._first = None
        if key == self._key:
            window = self._window
            if window is not None and window.is_open and not window.next_step():
                self._close()
            self._read(count)
            return
        if self._key is not None and rank <= self._ranks[self._key]:
            return
        self._read(count)
        waiting = self._warmup + (0 if rank == _TRAINS else _LATER)
        if count >= max(waiting, 1) and not self._is_done:
            self._open(key, record)

    def _open(self, key: Any, record: FunctionRecord | None) -> None:
        """Begin to trace; what was traced of something less like a step is dropped."""
        if self._window is not None:
            self._window.discard()
        self._done = None
        if self._observed is None:
            return
        self._key = key
        self._readings = self._readings[-1:]  # those before may be of other calls
        self._words, self._where = self._described(key, record)
        self._containers = host_containers()
        alive = [] if record is None else record.alive()
        self._window = self._opened(
            self._concrete_of(record),
            wanted=self._steps,
            is_compiled=bool(alive) and is_jit_compiled(alive[-1]),
        )

    def _described(self, key: Any, record: FunctionRecord | None) -> tuple[str, str]:
        line = calling_line()
        if record is not None and record.is_keras:
            return f"a call of Keras' {record.name}", line
        if record is not None:
            on = "" if self._worker is None else f" on worker {self._worker}"
            return f"a call of {record.name}{on}", record.where
        what = "an eager update" if key != "gradients" else "an eager gradient"
        return f"{what}, op by op", line

    def _close(self, *, interrupted: bool = False) -> None:
        """End the trace, look at what is left, and keep what is known as plain data."""
        window = self._window
        assert window is not None
        window.close(interrupted=interrupted, failed=self._failure is not None)
        self._look_around(window)
        records = [one for one in self.functions.records() if one.code == self._key]
        partitions = records[0].partitions if records else []
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
        if self._ranks[self._key] == _TRAINS:
            self._hooks.remove()
            self._observing.close()
            self._observed = None
            self._hooks.lighten()

    def _look_around(self, window: Window) -> None:
        """Note what Python holds between two steps."""
        frame = sys._getframe(1)  # not this one: it would hold itself
        made = new_since(window.before)
        held = held_by(made, frame)
        self._held = tuple(held)
        made_ids = {id(one) for one in made}
        del made
        search = HolderSearch(frame)
        self._tapes = tuple(self.data.tapes(search))
        self._on_host = grown_since(self._containers, window.done, search)
        self._constants = [*self._resident(made_ids), *self.functions.constants()]

    def _resident(self, made: set[int]) -> list[LargeConstant]:
        """Return the large tensors that lived through all traced steps."""
        large = sorted(
            (tensor for tensor in live_tensors() if id(tensor) not in made),
            key=bytes_of,
            reverse=True,
        )[:_NAMED]
        dtypes = {address_of(tensor): tensor.dtype.name for tensor in large}
        rows = held_by(large, inspect.currentframe())
        names = {address: row.holder for row in rows for address in row.addresses}
        assert self._window is not None
        for key, one in self._window.resident.items():
            if one.address in names:
                self._window.resident[key] = replace(one, name=names[one.address])
        rows = _each_once([row for row in rows if row.size_bytes >= _HELD_BYTES])
        return [
            LargeConstant(
                kind="held",
                where=row.where,
                dtype=dtypes.get(row.addresses[0], "") if row.addresses else "",
                shape=row.shapes[0] if row.shapes else None,
                size_bytes=row.size_bytes,
                name=row.holder,
                copies=row.count,
            )
            for row in rows
        ]

    def _collect(self, record: FunctionRecord) -> None:
        """Keep the graphs that the executor was built for in a function's first call."""
        with contextlib.suppress(Exception):
            metadata = context.export_run_metadata()
            context.disable_graph_collection()
            if metadata is not None:
                record.partitions = [
                    graph for one in metadata.function_graphs for graph in one.partition_graphs
                ]

    # Readings

    def _read(self, step: int) -> None:
        """Read what is in use, not more often than it takes a small share of the time."""
        now_s = time.perf_counter()
        if step % self._stride or (now_s < self._next_s and step > _ALL_READ):
            return
        if not self._device:
            gpus = tf.config.list_logical_devices("GPU")
            self._device = "GPU:0" if gpus else "CPU:0"
            now_s = time.perf_counter()
        try:
            in_use_bytes = int(tf.config.experimental.get_memory_info(self._device)["current"])
        except (ValueError, tf.errors.OpError):
            in_use_bytes = 0
        self._next_s = now_s + (time.perf_counter() - now_s) / _SHARE
        host = None
        if now_s >= self._host_s:
            host = _resident_bytes()
            self._host_s = now_s + _HOST_EVERY_S
        self._readings.append(
            Reading(
                step=step,
                in_use_bytes=in_use_bytes,
                host_bytes=host,
            )
        )
        if len(self._readings) >= _READINGS:
            self._readings = self._readings[::2]
            self._stride *= 2

    # What is left

    def _with_note(self, ended: str) -> Any:
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
            step=self._words,
            where=self._where,
            warmup=self._warmup,
            steps=self._counts[self._key]
            if self._key is not None
            else max(self._counts.values(), default=0),
            readings=tuple(self._readings),
            held=self._held,
            on_host=self._on_host,
            tapes=self._tapes,
            functions=tuple(
                one.note(search.container_of(one.alive()[0]) if len(one.alive()) > 2 else "")
                for one in functions[:_MOST_FUNCTIONS]
            ),
            constants=(*self._constants, *self.data.slices.values()),
            stages=tuple(self.data.stages.values()),
            models=tuple(self.data.models(search)),
            ended=ended,
        )

    def save(self, ended: str) -> None:
        """Write the note anew, with what was seen since the traced steps."""
        if self._done is None:
            note = json.dumps(to_builtins(self.note(ended), str_keys=True))
            (self._folder / UNTRACED_FILE).write_text(note, "utf-8")
        else:
            run = self._with_note(ended)
            temporary = self._folder / f".{RUN_FILE}"
            # The files that the note names stand in the one that was written.
            written = read_run_file(self._folder / RUN_FILE)
            temporary.write_bytes(encode_run(replace(run, graph=written.graph, xla=written.xla)))
            temporary.replace(self._folder / RUN_FILE)


_MOST_FUNCTIONS: Final = 50


def _first_axis(args: tuple[Any, ...]) -> int | None:
    """Return the length of the first axis of the first tensor among arguments, None without one."""
    for leaf in tf.nest.flatten(args):
        if isinstance(leaf, tf.Tensor) and is_eager(leaf) and leaf.shape.rank:
            return int(leaf.shape[0])
    return None


def _each_once(rows: list[HeldTensors]) -> list[HeldTensors]:
    """Return the rows without those whose tensors a name, or a larger holder, holds too."""
    known: set[int] = set()
    kept = []
    for row in sorted(rows, key=lambda one: (one.grows, -one.size_bytes)):
        if not row.addresses or not known.issuperset(row.addresses):
            kept.append(row)
            known.update(row.addresses)
    return sorted(kept, key=lambda one: -one.size_bytes)


def _resident_bytes() -> int | None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None
