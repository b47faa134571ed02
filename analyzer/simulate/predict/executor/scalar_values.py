"""The few numbers that decide where control goes: loop counters, step counters, branch predicates.

Only small tensors are followed, of numbers that the graph holds or the step is given. Of
floating-point tensors that are worked out two things are taken for granted, as in a step of healthy
training: they are finite (so that loss scaling takes the branch that updates), and no element is
exactly the one number that a whole tensor is compared with (so that Keras divides a sparse gradient as
it is, and does not make it dense because a denominator is zero).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Final

import numpy as np

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.ops import op_types

Number = int | float
Value = tuple[Number, ...]
"""A small tensor's elements, flat; booleans as 0 and 1."""

_MAX_ELEMENTS: Final = 64
"""Elements of the largest tensor that is followed; as many as a note keeps of a constant."""

_BINARY: Final[dict[str, Callable[[Number, Number], Number]]] = {
    "Add": operator.add,
    "AddV2": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
    "RealDiv": operator.truediv,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Maximum": max,
    "Minimum": min,
    "Less": operator.lt,
    "LessEqual": operator.le,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "LogicalAnd": lambda a, b: a and b,
    "LogicalOr": lambda a, b: a or b,
}
_DIVISIONS: Final = op_types("Div RealDiv FloorDiv FloorMod")
_DECIDED_BY_ONE: Final = {"LogicalAnd": 0, "LogicalOr": 1}
"""Kinds whose value one input alone may decide, and the value by which it does."""
_GIVEN: Final = op_types("Const HostConst _Arg _DeviceArg")
"""Kinds that bring in a number: held by the graph, or given to the step (``value``)."""
_SAME: Final = op_types(
    """
    Identity Snapshot StopGradient Squeeze Reshape ExpandDims LoopCond PreventGradient Enter
    Exit NextIteration _Recv _HostRecv
    """
)
_REDUCE: Final[dict[str, Callable[[Value], Number]]] = {
    "All": lambda value: int(all(value)),
    "Any": lambda value: int(any(value)),
    "Max": max,
    "Min": min,
    "Sum": sum,
    "Prod": math.prod,
}

_OF_EQUAL_THE_SAME: Final = op_types("All Any Max Min")
_TAKEN_FOR_GRANTED: Final = {"IsFinite": 1, "IsInf": 0, "IsNan": 0}

_INDEXED: Final = op_types("TensorListGetItem TensorListReserve TensorListResize TensorListSetItem")
_JOINS: Final = {"TensorListPushBack": 1, "TensorListSetItem": 2, "OptionalFromValue": 0}
_LEAVES: Final = {"TensorListPopBack": 1, "TensorListGetItem": 0, "OptionalGetValue": 0}
LISTS: Final = _INDEXED | frozenset(_JOINS) | frozenset(_LEAVES)
"""Kernels of TensorLists that take an index or a count, or by which a number joins a list or leaves
one: a loop's backward pass pops the counter that its forward pass pushed, a branch's backward pass takes
the predicate of an inner branch from an optional."""


UNASKED: Final = _GIVEN | op_types(
    "Equal IsFinite IsInf IsNan LogicalAnd LogicalOr NotEqual Rank Shape Size"
)
"""Kinds whose value does not depend on that of their first input; every other needs it."""


def follow(op: Op, inputs: list[Value | None], specs: list[TensorSpec | None]) -> Value | None:
    """Return the value of an op's first output, None where it is not known.

    Args:
        op: The op.
        inputs: Values of its inputs, None for one that is not known.
        specs: What its inputs are.
    """
    kind = op.type
    if kind in _GIVEN:
        return constant(op)
    if kind in _TAKEN_FOR_GRANTED:
        return (_TAKEN_FOR_GRANTED[kind],)
    if kind in ("Equal", "NotEqual") and _compares_floats_with_one(specs):
        return (int(kind == "NotEqual"),)
    if kind in _OF_SHAPE:
        return _of_shape(kind, specs[0])
    if kind in _DECIDED_BY_ONE and (_DECIDED_BY_ONE[kind],) in inputs and _is_one(op):
        return (_DECIDED_BY_ONE[kind],)
    if any(value is None for value in inputs[:1]):
        return None
    known = [value for value in inputs if value is not None]
    if kind in _SAME:
        return known[0]
    if kind == "Cast":
        return _as_type(known[0], op)
    if kind == "Neg":
        return tuple(-x for x in known[0])
    if kind == "LogicalNot":
        return tuple(int(not x) for x in known[0])
    if kind in _REDUCE and known[0]:
        whole = op.outputs[0].size_bytes is not None and op.outputs[0].shape in ((), None)
        # One number may stand for a tensor of equal ones.
        same = len(known[0]) == 1 and kind in _OF_EQUAL_THE_SAME
        return _as_type((_REDUCE[kind](known[0]),), op) if whole or same else None
    if kind == "TensorScatterUpdate" and inputs[0] == inputs[2]:
        return known[0] if len(known[0]) == 1 else None
    if len(known) != len(inputs):
        return None
    return _combine(op, known)


_OF_SHAPE: Final = frozenset({"Shape", "Size", "Rank"})
"""Kinds whose value follows from the shape of their input alone."""


def _of_shape(kind: str, spec: TensorSpec | None) -> Value | None:
    if kind == "Rank":
        return None if spec is None or spec.shape is None else (len(spec.shape),)
    shape = _shape(spec)
    if kind == "Shape" or shape is None:
        return shape
    return (math.prod(shape),)


ASSIGNS: Final = op_types("AssignVariableOp AssignAddVariableOp AssignSubVariableOp")


def assigned(kind: str, old: Value, change: Value | None) -> Value | None:
    """Return a variable's value after one of ``ASSIGNS``, None where it is not known.

    Args:
        kind: Op type, one of ``ASSIGNS``.
        old: The variable's value before.
        change: The value of the second input; None where it is not known.
    """
    if change is None or len(change) != len(old):
        return None
    if kind == "AssignVariableOp":
        return change
    sign = 1 if kind == "AssignAddVariableOp" else -1
    return tuple(a + sign * b for a, b in zip(old, change, strict=True))


def index_of(kind: str, values: list[Value | None]) -> int | None:
    """Return the index or count that a TensorList's kernel is given; None where not known."""
    told = values[1] if kind in _INDEXED else None
    return int(told[0]) if told else None


class InLists:
    """The numbers that are elements of TensorLists, by the buffer that holds them."""

    def __init__(self) -> None:
        self._known: dict[int, Value] = {}

    def join(self, kind: str, buffers: list[int], values: list[Value | None]) -> None:
        """Note the number that a kernel adds to a list.

        Args:
            kind: Op type of the kernel.
            buffers: Buffer on each input.
            values: Value of each input; None where it is not known.
        """
        place = _JOINS.get(kind)
        if place is None or buffers[place] < 0:
            return
        value = values[place]
        if value is None:
            self._known.pop(buffers[place], None)
        else:
            self._known[buffers[place]] = value

    def leave(self, kind: str, output: int, buffer: int) -> Value | None:
        """Return the number in an output of a kernel, where it is an element of a list.

        Args:
            kind: Op type of the kernel.
            output: Index of the output.
            buffer: Its buffer.
        """
        return self._known.get(buffer) if _LEAVES.get(kind) == output else None


def constant(op: Op) -> Value | None:
    """Return the value of a constant or argument where it is small, or one number everywhere."""
    value = op.attrs.get("value")
    if not isinstance(value, dict):
        return None
    elements = [value["every"]] if "every" in value else value.get("values")
    if elements is None or not all(isinstance(x, int | float) for x in elements):
        return None
    return tuple(int(x) if float(x).is_integer() else float(x) for x in elements)


def _is_one(op: Op) -> bool:
    return op.outputs[0].shape == ()


def _as_type(value: Value, op: Op) -> Value | None:
    """Return numbers as the op's first output holds them: cut off, or rounded as its type does."""
    dtype = op.outputs[0].dtype
    if not all(map(math.isfinite, value)):
        return None
    if dtype == "bool":
        return tuple(int(bool(x)) for x in value)
    if dtype in ("float16", "float32", "float64"):
        rounded = [float(np.dtype(dtype).type(x)) for x in value]
        return tuple(int(x) if x.is_integer() else x for x in rounded)
    if "float" in dtype or "complex" in dtype:
        return None if any(isinstance(x, float) for x in value) else value
    return tuple(int(x) for x in value)


def _combine(op: Op, known: list[Value]) -> Value | None:
    kind = op.type
    function = _BINARY.get(kind)
    if function is not None:
        left, right = known
        count = max(len(left), len(right))
        if count > _MAX_ELEMENTS or {len(left), len(right)} - {1, count}:
            return None
        if kind in _DIVISIONS and 0 in right:
            return None
        pairs = zip(
            left * (count // len(left) or 1), right * (count // len(right) or 1), strict=False
        )
        return _as_type(tuple(function(a, b) for a, b in pairs), op)
    if kind == "Pack":
        return tuple(x for value in known for x in value)
    if kind in ("ConcatV2", "Concat"):
        parts = known[:-1] if kind == "ConcatV2" else known[1:]
        return tuple(x for value in parts for x in value)
    if kind == "StridedSlice" and op.outputs[0].shape == () and len(known[1]) == 1:
        index = int(known[1][0])
        return (known[0][index],) if -len(known[0]) <= index < len(known[0]) else None
    return None


def _compares_floats_with_one(specs: list[TensorSpec | None]) -> bool:
    """Say whether a floating-point tensor is compared with one number."""
    known = [spec for spec in specs if spec is not None and "float" in spec.dtype]
    return len(known) == 2 and sorted(spec.shape == () for spec in known) == [False, True]


def _shape(spec: TensorSpec | None) -> Value | None:
    if spec is None or spec.shape is None or any(axis < 0 for axis in spec.shape):
        return None
    return spec.shape
