"""Find which buffers an initializer allocates and frees, without running it in full.

The names in an initializer's Python code decide when its buffers are freed, and its graph does not show
them. So an initializer of Keras runs on a small shape of the same form, and its tensors are watched; a
graph traced for the full shape gives their bytes. Of other initializers, only the value is known.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from analyzer.capture.graph.plain_graphs import get_spec
from analyzer.capture.private_names import op_callbacks

Events: TypeAlias = list[tuple[int, int]]
"""(number of a buffer, its bytes) for an allocation, (number, 0) for a free; the value is not freed."""
Number: TypeAlias = tuple[float, str]
"""A Python number that an op receives, and the element type that it becomes."""
_VIEWS: Final = frozenset({"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient"})
"""Ops whose output shares the buffer of their input."""
_ON_CARD: Final = frozenset({"Cast"})
"""Ops with all types in the card's memory; other kernels keep int32 in host memory (``cast_op.cc``
registers no ``HostMemory``). An input from the host is copied, and the copy lives as long as the tensor
(``TensorHandle::AddLocalMirror``)."""
_CONST: Final = "Const"


class Requests(NamedTuple):
    """The allocations of a call of an initializer, and the scalars that its ops receive from Python."""

    events: Events
    numbers: Sequence[Number] = ()


def find_requests(
    initializer: Any, shape: Any, dtype: Any, size_bytes: int, host_dtypes: frozenset[str]
) -> Requests:
    """Return the allocations of an initializer, without ``host_dtypes``; if unknown, the value only."""
    requests = None
    with contextlib.suppress(Exception):  # the user's code
        requests = _watch_call(initializer, shape, dtype, host_dtypes)
    return requests if requests is not None and requests.events else Requests([(0, size_bytes)])


def _watch_call(
    initializer: Any, shape: Any, dtype: Any, host_dtypes: frozenset[str]
) -> Requests | None:
    """Run an initializer of Keras on a small shape; None if that does not reflect the full shape.

    Initializers of other packages may have side effects; one with a ``SeedGenerator`` would advance the
    model's generator.
    """
    is_keras = str(getattr(initializer, "__module__", "")).split(".")[0] == "keras"
    has_state = isinstance(getattr(initializer, "seed", None), keras.random.SeedGenerator)
    if not is_keras or has_state or not tf.executing_eagerly():
        return None
    with tf.Graph().as_default() as graph:
        initializer(shape, dtype=dtype)
    watch = _Watch([op for op in graph.get_operations() if _runs_eagerly(op)], host_dtypes)
    op_callbacks.add_op_callback(watch.on_op)
    try:
        value = initializer(_shrink_shape(shape), dtype=dtype)
        root = watch.buffers.get(id(value))
    finally:
        op_callbacks.remove_op_callback(watch.on_op)
    events, alive = list(watch.events), sorted(set(watch.buffers.values()))
    if watch.differs or watch.count != len(watch.ops) or root is None:
        return None
    return Requests([*events, *((number, 0) for number in alive if number != root)], watch.numbers)


def _runs_eagerly(op: Any) -> bool:
    """Say whether an op of a graph also runs in eager mode, where Python's values need no constant."""
    value = op.outputs[0] if op.type == _CONST else None
    if value is None:
        return str(op.type) != "Placeholder"
    return bool(value.dtype.is_floating and value.shape.rank)


def _shrink_shape(shape: Any) -> tuple[int, ...]:
    """Return a small shape: equal axes stay equal, longer axes stay longer."""
    ranks = {size: rank for rank, size in enumerate(sorted({s for s in shape if s > 1}), start=2)}
    return tuple(ranks.get(size, size) for size in shape)


@dataclass
class _Watch:
    """The tensors of one run, from op callbacks."""

    ops: list[Any]  # the ops of the graph for the full shape; their outputs give the bytes
    host_dtypes: frozenset[str]
    count: int = 0  # ops that ran
    events: Events = field(default_factory=list)
    # ``id`` of a living tensor -> the number of its buffer
    buffers: dict[int, int] = field(default_factory=dict)
    differs: bool = False  # the run took another way than the graph
    numbers: list[Number] = field(default_factory=list)
    _buffer_count: int = 0

    def on_op(
        self,
        op_type: Any,
        inputs: Any,
        attrs: Any,
        outputs: Any,
        op_name: Any = None,
        graph: Any = None,
    ) -> None:
        """Record one op; TensorFlow calls this with keywords of these names."""
        name = op_type.decode() if isinstance(op_type, bytes) else str(op_type)
        like = self.ops[self.count] if graph is None and self.count < len(self.ops) else None
        if like is None or (like.type != name and (like.type, name) != (_CONST, "Fill")):
            self.differs = True  # the graph's next op has another type
            return
        self.count += 1
        for position, tensor in enumerate(inputs):
            if id(tensor) not in self.buffers and self._counts(tensor, name):
                # A filled constant has another type than in the graph, and other inputs.
                self._add_input(tensor, like.inputs[position] if like.type == name else None)
        if name in _VIEWS and id(inputs[0]) in self.buffers:
            self._hold(outputs[0], self.buffers[id(inputs[0])])
            return
        for tensor, full in zip(outputs, like.outputs, strict=True):
            size_bytes = get_spec(full).size_bytes
            if size_bytes and self._counts(tensor, name):
                self._hold(tensor, self._allocate(size_bytes))

    def _add_input(self, tensor: Any, static: Any) -> None:
        """Record an input from Python; ``static`` is the same input in the graph, None for none."""
        if len(tensor.shape):  # a list that becomes a tensor
            self._hold(tensor, self._allocate(math.prod(tensor.shape) * tensor.dtype.size))
            return
        value = None if static is None else tf.get_static_value(static)
        # TensorFlow caches scalars: they have no buffer of their own.
        self.numbers.append((float(tensor.numpy() if value is None else value), tensor.dtype.name))

    def _counts(self, tensor: Any, op_type: str) -> bool:
        return op_type in _ON_CARD or tensor.dtype.name not in self.host_dtypes

    def _allocate(self, size_bytes: int) -> int:
        self._buffer_count += 1
        self.events.append((self._buffer_count - 1, size_bytes))
        return self._buffer_count - 1

    def _hold(self, tensor: Any, number: int) -> None:
        self.buffers[id(tensor)] = number
        weakref.finalize(tensor, self._release, id(tensor)).atexit = False

    def _release(self, key: int) -> None:
        number = self.buffers.pop(key)
        if number not in self.buffers.values():
            self.events.append((number, 0))
