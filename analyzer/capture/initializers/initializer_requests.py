"""What an initializer asks for when it is run from Python, in order, without running it in full.

When a buffer is freed depends on the names that the initializer's Python code holds, which its graph
does not show. So the initializer is run on a shape of a few elements that has the same form, and the
births and deaths of its tensors are watched; their bytes are those of a graph traced for the full shape.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import keras
import tensorflow as tf

from analyzer.capture.graph import plain_graphs as graphs
from analyzer.capture.private_names import op_callbacks

Events = list[tuple[int, int]]
"""(number of a buffer, its bytes) where it is born, (number, 0) where it dies; the value lives on."""

Number = tuple[float, str]
"""A number that Python hands to an op, and the element type that it becomes."""

Handed = tuple[int, Number]
"""How many events come before a number is made a tensor, and the number."""

_SHOWS_ITS_INPUT: Final = frozenset(
    {"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient"}
)
_ON_CARD: Final = frozenset({"Cast"})
"""Ops whose kernels for a card have all types in the card's memory, int32 too, which others have in
the host's (``cast_op.cc`` registers no ``HostMemory``). What such an op takes from the host is copied,
and the copy lives as long as the tensor (``TensorHandle::AddLocalMirror``)."""

_DRAWS: Final = "StatelessRandomGetKeyCounter"
"""The first op of a random function, which makes tensors of its bounds before it
(``stateless_random_uniform`` and its like, ``stateless_random_ops.py``)."""

_CONST: Final = "Const"
_FILL: Final = "Fill"


def watch_initializer(
    initializer: Any,
    shape: Any,
    dtype: Any,
    host_dtypes: frozenset[str] = frozenset(),
    numbers: list[Handed] | None = None,
) -> Events | None:
    """Return what calling an initializer asks for.

    Args:
        initializer: An initializer of Keras; others are not run, for they may do anything.
        shape: The shape of the value.
        dtype: Its element type.
        host_dtypes: Element types that are not counted, because they lie in another memory.
        numbers: Gets the numbers that its ops are handed, in order, and when.

    Returns:
        Births and deaths; None where the run on few elements is no image of the full one.
    """
    own = str(getattr(initializer, "__module__", "")).split(".")[0] == "keras"
    if not own or _draws_from_a_state(initializer) or not tf.executing_eagerly():
        return None
    graph = tf.Graph()
    with graph.as_default():
        initializer(shape, dtype=dtype)
    full = [op for op in graph.get_operations() if _is_run(op)]
    watch = _Watch(full, host_dtypes)
    op_callbacks.add_op_callback(watch.ran)
    try:
        value = initializer(_small_shape(shape), dtype=dtype)
        root = watch.buffer_of.get(id(value))
    finally:
        op_callbacks.remove_op_callback(watch.ran)
    events = list(watch.events)
    if watch.lost or watch.count != len(full) or root is None:
        return None
    if numbers is not None:
        numbers += watch.numbers
    return [*events, *((number, 0) for number in watch.alive() if number != root)]


def _is_run(op: Any) -> bool:
    """Say whether Python runs an op of a graph.

    Constants are converted from Python's values, but for zeros and ones: filled, they are in Python.
    """
    if op.type != _CONST:
        return str(op.type) != "Placeholder"
    value = op.outputs[0]
    return bool(value.dtype.is_floating and value.shape.rank)


def _draws_from_a_state(initializer: Any) -> bool:
    """Say whether a run would move a generator that the model uses too."""
    return isinstance(getattr(initializer, "seed", None), keras.random.SeedGenerator)


def _small_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape of few elements: axes as long as each other stay so, longer ones longer."""
    ranks = {size: rank for rank, size in enumerate(sorted({s for s in shape if s > 1}), start=2)}
    return tuple(ranks.get(size, size) for size in shape)


@dataclass
class _Watch:
    """The tensors of one run, as op callbacks see them.

    Attributes:
        full: The ops of the graph for the full shape, whose outputs have the bytes.
        host_dtypes: Element types that are not counted.
        count: Ops that ran.
        events: Births and deaths so far.
        buffer_of: ``id`` of a living tensor -> the number of its buffer.
        lost: The run took another way than the graph.
        numbers: What ops were handed that no tensor of the run is and has no axes, and when.
    """

    full: list[Any]
    host_dtypes: frozenset[str] = frozenset()
    count: int = 0
    events: Events = field(default_factory=list)
    buffer_of: dict[int, int] = field(default_factory=dict)
    lost: bool = False
    numbers: list[Handed] = field(default_factory=list)
    _numbers: int = 0
    _drawn_at: int | None = None
    _holders: Counter[int] = field(default_factory=Counter)

    def alive(self) -> list[int]:
        """Return the buffers that a tensor still holds."""
        return sorted(number for number, holders in self._holders.items() if holders)

    def ran(
        self,
        op_type: Any,
        inputs: Any,
        attrs: Any,
        outputs: Any,
        op_name: Any = None,
        graph: Any = None,
    ) -> None:
        """Note one op; TensorFlow calls it with keywords of these names."""
        name = op_type.decode() if isinstance(op_type, bytes) else str(op_type)
        like = self.full[self.count] if graph is None and self.count < len(self.full) else None
        if like is None or (like.type != name and (like.type, name) != (_CONST, _FILL)):
            self.lost = True
            return
        self.count += 1
        if name == _DRAWS:
            self._drawn_at = len(self.events)
        for position, tensor in enumerate(inputs):
            if id(tensor) in self.buffer_of or not self._counts(tensor, name):
                continue
            if not len(tensor.shape):  # kept by TensorFlow's cache of scalars
                number = _number(tensor, like, position, name), tensor.dtype.name
                at = len(self.events) if self._drawn_at is None else self._drawn_at
                self.numbers.append((at, number))
            else:  # lists become tensors
                self._holds(tensor, self._born(math.prod(tensor.shape) * tensor.dtype.size))
        if name in _SHOWS_ITS_INPUT and id(inputs[0]) in self.buffer_of:
            self._holds(outputs[0], self.buffer_of[id(inputs[0])])
            return
        for tensor, shown in zip(outputs, like.outputs, strict=True):
            size_bytes = graphs.get_spec(shown).size_bytes
            if size_bytes and self._counts(tensor, name):
                self._holds(tensor, self._born(size_bytes))

    def _counts(self, tensor: Any, op_type: str) -> bool:
        return op_type in _ON_CARD or tensor.dtype.name not in self.host_dtypes

    def _born(self, size_bytes: int) -> int:
        self._numbers += 1
        self.events.append((self._numbers - 1, size_bytes))
        return self._numbers - 1

    def _holds(self, tensor: Any, number: int) -> None:
        self.buffer_of[id(tensor)] = number
        self._holders[number] += 1
        weakref.finalize(tensor, self._died, id(tensor)).atexit = False

    def _died(self, key: int) -> None:
        number = self.buffer_of.pop(key)
        self._holders[number] -= 1
        if not self._holders[number]:
            self.events.append((number, 0))


def _number(tensor: Any, like: Any, position: int, name: str) -> float:
    """Return a number that an op was handed, as the run on the full shape would hand it.

    Args:
        tensor: The number, as the run on few elements has it.
        like: The same op in the graph for the full shape.
        position: Which of its inputs the number is.
        name: The op's type, which differs from the graph's where a constant is filled.
    """
    value = tf.get_static_value(like.inputs[position]) if like.type == name else None
    return float(tensor.numpy() if value is None else value)
