"""Every ``tf.function`` that a program calls: how often it was traced, and what was new each time."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import collect_graphs
from analyzer.capture.private_names import list_concrete_functions
from analyzer.capture.run.source_frames import shorten_path
from analyzer.capture.watch.holders.user_lines import (
    find_calling_line,
    format_code_line,
    get_code,
    is_own,
)
from analyzer.model.contract.watch_note import LargeConstant, Retrace, TracedFunction

_KEPT: Final = 50
"""Retraces of one function that are kept, the latest."""

_LEAVES: Final = 256
"""Leaves of a call's arguments that are compared."""

_LONGEST: Final = 40
"""Characters of a Python value that are shown."""

_LARGE_BYTES: Final = 1 << 20
"""Constants of a graph from this size on are noted one by one."""


@dataclass
class FunctionRecord:
    """What is known of all ``tf.function`` objects made of one Python function.

    Attributes:
        code: The Python function's code.
        trains: Gradients were taken while it was traced.
        objects: Weak references to the objects seen.
        made, calls, traces: How many objects, calls and traces there were.
        called_at: Where it was called when it was last traced.
        retraces: The latest traces after the first of each object.
        partitions: The graphs that the executor ran in the first call of the last object.
    """

    code: CodeType | None
    trains: bool = False
    objects: list[weakref.ref[Any]] = field(default_factory=list)
    made: int = 0
    calls: int = 0
    traces: int = 0
    called_at: str = ""
    retraces: deque[Retrace] = field(default_factory=lambda: deque(maxlen=_KEPT))
    partitions: list[Any] = field(default_factory=list)
    _signature: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The Python function's name."""
        return "a function" if self.code is None else self.code.co_name

    @property
    def where(self) -> str:
        """Where it is defined."""
        return "" if self.code is None else format_code_line(self.code)

    @property
    def is_keras(self) -> bool:
        """Whether it is a loop of Keras' own, such as that of ``fit``."""
        return self.code is not None and "keras" in self.code.co_filename.split("site-packages")[-1]

    def alive(self) -> list[Any]:
        """Return the objects that are alive."""
        return [thing for ref in self.objects if (thing := ref()) is not None]

    def traced(self, step: int, args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> None:
        """Note that a call was traced.

        Args:
            step: How many steps had been made.
            args, kwargs: The call's.
            count: How many traces it took.
        """
        signature = _signature_of(self.code, args, kwargs)
        self.traces += count
        self.called_at = find_calling_line()
        if self.traces > count:
            changed = _difference(self._signature, signature)
            if self.made > 1 and signature == self._signature:
                changed = "a tf.function object of its own"
            self.retraces.append(Retrace(step=step, call=self.calls, changed=changed))
        self._signature = signature

    def note(self, holder: str = "") -> TracedFunction:
        """Return it as plain data."""
        alive = self.alive()
        concrete = list_concrete_functions(alive[-1]) if alive else []
        graph = concrete[-1].graph if concrete else None
        return TracedFunction(
            name=self.name,
            where=self.where,
            called_at=self.called_at,
            objects=self.made,
            alive=len(alive),
            calls=self.calls,
            traces=self.traces,
            nodes=0 if graph is None else _node_count(graph),
            graph_bytes=0 if graph is None else _graph_bytes(graph),
            constant_bytes=0 if graph is None else sum(one.size_bytes for one in _constants(graph)),
            holder=holder,
            retraces=tuple(self.retraces),
            is_keras=self.is_keras,
        )


class FunctionLedger:
    """The records of all functions that were called, by their code."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], FunctionRecord]] = {}
        self._records: dict[Any, FunctionRecord] = {}

    def record_of(self, function: Any) -> FunctionRecord:
        """Return the record of a ``tf.function`` object, made where it is the first of its code."""
        known = self._known.get(id(function))
        if known is not None and known[0]() is function:
            return known[1]
        code = get_code(function.python_function)
        record = self._records.setdefault(code or id(function), FunctionRecord(code))
        number = id(function)
        ref = weakref.ref(function, lambda _: self._known.pop(number, None))
        self._known[number] = (ref, record)
        record.objects = [one for one in record.objects if one() is not None]
        record.objects.append(ref)
        record.made += 1
        return record

    def records(self) -> list[FunctionRecord]:
        """Return all records, those traced most often first."""
        return sorted(self._records.values(), key=lambda one: -one.traces)

    def constants(self) -> list[LargeConstant]:
        """Return the large constants of all graphs that are alive, and tensors they captured."""
        found: dict[tuple[str, str], LargeConstant] = {}
        for record in self._records.values():
            for function in record.alive():
                for concrete in list_concrete_functions(function):
                    for one in _constants(concrete.graph):
                        if one.size_bytes >= _LARGE_BYTES:
                            _count(found, one)
        return list(found.values())


def _count(found: dict[tuple[str, str], LargeConstant], one: LargeConstant) -> None:
    key = (one.where, one.name)
    known = found.get(key)
    copies = 1 if known is None else known.copies + 1
    found[key] = LargeConstant(
        kind=one.kind,
        where=one.where,
        dtype=one.dtype,
        shape=one.shape,
        size_bytes=one.size_bytes,
        name=one.name,
        copies=copies,
    )


def _constants(graph: Any) -> list[LargeConstant]:
    """Return the constants of a graph and of the functions in it that hold more than a few values."""
    found = []
    for nested in collect_graphs(graph):
        for op in nested.get_operations():
            if op.type != "Const" or not op.outputs:
                continue
            count = op.outputs[0].shape.num_elements()
            size_bytes = (count or 0) * op.outputs[0].dtype.size
            if size_bytes < 1024:
                continue
            found.append(
                LargeConstant(
                    kind="graph",
                    where=_line_of_op(op),
                    dtype=op.outputs[0].dtype.name,
                    shape=tuple(op.outputs[0].shape.as_list()),
                    size_bytes=size_bytes,
                    name=op.name,
                )
            )
    return found


def _line_of_op(op: Any) -> str:
    if op.traceback is None:
        return ""
    for frame in reversed(op.traceback.get_user_frames()):
        if is_own(frame.filename):
            return f"{shorten_path(frame.filename)}:{frame.lineno}"
    return ""


def updates_variables(function: Any) -> bool:
    """Say whether a ``tf.function`` that was traced takes gradients, as TensorFlow names them."""
    concrete = list_concrete_functions(function)
    return bool(concrete) and any(
        "gradient_tape" in op.name or op.type.startswith("ResourceApply")
        for graph in collect_graphs(concrete[-1].graph)
        for op in graph.get_operations()
    )


def _node_count(graph: Any) -> int:
    return sum(len(nested.get_operations()) for nested in collect_graphs(graph))


def _graph_bytes(graph: Any) -> int:
    try:
        return int(graph.as_graph_def().ByteSize())
    except (ValueError, tf.errors.OpError):  # more than a protobuf may hold
        return sum(one.size_bytes for one in _constants(graph))


def _signature_of(
    code: CodeType | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, str]:
    """Return for each leaf of a call's arguments what TensorFlow tells it apart by, in words."""
    names = list(code.co_varnames[: code.co_argcount]) if code is not None else []
    named = [(names[i] if i < len(names) else f"argument {i}", arg) for i, arg in enumerate(args)]
    described: dict[str, str] = {}
    for name, value in (*named, *kwargs.items()):
        try:
            leaves = tf.nest.flatten(value)
        except (TypeError, ValueError):
            leaves = [value]
        for index, leaf in enumerate(leaves):
            if len(described) >= _LEAVES:
                return described
            described[name if len(leaves) == 1 else f"{name}[{index}]"] = _described(leaf)
    return described


def _described(leaf: Any) -> str:
    if isinstance(leaf, tf.Tensor | tf.Variable):
        return f"{leaf.dtype.name}{_shape_words(leaf.shape)}"
    shape = getattr(leaf, "shape", None)
    dtype = getattr(leaf, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{dtype} array{_shape_words(shape)}"
    if isinstance(leaf, bool | int | float | str | bytes | type(None)):
        text = repr(leaf)
        return f"Python {type(leaf).__name__} {text[:_LONGEST]}"
    element = getattr(leaf, "element_spec", None)
    if element is not None:
        return f"{type(leaf).__name__} of {str(element)[:200]}"
    return f"{type(leaf).__name__} object"


def _shape_words(shape: Any) -> str:
    try:
        return f"[{','.join('?' if axis is None else str(axis) for axis in shape)}]"
    except (TypeError, ValueError):
        return "[?]"


def _difference(old: dict[str, str], new: dict[str, str]) -> str:
    changed = [
        f"{name}: {old.get(name, 'nothing')} -> {what}"
        for name, what in new.items()
        if old.get(name) != what
    ]
    changed += [f"{name}: {what} -> nothing" for name, what in old.items() if name not in new]
    if not changed:
        return "an object of the same type, or something that it closes over"
    return "; ".join(changed[:3]) + ("; …" if len(changed) > 3 else "")
