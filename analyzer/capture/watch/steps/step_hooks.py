"""What is wrapped to find a program's own steps: TensorFlow's functions, optimizers, tapes, data sets.

Each wrapper calls what it wraps with the same arguments, and returns or raises what that does. What only
the traced steps need is taken out when they are done (``lighten``).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import keras
import tensorflow as tf

from analyzer.capture.private_names import Closure, Function, get_closure_function, profiler_v2


class Listener(Protocol):
    """Who is told."""

    def function_called(
        self, call: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a ``tf.function`` from outside any other, and return what it returns.

        Args:
            call: What to call with the function and its arguments.
            function: The ``tf.function``.
            args, kwargs: The call's.
        """

    def function_scheduled(
        self, call: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Hand a ``tf.function`` to a coordinator, and return what that returns.

        Args:
            call: What to call; it takes nothing.
            function: The ``tf.function``.
            args, kwargs: What it will be called with.
        """

    def scheduled_ran(self, function: Any, worker: int) -> None:
        """Worker number ``worker`` has run a concrete function that a coordinator was handed."""

    def applied(self, optimizer: Any) -> None:
        """An optimizer was applied op by op."""

    def gradient_taken(self, tape: Any, frame: FrameType | None) -> None:
        """A tape was asked for gradients op by op."""

    def tape_made(self, tape: Any, frame: FrameType | None) -> None:
        """A tape was made."""

    def tape_entered(self, tape: Any) -> None:
        """The ``with`` of a tape has begun."""

    def tape_reset(self) -> None:
        """A tape has forgotten what it recorded."""

    def tape_left(self, tape: Any) -> None:
        """The ``with`` of a tape has ended."""

    def failed(self, error: BaseException) -> None:
        """A step failed."""

    def stage_made(self, kind: str, dataset: Any, arguments: tuple[Any, ...], frame: Any) -> None:
        """A stage of a data set was made.

        Args:
            kind: ``shuffle``, ``cache``, ``prefetch``, or ``slices`` for a source.
            dataset: The data set that the stage is put on; of a source, the source.
            arguments: The call's.
            frame: Who called.
        """

    def model_made(self, model: Any, frame: FrameType | None) -> None:
        """A Keras model was made."""

    def profiler_wanted(self) -> None:
        """The program starts the profiler itself: only one can run."""

    def profiler_free(self) -> None:
        """The profiler has stopped."""


def _caller() -> FrameType | None:
    """Return the frame that called the wrapper that calls this.

    No frame may hold itself: it would keep the names of all its callers until the collector runs.
    """
    return sys._getframe(1).f_back


class Hooks:
    """The wrappers that are in place.

    Args:
        listener: Who is told.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._undo: list[Callable[[], None]] = []
        self._local = threading.local()

    def install(self) -> None:
        """Put all wrappers in place."""
        self._wrap_functions()
        self._wrap_coordinators()
        self._wrap_optimizers()
        self._wrap_tapes()
        self._wrap_datasets()
        self._wrap_models()
        self._wrap_profiler()

    def lighten(self) -> None:
        """Take out all that is not needed to count steps, functions, models and data sets."""
        self.remove()
        self._wrap_functions()
        self._wrap_coordinators()
        self._wrap_optimizers()
        self._wrap_models()
        self._wrap_datasets()

    def remove(self) -> None:
        """Take all wrappers out."""
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put what ``make`` returns in the place of an attribute of a class or module."""
        kept = vars(owner).get(name) if isinstance(owner, type) else getattr(owner, name, None)
        if kept is None:
            return
        plain = kept.__func__ if isinstance(kept, staticmethod) else kept
        new = functools.wraps(plain)(make(plain))
        setattr(owner, name, staticmethod(new) if isinstance(kept, staticmethod) else new)
        self._undo.append(lambda: setattr(owner, name, kept))

    def _wrap_functions(self) -> None:
        local, told = self._local, self._listener.function_called
        eagerly = tf.executing_eagerly

        def make(old: Any) -> Any:
            def call(function: Any, *args: Any, **kwargs: Any) -> Any:
                if getattr(local, "inside", False) or not eagerly():
                    return old(function, *args, **kwargs)
                local.inside = True
                try:
                    return told(old, function, args, kwargs)
                finally:
                    local.inside = False

            return call

        self._replace(Function, "__call__", make)

    def _wrap_coordinators(self) -> None:
        listener = self._listener

        def make_schedule(old: Any) -> Any:
            def schedule(coordinator: Any, fn: Any, args: Any = None, kwargs: Any = None) -> Any:
                def call() -> Any:
                    return old(coordinator, fn, args=args, kwargs=kwargs)

                if not isinstance(fn, Function):
                    return call()
                return listener.function_scheduled(call, fn, tuple(args or ()), dict(kwargs or {}))

            return schedule

        def make_execute(old: Any) -> Any:
            def execute_on(closure: Any, worker: Any) -> Any:
                try:
                    result = old(closure, worker)
                except Exception as error:
                    listener.failed(error)
                    raise
                listener.scheduled_ran(get_closure_function(closure), worker.worker_index)
                return result

            return execute_on

        self._replace(tf.distribute.coordinator.ClusterCoordinator, "schedule", make_schedule)
        self._replace(Closure, "execute_on", make_execute)

    def _wrap_optimizers(self) -> None:
        local, told = self._local, self._listener.applied
        eagerly = tf.executing_eagerly

        def make(old: Any) -> Any:
            def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                if getattr(local, "inside", False) or not eagerly():
                    return old(optimizer, *args, **kwargs)
                local.inside = True
                try:
                    result = old(optimizer, *args, **kwargs)
                except Exception as error:
                    self._listener.failed(error)
                    raise
                finally:
                    local.inside = False
                told(optimizer)
                return result

            return apply

        self._replace(keras.optimizers.Optimizer, "apply", make)

    def _wrap_tapes(self) -> None:
        local, listener = self._local, self._listener
        eagerly = tf.executing_eagerly

        def make_init(old: Any) -> Any:
            def init(tape: Any, *args: Any, **kwargs: Any) -> None:
                old(tape, *args, **kwargs)
                if not getattr(local, "inside", False) and eagerly():
                    listener.tape_made(tape, _caller())

            return init

        def make_gradient(old: Any) -> Any:
            def gradient(tape: Any, *args: Any, **kwargs: Any) -> Any:
                result = old(tape, *args, **kwargs)
                if not getattr(local, "inside", False) and eagerly():
                    listener.gradient_taken(tape, _caller())
                return result

            return gradient

        def make_enter(old: Any) -> Any:
            def enter(tape: Any) -> Any:
                if not getattr(local, "inside", False) and eagerly():
                    listener.tape_entered(tape)
                return old(tape)

            return enter

        def make_exit(old: Any) -> Any:
            def leave(tape: Any, *args: Any) -> Any:
                listener.tape_left(tape)
                return old(tape, *args)

            return leave

        def make_reset(old: Any) -> Any:
            def reset(tape: Any) -> None:
                old(tape)
                if not getattr(local, "inside", False) and eagerly():
                    listener.tape_reset()

            return reset

        self._replace(tf.GradientTape, "__init__", make_init)
        self._replace(tf.GradientTape, "gradient", make_gradient)
        self._replace(tf.GradientTape, "__enter__", make_enter)
        self._replace(tf.GradientTape, "__exit__", make_exit)
        self._replace(tf.GradientTape, "reset", make_reset)

    def _wrap_datasets(self) -> None:
        listener = self._listener

        def make_method(kind: str) -> Callable[[Any], Any]:
            def make(old: Any) -> Any:
                def stage(dataset: Any, *args: Any, **kwargs: Any) -> Any:
                    result = old(dataset, *args, **kwargs)
                    given = (*args, *kwargs.values())
                    listener.stage_made(kind, dataset, given, _caller())
                    return result

                return stage

            return make

        def make_source(old: Any) -> Any:
            def source(*args: Any, **kwargs: Any) -> Any:
                result = old(*args, **kwargs)
                listener.stage_made("slices", result, (*args, *kwargs.values()), _caller())
                return result

            return source

        for kind in ("shuffle", "cache", "prefetch"):
            self._replace(tf.data.Dataset, kind, make_method(kind))
        for name in ("from_tensor_slices", "from_tensors"):
            self._replace(tf.data.Dataset, name, make_source)

    def _wrap_models(self) -> None:
        listener = self._listener

        def make(old: Any) -> Any:
            def compiled(model: Any, *args: Any, **kwargs: Any) -> Any:
                result = old(model, *args, **kwargs)
                listener.model_made(model, _caller())
                return result

            return compiled

        for owner in keras.Model.__mro__:
            if "compile" in vars(owner):
                self._replace(owner, "compile", make)
                return

    def _wrap_profiler(self) -> None:
        listener = self._listener

        def make_start(old: Any) -> Any:
            def start(*args: Any, **kwargs: Any) -> Any:
                listener.profiler_wanted()
                return old(*args, **kwargs)

            return start

        def make_stop(old: Any) -> Any:
            def stop(*args: Any, **kwargs: Any) -> Any:
                try:
                    return old(*args, **kwargs)
                finally:
                    listener.profiler_free()

            return stop

        for place in (
            tf.profiler.experimental,
            profiler_v2,
        ):  # Profile and tf_keras call the second
            self._replace(place, "start", make_start)
            self._replace(place, "stop", make_stop)
