"""How the step's variables are made: in which order, and with which allocations.

In an estimate, their values take no memory: a stand-in's value is a slice of one buffer that is never
written to, so no page of it is backed by memory.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from analyzer.capture.graph.plain_graphs import get_spec
from analyzer.capture.private_names import op_callbacks
from analyzer.model.contract.fields import ITEM_BYTES
from analyzer.model.interrupts import pause_collector
from analyzer.model.units import GRANULE_BYTES

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
    """Return the allocations of an initializer, without ``host_dtypes``; if unknown, the value only.

    The names in an initializer's Python code decide when its buffers are freed, and its graph does not
    show them. So an initializer of Keras runs on a small shape of the same form, and its tensors are
    watched; a graph traced for the full shape gives their bytes.
    """
    requests = None
    with contextlib.suppress(Exception):  # the user's code
        requests = _watch_call(initializer, shape, dtype, host_dtypes)
    return requests if requests is not None and requests.events else Requests([(0, size_bytes)])


def _watch_call(
    initializer: Any, shape: Any, dtype: Any, host_dtypes: frozenset[str]
) -> Requests | None:
    """Run an initializer of Keras on a small shape; None if that does not reflect the full shape.

    Other packages' initializers may have side effects, and a ``SeedGenerator`` would be advanced.
    """
    is_keras = str(getattr(initializer, "__module__", "")).split(".")[0] == "keras"
    has_state = isinstance(getattr(initializer, "seed", None), keras.random.SeedGenerator)
    if not is_keras or has_state or not tf.executing_eagerly():
        return None
    with tf.Graph().as_default() as graph:
        initializer(shape, dtype=dtype)
    watch = _Watch([op for op in graph.get_operations() if _runs_eagerly(op)], host_dtypes)
    # In the small shape equal axes stay equal, longer axes stay longer.
    ranks = {size: rank for rank, size in enumerate(sorted({s for s in shape if s > 1}), start=2)}
    op_callbacks.add_op_callback(watch.on_op)
    try:
        value = initializer(tuple(ranks.get(size, size) for size in shape), dtype=dtype)
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


CPU_DEVICE: Final = "/job:localhost/replica:0/task:0/device:CPU:0"
_SMALL_BYTES: Final = 1 << 20
_MAX_FILLED_BYTES: Final = 64 << 20  # values above this are not filled with numbers
_NO_RESERVE: Final = 0x4000 if sys.platform == "linux" else 0
"""``MAP_NORESERVE``: the system reserves no memory for the mapping, so its size does not count."""


@dataclass(eq=False)
class StandIns:
    """Makes tensors and variables without memory."""

    handles: list[Any] = field(default_factory=list)
    _bytes: Any = None

    def make_tensor(self, dtype: Any, shape: Sequence[int], least: int = _SMALL_BYTES) -> Any:
        """Return zeros of this shape; without memory if they take at least ``least`` bytes."""
        size_bytes = math.prod(shape) * dtype.size
        # Bytes cannot be viewed as bool or string.
        if size_bytes < least or dtype in (tf.bool, tf.string):
            return tf.zeros(list(shape), dtype)
        if self._bytes is None or len(self._bytes) < size_bytes:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
            # Addresses that get memory only when they are written.
            self._bytes = np.frombuffer(mmap.mmap(-1, size_bytes, flags=flags), dtype=np.uint8)
        # TensorFlow copies a slice that does not end at a multiple of 64 bytes
        # (``IsDim0SliceAligned`` in ``ops_util.h``), NumPy does not.
        flat = tf.experimental.dlpack.from_dlpack(self._bytes[:size_bytes].__dlpack__())
        if dtype.size > 1:
            flat = tf.reshape(flat, [-1, dtype.size])
        return tf.reshape(tf.bitcast(flat, dtype), list(shape))

    def make_filled(self, dtype: Any, shape: Sequence[int]) -> Any:
        """Return different elements: XLA folds equal ones. Zeros if there are too many."""
        if math.prod(shape) * dtype.size > _MAX_FILLED_BYTES or not dtype.is_floating:
            return self.make_tensor(dtype, shape)
        return tf.random.stateless_uniform(list(shape), (0, 0), dtype=dtype)

    def make_variable(self, dtype: Any, shape: Sequence[int], *, filled: bool = False) -> Any:
        """Return the handle of a variable of zeros, or with a ``make_filled`` value."""
        name = f"analyzer_xla_{id(self)}_{len(self.handles)}"
        handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=list(shape), shared_name=name)
        value = self.make_filled(dtype, shape) if filled else self.make_tensor(dtype, shape)
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        self.handles.append(handle)
        return handle

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[StandIns]:
        """Place everything in the block on the CPU; its stand-ins are destroyed afterwards."""
        stand_ins = cls()
        try:
            with tf.init_scope(), tf.device(CPU_DEVICE):
                yield stand_ins
        finally:
            for handle in stand_ins.handles:
                tf.raw_ops.DestroyResourceOp(resource=handle)


@dataclass
class Birth:
    """The creation of one variable, without keeping it alive: the model's code may drop its layer."""

    reference: Callable[[], Any]  # returns the ``tf.Variable``; None once it is gone
    events: Events  # of its initializer; the last living buffer is the value
    traced: bool  # whether it was made while the step was traced, as slots are
    # initializer, dtype and shape; equal constants of a graph are merged and share a buffer at first
    sharing: str
    make: Any = None  # the initializer, called with shape and dtype
    is_cached: bool = False  # whether its buffers stay, though they belong to no variable

    @property
    def variable(self) -> Any:
        """The ``tf.Variable``; None if it is gone."""
        return self.reference()

    @property
    def is_slot(self) -> bool:
        """Whether it is a living variable that was made while the step was traced."""
        return self.traced and self.variable is not None

    @property
    def final_events(self) -> Events:
        """The events, with frees of all buffers if the variable is gone."""
        if self.is_cached or self.variable is not None:
            return self.events
        freed = {number for number, size in self.events if not size}
        return [*self.events, *((n, 0) for n, size in self.events if size and n not in freed)]


@dataclass
class Births:
    """All births, in order."""

    rows: list[Birth] = field(default_factory=list)
    made_bytes: int = 0  # allocated bytes that variables really take here
    # constants that a real first tracing keeps for initial values: it computes them in the step's
    # own graph, unlike here
    traced_constants: int = 0
    # ``id`` of each input tensor of the step -> number of births before it
    inputs: dict[int, int] = field(default_factory=dict)
    # element types that lie in other memory and are not counted
    host_dtypes: frozenset[str] = frozenset()
    stand_ins: StandIns | None = None  # makes values without memory; None if all values are real
    # whether tracing the step here makes variables and so traces it a second time
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
        events, numbers = self._requests[name]
        if not traced:
            self.add_numbers(numbers)
        elif name not in self._constants:
            self._constants[name] = _count_constants(initializer, shape, dtype)
        self.traced_constants += self._constants[name] if traced else 0
        self.rows.append(Birth(weakref.ref(variable), events, traced, name, make=initializer))

    def add_numbers(self, numbers: Iterable[Number]) -> None:
        """Record numbers that TensorFlow caches on a card from now on.

        ``TFE_TensorHandleCache`` (``pywrap_tensor.cc``) holds a tensor for each Python number that an
        eager op received, so that it is copied to the card once.
        """
        for number in numbers if self.host_dtypes else ():
            if number not in self._cached:
                self._cached.add(number)
                events: Events = [(0, ITEM_BYTES.get(number[1], 4))]
                name = f"number {number[0]!r} {number[1]}"
                self.rows.append(Birth(lambda: None, events, False, name, is_cached=True))

    def add_value(self, variable: Any) -> None:
        """Record a variable that takes over an existing value."""
        events: Events = [(0, _get_size(variable.shape, variable.dtype))]
        self.rows.append(Birth(weakref.ref(variable), events, False, f"value {len(self.rows)}"))


active_births: list[Births] = []  # the records under way, the innermost last


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
