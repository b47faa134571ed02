"""How the step's variables come to be: in which order, and what their initializers ask for.

An initializer is traced instead of run; ``hollow_variables`` tells
when.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph import plain_graphs as graphs
from analyzer.capture.initializers.initializer_requests import (
    Events,
    Handed,
    Number,
    watch_initializer,
)
from analyzer.capture.initializers.memoryless_tensors import StandIns
from analyzer.model.contract.element_sizes import ITEM_BYTES
from analyzer.model.units import GRANULE_BYTES

_HELD: Final = ("StatelessRandom", "StatelessTruncated", "Random", "Truncated")
"""Ops whose result the initializer's Python code keeps in a local name until it returns."""
_NOBODY: Final[Callable[[], Any]] = lambda: None  # noqa: E731
_FREE: Final = frozenset(
    {"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "Placeholder"}
)


@dataclass
class Birth:
    """One variable's making.

    Attributes:
        reference: The ``tf.Variable``, which does not live on for this record: the weights of a
            layer that the model's code made, called and dropped are gone with it.
        events: What its initializer asks for; the last buffer alive is the value, others that live on
            are numbers that TensorFlow keeps.
        traced: Made while the step was being traced, as slots are.
        sharing: Initializer, dtype and shape in one text: equal ones made by one trace share a buffer
            at first, because equal constants of a graph are merged.
        make: The initializer: called with shape and dtype it returns the value; None for none.
        kept: What it leaves stays, though it is no variable's.
        numbers: The buffers that numbers have.
    """

    reference: Callable[[], Any]
    events: Events
    traced: bool
    sharing: str
    make: Any = None
    kept: bool = False
    numbers: frozenset[int] = frozenset()

    @property
    def variable(self) -> Any:
        """The ``tf.Variable``; None where it is gone."""
        return self.reference()

    @property
    def final_events(self) -> Events:
        """The events, with the end of the value where the variable is gone."""
        if self.kept or self.variable is not None:
            return self.events
        ended = {number for number, size in self.events if not size} | self.numbers
        born = [number for number, size in self.events if size]
        return [*self.events, *((number, 0) for number in born if number not in ended)]


@dataclass
class Births:
    """All births, in order.

    Attributes:
        rows: The births.
        made_bytes: Allocated bytes that variables left behind here.
        traced_constants: Constants that the graph of a real first tracing keeps for their initial
            values: it computes those in the step's own graph, which is not done here.
        inputs: ``id`` of each tensor that was made for the step to be fed with -> births before it.
        host_dtypes: Element types that are not counted, because they lie in another memory.
        stand_ins: Makes values without memory; None where all are made in full.
    """

    rows: list[Birth] = field(default_factory=list)
    made_bytes: int = 0
    traced_constants: int = 0
    inputs: dict[int, int] = field(default_factory=dict)
    host_dtypes: frozenset[str] = frozenset()
    stand_ins: StandIns | None = None
    _known: dict[str, Events] = field(default_factory=dict)
    _kept: dict[str, int] = field(default_factory=dict)
    _handed: dict[str, list[Handed]] = field(default_factory=dict)
    _cached: set[Number] = field(default_factory=set)

    def add(
        self,
        variable: Any,
        initializer: Any,
        shape: Any,
        dtype: Any,
        *,
        traced: bool,
    ) -> None:
        """Note one variable that an initializer makes.

        Args:
            variable: The ``tf.Variable``.
            initializer: Called with shape and dtype it returns the value.
            shape: Sizes of the axes.
            dtype: Its element type.
            traced: Made while the step is being traced, inside it.
        """
        size_bytes = _size(shape, dtype)
        name = f"{_name(initializer)} {dtype} {tuple(shape)}"
        if name not in self._known:
            handed = self._handed[name] = []
            self._known[name] = _events(
                initializer, shape, dtype, size_bytes, self.host_dtypes, handed
            )
        events, numbers = self._known[name], frozenset[int]()
        if traced:
            if name not in self._kept:
                self._kept[name] = _kept_constants(initializer, shape, dtype)
            self.traced_constants += self._kept[name]
        else:
            events, numbers = self._with_numbers(events, self._handed[name])
        reference = weakref.ref(variable)
        self.rows.append(Birth(reference, events, traced, name, initializer, numbers=numbers))

    def _with_numbers(self, events: Events, handed: list[Handed]) -> tuple[Events, frozenset[int]]:
        """Return events with the births of numbers that are new, and which buffers those are.

        Numbers that come after the value have records of their own, before it: the last buffer alive is
        to be the value.
        """
        ended = {number for number, size in events if not size}
        value_at = max(
            (at for at, (number, _) in enumerate(events) if number not in ended), default=0
        )
        self.add_numbers(number for at, number in handed if at > value_at)
        first = max((number for number, _ in events), default=-1) + 1
        found, made = list(events), 0
        for at, number in handed:
            if self._is_new(number):
                found.insert(at + made, (first + made, ITEM_BYTES.get(number[1], 4)))
                made += 1
        return found, frozenset(range(first, first + made))

    def _is_new(self, number: Number) -> bool:
        """Say whether a number gets a tensor on a card only now, and note that it has one."""
        if not self.host_dtypes or number in self._cached:
            return False
        self._cached.add(number)
        return True

    def add_numbers(self, numbers: Iterable[Number]) -> None:
        """Note numbers that TensorFlow keeps on a card from then on.

        ``TFE_TensorHandleCache`` (``pywrap_tensor.cc``) holds the tensor of each number of Python's that
        an op outside of graphs was handed, so that it is copied to the card once.
        """
        for number in numbers:
            if self._is_new(number):
                events: Events = [(0, ITEM_BYTES.get(number[1], 4))]
                name = f"number {number[0]!r} {number[1]}"
                self.rows.append(Birth(_NOBODY, events, traced=False, sharing=name, kept=True))

    def add_value(self, variable: Any) -> None:
        """Note one variable that takes over a value that is there."""
        events: Events = [(0, _size(variable.shape, variable.dtype))]
        self.rows.append(Birth(weakref.ref(variable), events, False, f"value {len(self.rows)}"))


active_births: list[Births] = []
"""The records of births that are being made, the innermost last."""


def record_input(tensor: Any) -> None:
    """Note when a tensor was made that the step will be fed with."""
    for births in active_births:
        if tensor.dtype.is_floating:  # drawn from 0 to 1
            births.add_numbers((low_or_high, tensor.dtype.name) for low_or_high in (1.0, 0.0))
        births.inputs[id(tensor)] = len(births.rows)


def make_unbacked_value(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return zeros with no memory behind them; None where values are made in full."""
    made = next(
        (births.stand_ins for births in active_births if births.stand_ins is not None), None
    )
    return None if made is None else made.tensor(dtype, shape)


def is_stand_in(tensor: Any) -> bool:
    """Say whether a tensor that the step is fed was made up with no memory behind it.

    Its zeros are then no values to go by: a run would make up others.
    """
    return any(
        births.stand_ins is not None and id(tensor) in births.inputs for births in active_births
    )


def get_bytes_in_use() -> int:
    """Return the bytes of the chunks in use on the CPU; 0 where its allocator does not count."""
    try:
        return int(tf.config.experimental.get_memory_info("CPU:0")["current"])
    except (ValueError, KeyError):
        return 0


def _name(initializer: Any) -> str:
    """Return a text that is equal for initializers that make the same constant."""
    config: Any = {}
    with contextlib.suppress(Exception):
        config = initializer.get_config()
    if isinstance(config, dict):
        config = {key: value for key, value in config.items() if key != "seed"}
    return f"{type(initializer).__name__} {getattr(initializer, '__name__', '')} {config}"


def _size(shape: Any, dtype: Any) -> int:
    size_bytes = ITEM_BYTES.get(tf.as_dtype(dtype).name, 0)
    for axis in shape:
        size_bytes *= axis
    return size_bytes


def _events(
    initializer: Any,
    shape: Any,
    dtype: Any,
    size_bytes: int,
    host_dtypes: frozenset[str],
    handed: list[Handed],
) -> Events:
    """Return what calling the initializer asks for, op by op; only the value where it cannot tell.

    Args:
        initializer: Called with shape and dtype it returns the value.
        shape: Sizes of the axes.
        dtype: The element type.
        size_bytes: Of the value.
        host_dtypes: Element types that are not counted.
        handed: Gets the numbers that its ops are handed.
    """
    plain: Events = [(0, size_bytes)]
    try:
        watched = watch_initializer(initializer, shape, dtype, host_dtypes, handed)
    except Exception:
        watched = None
    if watched:
        return watched
    graph = tf.Graph()
    try:
        with graph.as_default():
            value = tf.convert_to_tensor(initializer(shape, dtype=dtype))
    except Exception:
        return plain
    return _eager_events(graph, value, host_dtypes) or plain


def _kept_constants(initializer: Any, shape: Any, dtype: Any) -> int:
    """Return how many constants a graph keeps of an initializer, for its ops' shape functions."""
    graph = tf.Graph()
    before = get_bytes_in_use()
    try:
        with graph.as_default():
            initializer(shape, dtype=dtype)
    except Exception:
        return 0
    return max(get_bytes_in_use() - before, 0) // GRANULE_BYTES


def _eager_events(graph: Any, value: Any, host_dtypes: frozenset[str]) -> Events:
    ops = graph.get_operations()
    root = _root(value)
    last_use: dict[str, int] = {}
    for position, op in enumerate(ops):
        for tensor in op.inputs:
            last_use[_root(tensor).name] = position
    events: Events = []
    numbers: dict[str, int] = {}
    held: list[str] = []
    for position, op in enumerate(ops):
        if op.type in _FREE:
            continue
        for tensor in op.outputs:
            size_bytes = graphs.get_spec(tensor).size_bytes
            if size_bytes and tensor.dtype.name not in host_dtypes:
                numbers[tensor.name] = len(numbers)
                events.append((numbers[tensor.name], size_bytes))
        for tensor in op.inputs:
            name = _root(tensor).name
            if name not in numbers or last_use[name] != position or name == root.name:
                continue
            if _root(tensor).op.type.startswith(_HELD):
                held.append(name)
            elif (numbers[name], 0) not in events:
                events.append((numbers[name], 0))
    ended = {number for number, size in events if not size}
    left = [*held, *(name for name in numbers if name not in held)]
    events += [
        (numbers[name], 0) for name in left if numbers[name] not in ended and name != root.name
    ]
    return events if root.name in numbers else []


def _root(tensor: Any) -> Any:
    """Return the tensor whose buffer ``tensor`` shows."""
    reshaping: Callable[[Any], bool] = lambda op: op.type in _FREE and len(op.inputs) > 0  # noqa: E731
    while reshaping(tensor.op):
        tensor = tensor.op.inputs[0]
    return tensor
