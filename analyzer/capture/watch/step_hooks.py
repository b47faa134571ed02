"""Wrappers that report a program's calls of TensorFlow: functions, optimizers, tapes, data sets.

Each wrapper passes its arguments, result and exceptions through unchanged.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from analyzer.capture.private_names import (
    Function,
    framework_ops,
    keras_trainer,
    profiler_v2,
)
from analyzer.capture.run.wrapped_calls import Arguments, wrap_calls

if TYPE_CHECKING:
    from analyzer.capture.watch.watcher import Watcher

    # Called with the result and the arguments of a call, and the frame that called.
    Report = Callable[[Any, Arguments, FrameType | None], object]


class Hooks:
    """The installed wrappers; they call methods of ``watcher``."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._wrappers = ExitStack()
        self._local = threading.local()

    def install(self) -> None:
        """Install all wrappers."""
        self.install_lasting(has_tapes=True)

        # tf_keras calls the second
        for module in (
            tf.profiler.experimental,
            profiler_v2,
        ):
            self._report(module, "start", self._release_profiler, first=True)

    def remove(self) -> None:
        """Remove all wrappers."""
        self._wrappers.close()

    def install_lasting(self, *, has_tapes: bool) -> None:
        """Install the wrappers that count steps, functions, models, data sets, and maybe tapes."""
        watcher = self._watcher
        data = self._watcher.objects

        dataset = tf.data.Dataset
        self._around(Function, "__call__", watcher.call_function)
        self._around(keras.optimizers.Optimizer, "apply", watcher.call_optimizer)
        self._around(keras.Model, "__call__", watcher.call_model)

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

    def _release_profiler(self, *_: Any) -> None:
        """Release the profiler, because the program starts its own profile and only one can run."""
        if self._watcher.trace.suspend():
            self._watcher.interrupt_trace()

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

    def _is_outermost(self) -> bool:
        """Return whether this thread runs eagerly, outside any reported call."""
        return not getattr(self._local, "inside", False) and tf.executing_eagerly()

    def _around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Let ``call(old, thing, args, kwargs)`` make the outermost calls of a method."""
        is_outermost = self._is_outermost
        local = self._local
        watcher = self._watcher

        def wrapper(old: Any, thing: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_outermost():
                return old(thing, *args, **kwargs)

            local.inside = True

            try:
                return call(old, thing, args, kwargs)
            except Exception as error:
                watcher.note_failure(error)
                raise
            finally:
                local.inside = False

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
            if not first and self._is_outermost():
                report(result, (*args, *kwargs.values()), sys._getframe(2))

            return result

        self._wrappers.enter_context(wrap_calls(owner, name, wrapper))
