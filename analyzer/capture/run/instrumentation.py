"""Observe gradients, layer scopes and phases while the user's step is traced or run.

The graph does not say which tensors are gradients or which layer a name scope belongs to.
``GradientTape.gradient``, ``Optimizer.apply`` and Keras' name scopes do; they are wrapped during a
capture. Their results do not change.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import keras
import tensorflow as tf

from analyzer.capture.private_names import closes_scope, get_keras_name_scope, is_eager
from analyzer.capture.run.tensor_addresses import find_address
from analyzer.tracing.parse.xplane import MARKER_PREFIX

_ALIASES: Final = {
    "Identity",
    "IdentityN",
    "Reshape",
    "Squeeze",
    "ExpandDims",
    "StopGradient",
    "PreventGradient",
    "Snapshot",
    "EnsureShape",
}
"""Ops whose result shares the buffer of their input, which an earlier op made."""


@dataclass
class Observations:
    """Gradients and scopes of a step.

    Attributes:
        gradients: Graph's id and name of each symbolic gradient, and of tensors that share its buffer.
        scopes: Name scope in the graph -> (kind, path); kind is layer, optimizer, metric or loss.
        eager_gradients: Index of a marker in the trace -> addresses of the gradients at that time.
        eager: Whether the step runs eagerly under a trace, which then gets markers.
    """

    gradients: set[tuple[int, str]] = field(default_factory=set)
    scopes: dict[str, tuple[str, str]] = field(default_factory=dict)
    eager_gradients: dict[int, list[int]] = field(default_factory=dict)
    eager: bool = False
    _marks: int = 0

    def restart(self) -> None:
        """Drop the eager gradients of a discarded trace."""
        self.eager_gradients.clear()
        self._marks = 0

    def add_gradients(self, gradients: Any) -> None:
        """Record a structure of gradients, except None."""
        flat = tf.nest.flatten(gradients, expand_composites=False)
        tensors = [leaf.values if isinstance(leaf, tf.IndexedSlices) else leaf for leaf in flat]
        addresses = []
        for tensor in tensors:
            if tensor is None or not tf.is_tensor(tensor):
                continue
            if hasattr(tensor, "graph") and hasattr(tensor, "op") and not is_eager(tensor):
                self._add_symbolic(tensor)
            elif (address := find_address(tensor)) is not None:
                addresses.append(address)
        if addresses and self.eager:
            self.eager_gradients[self._marks] = addresses
            with tf.profiler.experimental.Trace(f"{MARKER_PREFIX}gradients", index=self._marks):
                pass
            self._marks += 1

    def _add_symbolic(self, tensor: Any) -> None:
        while (key := (id(tensor.graph), tensor.name)) not in self.gradients:
            self.gradients.add(key)
            if tensor.op.type not in _ALIASES:
                return
            tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]


@contextlib.contextmanager
def observe_step() -> Iterator[Observations]:
    """Observe the steps that are traced or run in the block."""
    observed = Observations()
    undo: list[Callable[[], None]] = []
    try:
        _wrap_tape(observed, undo)
        _wrap_optimizer(observed, undo)
        _wrap_name_scope(observed, undo)
        yield observed
    finally:
        for restore in reversed(undo):
            restore()


def _replace(owner: Any, name: str, new: Any, undo: list[Callable[[], None]]) -> None:
    old = getattr(owner, name)
    setattr(owner, name, functools.wraps(old)(new))
    undo.append(lambda: setattr(owner, name, old))


@contextlib.contextmanager
def _phase(observed: Observations, name: str) -> Iterator[None]:
    """Mark a phase of an eager step in the trace; a traced step has its phases in the graph."""
    if observed.eager and tf.executing_eagerly():
        with tf.profiler.experimental.Trace(f"{MARKER_PREFIX}phase", phase=name):
            yield
    else:
        yield


def _wrap_tape(observed: Observations, undo: list[Callable[[], None]]) -> None:
    old = tf.GradientTape.gradient

    def gradient(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _phase(observed, "backward"):
            result = old(self, *args, **kwargs)
        observed.add_gradients(result)
        return result

    _replace(tf.GradientTape, "gradient", gradient, undo)

    old_gradients = tf.gradients

    def gradients(*args: Any, **kwargs: Any) -> Any:
        result = old_gradients(*args, **kwargs)
        observed.add_gradients(result)
        return result

    _replace(tf, "gradients", gradients, undo)


def _wrap_optimizer(observed: Observations, undo: list[Callable[[], None]]) -> None:
    old = keras.optimizers.Optimizer.apply

    def apply(self: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        grads = list(grads)
        observed.add_gradients(grads)
        with _phase(observed, "update"):
            return old(self, grads, *args, **kwargs)

    _replace(keras.optimizers.Optimizer, "apply", apply, undo)


def _wrap_name_scope(observed: Observations, undo: list[Callable[[], None]]) -> None:
    name_scope = get_keras_name_scope()
    if name_scope is None:  # ops then belong to layers by their names only
        return
    old_enter = name_scope.__enter__
    old_exit = name_scope.__exit__

    def enter(self: Any) -> Any:
        result = old_enter(self)
        if closes_scope(self) and self.caller is not None:
            kind, path = _describe_owner(self.caller)
            if not tf.executing_eagerly():
                scope = tf.get_current_name_scope()
                if scope:
                    observed.scopes.setdefault(scope, (kind, path))
            elif observed.eager and kind == "layer":
                mark = tf.profiler.experimental.Trace(f"{MARKER_PREFIX}layer", path=path)
                mark.__enter__()
                self._analyzer_mark = mark
        return result

    def leave(self: Any, *args: Any, **kwargs: Any) -> Any:
        mark = self.__dict__.pop("_analyzer_mark", None)
        if mark is not None:
            mark.__exit__(None, None, None)
        return old_exit(self, *args, **kwargs)

    _replace(name_scope, "__enter__", enter, undo)
    _replace(name_scope, "__exit__", leave, undo)


def _describe_owner(caller: Any) -> tuple[str, str]:
    path = str(getattr(caller, "path", None) or getattr(caller, "name", "") or "")
    if isinstance(caller, keras.optimizers.Optimizer):
        return "optimizer", path
    if isinstance(caller, keras.metrics.Metric):
        return "metric", path
    if isinstance(caller, keras.losses.Loss):
        return "loss", path
    return "layer", path
