"""How the step's variables are made: in which order, and with which allocations."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from analyzer.capture.initializers.initializer_requests import (
    Events,
    Number,
    Requests,
    find_requests,
)
from analyzer.capture.initializers.memoryless_tensors import StandIns
from analyzer.model.contract.fields import ITEM_BYTES
from analyzer.model.gc_pause import pause_collector
from analyzer.model.units import GRANULE_BYTES


@dataclass
class Birth:
    """The creation of one variable.

    Attributes:
        reference: Returns the ``tf.Variable``, or None once it is gone: this record does not keep the
            weights of a layer alive that the model's code made, called and dropped.
        events: Allocations and frees of its initializer. The last living buffer is the value; other
            living buffers are numbers that TensorFlow caches.
        traced: Made while the step was traced, as slots are.
        sharing: Initializer, dtype and shape as text. Equal ones of one trace share a buffer at first,
            because equal constants of a graph are merged.
        make: The initializer: called with shape and dtype it returns the value; None for none.
        is_cached: Its buffers stay, though they belong to no variable.
        numbers: The buffers of numbers.
    """

    reference: Callable[[], Any]
    events: Events
    traced: bool
    sharing: str
    make: Any = None
    is_cached: bool = False
    numbers: frozenset[int] = frozenset()

    @property
    def variable(self) -> Any:
        """The ``tf.Variable``; None if it is gone."""
        return self.reference()

    @property
    def final_events(self) -> Events:
        """The events, with frees of all buffers if the variable is gone."""
        if self.is_cached or self.variable is not None:
            return self.events
        freed = {number for number, size in self.events if not size} | self.numbers
        allocated = [number for number, size in self.events if size]
        return [*self.events, *((number, 0) for number in allocated if number not in freed)]


@dataclass
class Births:
    """All births, in order.

    Attributes:
        made_bytes: Allocated bytes that variables really take here.
        traced_constants: Constants that a real first tracing keeps for initial values: it computes them
            in the step's own graph, unlike here.
        inputs: ``id`` of each input tensor of the step -> number of births before it.
        host_dtypes: Element types that lie in other memory and are not counted.
        stand_ins: Makes values without memory; None if all values are real.
        traces_twice: Whether tracing the step here makes variables and so traces it a second time.
    """

    rows: list[Birth] = field(default_factory=list)
    made_bytes: int = 0
    traced_constants: int = 0
    inputs: dict[int, int] = field(default_factory=dict)
    host_dtypes: frozenset[str] = frozenset()
    stand_ins: StandIns | None = None
    traces_twice: bool = False
    _requests: dict[str, Requests] = field(default_factory=dict)
    _constants: dict[str, int] = field(default_factory=dict)
    _cached: set[Number] = field(default_factory=set)

    def add(self, variable: Any, initializer: Any, shape: Any, dtype: Any, *, traced: bool) -> None:
        """Record a variable that an initializer makes."""
        name = f"{_describe(initializer)} {dtype} {tuple(shape)}"
        if name not in self._requests:
            size_bytes = _get_size(shape, dtype)
            self._requests[name] = find_requests(
                initializer, shape, dtype, size_bytes, self.host_dtypes
            )
        events, numbers = self._requests[name].events, frozenset[int]()
        if traced:
            if name not in self._constants:
                self._constants[name] = _count_constants(initializer, shape, dtype)
            self.traced_constants += self._constants[name]
        else:
            events, numbers = self._insert_numbers(self._requests[name])
        reference = weakref.ref(variable)
        self.rows.append(Birth(reference, events, traced, name, initializer, numbers=numbers))

    def _insert_numbers(self, requests: Requests) -> tuple[Events, frozenset[int]]:
        """Return events with the buffers of new numbers, and which buffers those are.

        Numbers after the value get records of their own before it: the last living buffer must be the
        value.
        """
        events = list(requests.events)
        freed = {number for number, size in events if not size}
        value_at = max(
            (at for at, (number, _) in enumerate(events) if number not in freed), default=0
        )
        self.add_numbers(number for at, number in requests.numbers if at > value_at)
        first = max((number for number, _ in events), default=-1) + 1
        count = 0
        for at, number in requests.numbers:
            if self._cache(number):
                events.insert(at + count, (first + count, ITEM_BYTES.get(number[1], 4)))
                count += 1
        return events, frozenset(range(first, first + count))

    def _cache(self, number: Number) -> bool:
        """Record a number on a card; return whether it is new there."""
        is_new = bool(self.host_dtypes) and number not in self._cached
        self._cached.add(number)
        return is_new

    def add_numbers(self, numbers: Iterable[Number]) -> None:
        """Record numbers that TensorFlow caches on a card from now on.

        ``TFE_TensorHandleCache`` (``pywrap_tensor.cc``) holds a tensor for each Python number that an
        eager op received, so that it is copied to the card once.
        """
        for number in numbers:
            if self._cache(number):
                events: Events = [(0, ITEM_BYTES.get(number[1], 4))]
                name = f"number {number[0]!r} {number[1]}"
                birth = Birth(lambda: None, events, traced=False, sharing=name, is_cached=True)
                self.rows.append(birth)

    def add_value(self, variable: Any) -> None:
        """Record a variable that takes over an existing value."""
        events: Events = [(0, _get_size(variable.shape, variable.dtype))]
        self.rows.append(Birth(weakref.ref(variable), events, False, f"value {len(self.rows)}"))


active_births: list[Births] = []
"""The records under way, the innermost last."""


def record_input(tensor: Any) -> None:
    """Record when an input tensor of the step was made."""
    for births in active_births:
        if tensor.dtype.is_floating:  # drawn between 0 and 1
            births.add_numbers((bound, tensor.dtype.name) for bound in (1.0, 0.0))
        births.inputs[id(tensor)] = len(births.rows)


def make_unbacked_value(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return zeros without memory; None if values are real."""
    makers = [births.stand_ins for births in active_births if births.stand_ins is not None]
    return makers[0].make_tensor(dtype, shape) if makers else None


def is_stand_in(tensor: Any) -> bool:
    """Say whether an input tensor is zeros without memory: a run would use other values."""
    return any(
        births.stand_ins is not None and id(tensor) in births.inputs for births in active_births
    )


def get_bytes_in_use() -> int:
    """Return the bytes of the chunks in use on the CPU; 0 if its allocator has no statistics."""
    try:
        return int(tf.config.experimental.get_memory_info("CPU:0")["current"])
    except (ValueError, KeyError):
        return 0


def _describe(initializer: Any) -> str:
    """Return a text that is equal for initializers that make the same constant."""
    config: Any = {}
    with contextlib.suppress(Exception):
        config = {key: value for key, value in initializer.get_config().items() if key != "seed"}
    return f"{type(initializer).__name__} {getattr(initializer, '__name__', '')} {config}"


def _get_size(shape: Any, dtype: Any) -> int:
    return int(ITEM_BYTES.get(tf.as_dtype(dtype).name, 0) * math.prod(shape))


def _count_constants(initializer: Any, shape: Any, dtype: Any) -> int:
    """Return how many constants a graph keeps of an initializer, for its ops' shape functions."""
    graph = tf.Graph()
    with pause_collector():  # garbage must not be freed while bytes are counted
        before = get_bytes_in_use()
        try:
            with graph.as_default():
                initializer(shape, dtype=dtype)
        except Exception:
            return 0
        return max(get_bytes_in_use() - before, 0) // GRANULE_BYTES
