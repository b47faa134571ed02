"""Values of the scalars that decide control flow: loop counters, step counters, branch predicates.

Only small tensors are evaluated, from constants and inputs of the step. An iterator has a next batch
(``OptionalHasValue`` in Keras 3.16's loop over steps). As in healthy training, computed floating-point
tensors are finite, so that loss scaling takes the updating branch, and no element equals the one number
that a whole tensor is compared with (Keras makes a sparse gradient dense if a denominator is zero).
"""

import math
import operator
from collections.abc import Callable
from typing import Final

import numpy as np

from analyzer.model.contract.graph_note import Op, TensorSpec, op_types
from analyzer.simulate.predict.wiring import TYPES

Number = int | float
Value = tuple[Number, ...]  # a small tensor's elements, flat; booleans as 0 and 1

_MAX_ELEMENTS: Final = 64
"""Elements of the largest tensor that is evaluated; a note keeps as many of a constant."""

_BINARY: Final[dict[str, Callable[[Number, Number], Number]]] = {
    **dict.fromkeys(("Add", "AddV2"), operator.add),
    **dict.fromkeys(("Div", "RealDiv"), operator.truediv),
    "Sub": operator.sub,
    "Mul": operator.mul,
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
"""Op types that one input can decide, and its deciding value."""
_SOURCES: Final = op_types("Const HostConst _Arg _DeviceArg")
"""Op types that bring in a number: a constant, or an input of the step (attribute ``value``)."""
_REDUCE: Final[dict[str, Callable[[Value], Number]]] = {
    "All": all,
    "Any": any,
    "Max": max,
    "Min": min,
    "Sum": sum,
    "Prod": math.prod,
}
_IDEMPOTENT: Final = op_types("All Any Max Min")
_ASSUMED: Final = {"IsFinite": 1, "IsInf": 0, "IsNan": 0, "OptionalHasValue": 1}
ASSIGNS: Final = op_types("AssignVariableOp AssignAddVariableOp AssignSubVariableOp")

INDEXED: Final = op_types(
    "TensorListGetItem TensorListReserve TensorListResize TensorListSetItem"
)
STORES: Final = {
    "TensorListPushBack": 1,
    "TensorListSetItem": 2,
    "OptionalFromValue": 0,
}
LOADS: Final = {"TensorListPopBack": 1, "TensorListGetItem": 0, "OptionalGetValue": 0}
LISTS: Final = INDEXED | frozenset(STORES) | frozenset(LOADS)
"""TensorList ops that take an index or a count, or that store or load a number. The
backward pass of a loop pops the counter that its forward pass pushed. The backward pass of a branch
takes the predicate of an inner branch from an optional."""

INPUT_FREE: Final = _SOURCES | op_types(
    "Equal IsFinite IsInf IsNan LogicalAnd LogicalOr NotEqual OptionalHasValue Rank Shape Size"
)
"""Op types whose value does not depend on the value of their first input."""


def evaluate(
    op: Op, inputs: list[Value | None], specs: list[TensorSpec]
) -> Value | None:
    """Return the value of an op's first output; None if it is unknown."""
    kind = op.type
    if kind in _SOURCES or "value" in op.attrs:
        return _read_constant(op)
    if kind in _ASSUMED:
        return (_ASSUMED[kind],)

    if kind in ("Equal", "NotEqual"):
        floats = [spec for spec in specs if spec is not None and "float" in spec.dtype]
        if sorted(spec.shape == () for spec in floats) == [
            False,
            True,
        ]:  # a tensor and one number
            return (int(kind == "NotEqual"),)

    if kind in ("Rank", "Shape", "Size"):
        return _describe_shape(kind, specs[0])

    deciding = _DECIDED_BY_ONE.get(kind)
    if deciding is not None and (deciding,) in inputs and op.outputs[0].shape == ():
        return (deciding,)

    known = [value for value in inputs if value is not None]
    if not inputs or inputs[0] is None:
        return None
    if kind == "TensorScatterUpdate" and inputs[0] == inputs[2]:
        return known[0] if len(known[0]) == 1 else None

    value = _evaluate_first(op, known[0])
    return _combine(op, known) if value is None and len(known) == len(inputs) else value


def _describe_shape(kind: str, spec: TensorSpec | None) -> Value | None:
    """Return what follows from the shape of an input, as far as it is known."""
    if spec is None or spec.shape is None or kind == "Rank":
        return None if spec is None or spec.shape is None else (len(spec.shape),)

    shape = spec.known_shape
    return shape if shape is None or kind == "Shape" else (math.prod(shape),)


def assign(kind: str, old: Value, change: Value | None) -> Value | None:
    """Return a variable's value after an op of ``ASSIGNS``; None if it is unknown."""
    if change is None or len(change) != len(old):
        return None
    if kind == "AssignVariableOp":
        return change

    sign = 1 if kind == "AssignAddVariableOp" else -1
    return tuple(a + sign * b for a, b in zip(old, change, strict=True))


def _read_constant(op: Op) -> Value | None:
    """Return the value of a small or uniform constant or argument, else None."""
    value = op.attrs.get("value")
    if not isinstance(value, dict):
        return None

    elements = [value["every"]] if "every" in value else value.get("values")
    if elements is None or not all(isinstance(x, int | float) for x in elements):
        return None
    return tuple(int(x) if float(x).is_integer() else float(x) for x in elements)


def _as_type(value: Value, op: Op) -> Value | None:
    """Return numbers rounded or truncated to the dtype of the op's first output."""
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


def _evaluate_first(op: Op, value: Value) -> Value | None:
    """Return the value of an op that depends on its first input alone; None for others."""
    if op.type in TYPES["same_value"]:
        return value
    if op.type == "Cast":
        return _as_type(value, op)
    if op.type == "Neg":
        return tuple(-x for x in value)
    if op.type == "LogicalNot":
        return tuple(int(not x) for x in value)
    if op.type not in _REDUCE or not value:
        return None

    # A reduction to several numbers is unknown, unless one number stands for equal ones.
    is_scalar = op.outputs[0].size_bytes is not None and op.outputs[0].shape in (
        (),
        None,
    )
    is_equal = len(value) == 1 and op.type in _IDEMPOTENT
    return _as_type((_REDUCE[op.type](value),), op) if is_scalar or is_equal else None


def _combine(op: Op, known: list[Value]) -> Value | None:
    match op.type:
        case "Pack":
            return tuple(x for value in known for x in value)
        case "ConcatV2":
            return tuple(x for value in known[:-1] for x in value)
        case "Concat":
            return tuple(x for value in known[1:] for x in value)
        case "StridedSlice" | "TensorListGetItem" if (
            op.outputs[0].shape == () and len(known[1]) == 1
        ):
            index = (
                int(known[1][0]) if len(known[0]) > 1 else 0
            )  # a single number is of all
            return (
                (known[0][index],) if -len(known[0]) <= index < len(known[0]) else None
            )
        case kind if kind in _BINARY:
            return _combine_elements(op, *known)

    return None


def _combine_elements(op: Op, left: Value, right: Value) -> Value | None:
    """Return the value of an element-wise op; a single number stands for equal ones."""
    count = max(len(left), len(right))
    if count > _MAX_ELEMENTS or {len(left), len(right)} - {1, count}:
        return None
    if op.type in _DIVISIONS and 0 in right:
        return None

    pairs = zip(
        left * (count // len(left) or 1),
        right * (count // len(right) or 1),
        strict=False,
    )
    function = _BINARY[op.type]
    return _as_type(tuple(function(a, b) for a, b in pairs), op)
