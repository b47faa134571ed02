"""Wrappers that report a program's calls of TensorFlow: functions, optimizers, tapes, data sets.

Each wrapper passes its arguments, result and exceptions through unchanged.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from analyzer.capture.private_names import Function, keras_trainer, profiler_v2
from analyzer.capture.run.instrumentation import wrap_attribute

if TYPE_CHECKING:
    from analyzer.capture.watch.watcher import Watcher

    Report = Callable[[Any, tuple[Any, ...], FrameType | None], None]
    """Called with the result and the arguments of a call, and the frame that called."""


class Hooks:
    """The installed wrappers; they call methods of ``watcher``."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._undo: list[Callable[[], None]] = []
        self._local = threading.local()

    def install(self) -> None:
        """Install all wrappers."""
        watcher = self._watcher
        self._install_lasting()
        self._wrap_tapes()
        for module in (
            tf.profiler.experimental,
            profiler_v2,
        ):  # Profile and tf_keras call the second
            self._before(module, "start", lambda _: watcher.yield_profiler())
            self._after(module, "stop", lambda *_: watcher.resume_profiler())
        for module, name in (
            (tf.config, "list_physical_devices"),
            (tf.config.experimental, "list_physical_devices"),
            (tf.test, "is_gpu_available"),
            (tf.test, "gpu_device_name"),
        ):
            self._after(module, name, self._note_query)

    def lighten(self, *, has_tapes: bool) -> None:
        """Keep only the wrappers that count steps, functions, models, data sets, and maybe tapes."""
        self.remove()
        self._install_lasting()
        if has_tapes:
            self._wrap_tapes()

    def remove(self) -> None:
        """Remove all wrappers."""
        while self._undo:
            self._undo.pop()()

    def _install_lasting(self) -> None:
        watcher = self._watcher
        self._around(Function, "__call__", watcher.call_function)
        self._around(keras.optimizers.Optimizer, "apply", watcher.call_optimizer)
        for kind in ("shuffle", "cache", "prefetch"):
            self._after(tf.data.Dataset, kind, functools.partial(self._note_stage, kind))
        for name in ("from_tensor_slices", "from_tensors"):
            self._after(tf.data.Dataset, name, functools.partial(self._note_stage, "slices"))
        self._after(
            keras_trainer.Trainer,
            "__init__",
            lambda _, args, frame: watcher.data.add_model(args[0], frame),
        )
        self._before(tf.config.experimental, "reset_memory_stats", lambda _: watcher.note_peaks())

    def _wrap_tapes(self) -> None:
        watcher, tape = self._watcher, tf.GradientTape
        self._before(tape, "__enter__", lambda args: watcher.enter_tape(args[0]))
        self._before(tape, "__exit__", lambda args: watcher.leave_tape(args[0]))
        self._after(tape, "reset", lambda *_: watcher.reset_tape())
        self._after(tape, "__init__", lambda _, args, frame: watcher.note_tape(args[0], frame))
        self._after(tape, "gradient", lambda _, args, frame: watcher.note_gradient(args[0], frame))

    def _note_query(self, result: Any, args: tuple[Any, ...], frame: FrameType | None) -> None:
        self._watcher.misses_gpu |= not result and "CPU" not in args

    def _note_stage(
        self, kind: str, result: Any, args: tuple[Any, ...], frame: FrameType | None
    ) -> None:
        if kind == "slices":
            self._watcher.data.add_slices(args, frame)
        else:
            self._watcher.data.add_stage(kind, args[0], args[1:], frame)

    def _is_outermost(self) -> bool:
        """Return whether this thread runs eagerly, outside any reported call."""
        return not getattr(self._local, "inside", False) and tf.executing_eagerly()

    def _around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Let ``call(old, thing, args, kwargs)`` make the outermost calls of a method."""

        def make(old: Any) -> Any:
            def wrapper(thing: Any, *args: Any, **kwargs: Any) -> Any:
                if not self._is_outermost():
                    return old(thing, *args, **kwargs)
                self._local.inside = True
                try:
                    return call(old, thing, args, kwargs)
                finally:
                    self._local.inside = False

            return wrapper

        self._undo.append(wrap_attribute(owner, name, make))

    def _before(self, owner: Any, name: str, report: Callable[[tuple[Any, ...]], None]) -> None:
        def make(old: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if self._is_outermost():
                    report(args)
                return old(*args, **kwargs)

            return wrapper

        self._undo.append(wrap_attribute(owner, name, make))

    def _after(self, owner: Any, name: str, report: Report) -> None:
        def make(old: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                result = old(*args, **kwargs)
                if self._is_outermost():
                    # No local variable holds a frame: it would keep the callers' local names alive.
                    report(result, (*args, *kwargs.values()), sys._getframe(1))
                return result

            return wrapper

        self._undo.append(wrap_attribute(owner, name, make))
