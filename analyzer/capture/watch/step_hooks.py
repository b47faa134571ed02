"""Wrappers that report a program's calls of TensorFlow: functions, optimizers, tapes, data sets.

Each wrapper passes its arguments, result and exceptions through unchanged.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from analyzer.capture.private_names import Function, profiler_v2
from analyzer.capture.run.instrumentation import wrap_attribute

if TYPE_CHECKING:
    from analyzer.capture.watch.watcher import Watcher


def _find_caller() -> FrameType | None:
    """Return the frame that called the wrapper that calls this.

    It is never stored in a local variable: a frame that holds itself keeps the local names of all its
    callers alive until the collector runs.
    """
    return sys._getframe(1).f_back


class Hooks:
    """The installed wrappers; they call methods of ``watcher``."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._undo: list[Callable[[], None]] = []
        self._local = threading.local()

    def install(self) -> None:
        """Install all wrappers."""
        self._install_lasting()
        self._wrap_tapes()
        self._wrap_profiler()
        for owner, name in (
            (tf.config, "list_physical_devices"),
            (tf.config.experimental, "list_physical_devices"),
            (tf.test, "is_gpu_available"),
            (tf.test, "gpu_device_name"),
        ):
            self._replace(owner, name, self._make_device_query)

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
        self._wrap_functions()
        self._wrap_optimizers()
        self._wrap_datasets()
        self._wrap_models()
        self._replace(tf.config.experimental, "reset_memory_stats", self._make_reset)

    def _make_device_query(self, old: Any) -> Any:
        def query(*args: Any, **kwargs: Any) -> Any:
            result = old(*args, **kwargs)
            is_of_cpu = "CPU" in (*args, *kwargs.values())
            self._watcher.misses_gpu |= not result and not is_of_cpu
            return result

        return query

    def _make_reset(self, old: Any) -> Any:
        def reset(device: str) -> None:
            self._watcher.note_peaks()
            old(device)

        return reset

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._undo.append(wrap_attribute(owner, name, make))

    def _is_outermost(self) -> bool:
        """Return whether this thread runs eagerly, outside any reported call."""
        return not getattr(self._local, "inside", False) and tf.executing_eagerly()

    def _wrap_functions(self) -> None:
        def make(old: Any) -> Any:
            def call(function: Any, *args: Any, **kwargs: Any) -> Any:
                if not self._is_outermost():
                    return old(function, *args, **kwargs)
                self._local.inside = True
                try:
                    return self._watcher.call_function(old, function, args, kwargs)
                finally:
                    self._local.inside = False

            return call

        self._replace(Function, "__call__", make)

    def _wrap_optimizers(self) -> None:
        def make(old: Any) -> Any:
            def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                if not self._is_outermost():
                    return old(optimizer, *args, **kwargs)
                self._local.inside = True
                try:
                    result = old(optimizer, *args, **kwargs)
                except Exception as error:
                    self._watcher.note_failure(error)
                    raise
                finally:
                    self._local.inside = False
                self._watcher.count_update(optimizer)
                return result

            return apply

        self._replace(keras.optimizers.Optimizer, "apply", make)

    def _wrap_tapes(self) -> None:
        watcher = self._watcher

        def make_before(report: Callable[[Any], None]) -> Callable[[Any], Any]:
            def make(old: Any) -> Any:
                def call(tape: Any, *args: Any) -> Any:
                    if self._is_outermost():
                        report(tape)
                    return old(tape, *args)

                return call

            return make

        def make_after(report: Callable[[Any, FrameType | None], None]) -> Callable[[Any], Any]:
            def make(old: Any) -> Any:
                def call(tape: Any, *args: Any, **kwargs: Any) -> Any:
                    result = old(tape, *args, **kwargs)
                    if self._is_outermost():
                        report(tape, _find_caller())
                    return result

                return call

            return make

        self._replace(tf.GradientTape, "__init__", make_after(watcher.note_tape))
        self._replace(tf.GradientTape, "gradient", make_after(watcher.note_gradient))
        self._replace(tf.GradientTape, "__enter__", make_before(watcher.enter_tape))
        self._replace(tf.GradientTape, "__exit__", make_before(watcher.leave_tape))
        self._replace(tf.GradientTape, "reset", make_after(watcher.reset_tape))

    def _wrap_datasets(self) -> None:
        watcher = self._watcher

        def make_method(kind: str) -> Callable[[Any], Any]:
            def make(old: Any) -> Any:
                def stage(dataset: Any, *args: Any, **kwargs: Any) -> Any:
                    result = old(dataset, *args, **kwargs)
                    arguments = (*args, *kwargs.values())
                    watcher.note_stage(kind, dataset, arguments, _find_caller())
                    return result

                return stage

            return make

        def make_source(old: Any) -> Any:
            def source(*args: Any, **kwargs: Any) -> Any:
                result = old(*args, **kwargs)
                watcher.note_stage("slices", result, (*args, *kwargs.values()), _find_caller())
                return result

            return source

        for kind in ("shuffle", "cache", "prefetch"):
            self._replace(tf.data.Dataset, kind, make_method(kind))
        for name in ("from_tensor_slices", "from_tensors"):
            self._replace(tf.data.Dataset, name, make_source)

    def _wrap_models(self) -> None:
        def make(old: Any) -> Any:
            def compile_model(model: Any, *args: Any, **kwargs: Any) -> Any:
                result = old(model, *args, **kwargs)
                self._watcher.data.add_model(model, _find_caller())
                return result

            return compile_model

        for owner in keras.Model.__mro__:
            if "compile" in vars(owner):
                self._replace(owner, "compile", make)
                return

    def _wrap_profiler(self) -> None:
        watcher = self._watcher

        def make_start(old: Any) -> Any:
            def start(*args: Any, **kwargs: Any) -> Any:
                watcher.yield_profiler()
                return old(*args, **kwargs)

            return start

        def make_stop(old: Any) -> Any:
            def stop(*args: Any, **kwargs: Any) -> Any:
                try:
                    return old(*args, **kwargs)
                finally:
                    watcher.resume_profiler()

            return stop

        # Profile and tf_keras call the second.
        for module in (tf.profiler.experimental, profiler_v2):
            self._replace(module, "start", make_start)
            self._replace(module, "stop", make_stop)
