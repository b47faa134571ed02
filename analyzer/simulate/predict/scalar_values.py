"""Values of the scalars that decide control flow: loop counters, step counters, branch predicates.

Only small tensors are evaluated, from constants and inputs of the step. An iterator has a next batch
(``OptionalHasValue`` in Keras 3.16's loop over steps). As in healthy training, computed floating-point
tensors are finite, so that loss scaling takes the updating branch, and no element equals the one number
that a whole tensor is compared with (Keras makes a sparse gradient dense if a denominator is zero).

Branches and loops that data decide are assumed: a loop whose condition includes a bound
(``while i < limit and not done``) runs as often as the bound allows; any other runs once. An assumed
predicate counts as known from then on: the gradient of a branch reads the same predicate.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from analyzer.model.contract.graph_note import Op, TensorSpec, op_types
from analyzer.model.graph.host_copies import COPY, COPY_BACK
from analyzer.simulate.predict.buffers import Tensor
from analyzer.simulate.predict.prepared_step import (
    MERGES,
    SWITCHES,
    TYPES,
    Prepared,
)

if TYPE_CHECKING:
    from analyzer.simulate.predict.executor import Iteration

Number = int | float
Value = tuple[Number, ...]  # a small tensor's elements, flat; booleans as 0 and 1

# Elements of the largest tensor that is evaluated; a note keeps as many of a constant.
_MAX_ELEMENTS = 64

_BINARY: dict[str, Callable[[Number, Number], Number]] = {
    **dict.fromkeys(("Add", "AddV2"), operator.add),
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

# Op types that one input can decide, and its deciding value.
_DECIDED_BY_ONE = {"LogicalAnd": 0, "LogicalOr": 1}

# Op types that bring in a number: a constant, or an input of the step (attribute ``value``).
_SOURCES = op_types("Const HostConst _Arg _DeviceArg")
_REDUCE: dict[str, Callable[[Value], Number]] = {
    "All": all,
    "Any": any,
    "Max": max,
    "Min": min,
}
_ASSUMED = {"IsFinite": 1, "IsInf": 0, "IsNan": 0, "OptionalHasValue": 1}
ASSIGNS = op_types("AssignVariableOp AssignAddVariableOp AssignSubVariableOp")

INDEXED = op_types(
    "TensorListGetItem TensorListReserve TensorListResize TensorListSetItem"
)
STORES = {
    "TensorListPushBack": 1,
    "TensorListSetItem": 2,
    "OptionalFromValue": 0,
}
LOADS = {"TensorListPopBack": 1, "TensorListGetItem": 0, "OptionalGetValue": 0}

# TensorList ops that take an index or a count, or that store or load a number. The backward pass of a
# loop pops the counter that its forward pass pushed. The backward pass of a branch takes the
# predicate of an inner branch from an optional.
LISTS = INDEXED | frozenset(STORES) | frozenset(LOADS)

# Op types whose value does not depend on the value of their first input.
INPUT_FREE = _SOURCES | op_types(
    "Equal IsFinite IsInf IsNan LogicalAnd LogicalOr NotEqual OptionalHasValue Shape"
)


def evaluate(
    op: Op,
    inputs: list[Value | None],
    specs: list[TensorSpec],
) -> Value | None:
    """Return the value of an op's first output; None if it is unknown."""
    kind = op.type
    if kind in _SOURCES or "value" in op.attrs:
        return _read_constant(op)
    if kind in _ASSUMED:
        return (_ASSUMED[kind],)

    if kind in ("Equal", "NotEqual"):
        floats = [spec for spec in specs if spec is not None and "float" in spec.dtype]
        are_numbers = sorted(spec.shape == () for spec in floats)

        if are_numbers == [False, True]:  # a tensor and one number
            return (int(kind == "NotEqual"),)

    if kind == "Shape":
        return None if specs[0] is None else specs[0].full_shape

    deciding = _DECIDED_BY_ONE.get(kind)
    if deciding is not None:
        is_scalar = op.outputs[0].shape == ()
        if is_scalar and (deciding,) in inputs:
            return (deciding,)

    known = [value for value in inputs if value is not None]
    if not inputs or inputs[0] is None:
        return None

    value = _evaluate_first(op, known[0])
    if value is None and len(known) == len(inputs):
        return _combine(op, known)

    return value


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

    elements = value.get("values")
    if "every" in value:
        elements = [value["every"]]

    if elements is None:
        return None

    numbers: list[Number] = []

    for element in elements:
        if not isinstance(element, int | float):
            return None

        is_whole = float(element).is_integer()
        numbers.append(int(element) if is_whole else float(element))

    return tuple(numbers)


def _as_type(value: Value, op: Op) -> Value | None:
    """Return numbers as the dtype of the op's first output has them; None for infinite ones."""
    dtype = op.outputs[0].dtype
    if not all(map(math.isfinite, value)):
        return None
    if dtype == "bool":
        return tuple(int(bool(x)) for x in value)
    if "int" in dtype:
        return tuple(int(x) for x in value)

    return value


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
    is_scalar = op.outputs[0].shape == ()
    if not is_scalar and len(value) > 1:
        return None

    return _as_type((_REDUCE[op.type](value),), op)


def _combine(op: Op, known: list[Value]) -> Value | None:
    """Return the value of an op that depends on several inputs."""
    if op.type in _BINARY:
        return _combine_elements(op, *known)

    is_element = op.type in ("StridedSlice", "TensorListGetItem")
    if not is_element or op.outputs[0].shape != () or len(known[1]) != 1:
        return None

    elements = known[0]
    index = int(known[1][0])
    if len(elements) <= 1:
        index = 0  # a single number is of all

    if not -len(elements) <= index < len(elements):
        return None

    return (elements[index],)


def _combine_elements(op: Op, left: Value, right: Value) -> Value | None:
    """Return the value of an element-wise op; a single number stands for equal ones."""
    count = max(len(left), len(right), 1)
    if count > _MAX_ELEMENTS or {len(left), len(right)} - {1, count}:
        return None
    if op.type in ("FloorDiv", "FloorMod") and 0 in right:
        return None

    left *= count // len(left)
    right *= count // len(right)
    function = _BINARY[op.type]

    return _as_type(tuple(map(function, left, right)), op)


class NodeValues:
    """Known values in one step: of nodes, of list elements, and of integer variables by node."""

    def __init__(self, prepared: Prepared, counters: dict[int, Value]) -> None:
        self._ops = prepared.ops
        self._prepared = prepared
        self._handles = prepared.handles
        self._counters = counters
        self._stored: dict[Any, Value | None] = {}  # values of buffers in lists

    def store(
        self,
        kind: str,
        buffers: list[Tensor],
        values: list[Value | None],
    ) -> int | None:
        """Store the number that an op adds to a list; return its index or count input."""
        place = STORES.get(kind)
        if place is not None and buffers[place] is not None:
            self._stored[buffers[place]] = values[place]

        if kind not in INDEXED:
            return None

        index = values[1]

        return int(index[0]) if index else None

    def find(
        self,
        node: int,
        outputs: list[Tensor],
        values: list[Value | None],
    ) -> list[Value | None]:
        """Return the known values of a node's first outputs."""
        op = self._ops[node]
        found: list[Value | None] = []

        if op.type in LISTS:
            loaded = LOADS.get(op.type)
            for output, buffer in enumerate(outputs):
                value = self._stored.get(buffer) if output == loaded else None
                found.append(value)

            if found != [None]:
                return found
        else:
            found = [self._access(node, values)]

        is_first_known = not values or values[0] is not None
        is_computable = is_first_known or op.type in INPUT_FREE or "value" in op.attrs
        may_evaluate = is_computable or op.type in LISTS

        if outputs and found == [None] and may_evaluate:
            return [evaluate(op, values, self._prepared.specs(node))]

        return found

    def _access(self, node: int, values: list[Value | None]) -> Value | None:
        """Return the value that a node reads from an integer variable; apply its assignment."""
        handle = self._handles[node]
        if handle not in self._counters:
            return None

        kind = self._ops[node].type
        old = self._counters[handle]

        if kind in ASSIGNS:
            change = values[1] if len(values) > 1 else None
            new = assign(kind, old, change)
            self._counters.pop(handle)

            if new is not None:
                self._counters[handle] = new

        return old if kind == "ReadVariableOp" else None


_PASSES_ON = {COPY, COPY_BACK} | op_types(
    "Identity Snapshot StopGradient PreventGradient Squeeze Reshape Enter"
)
UNBOUNDED_TRIPS = 1  # trips of a loop if its condition has no known bound


class DecisionLog:
    """Decides unknown predicates by assumption.

    ``trips`` are the trips of each loop with an unknown condition, ``unbounded`` the loops whose
    condition has no known bound, and ``branches`` the number of branches by the node of an unknown
    predicate. An unknown value of a ``watched`` node needs an assumption.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._assumed = prepared.assumed
        self._ops = prepared.ops
        self._branch_counts = _find_predicates(prepared)
        self.conditions = _find_conditions(prepared)
        self.watched = frozenset(self._branch_counts) | self.conditions
        self.trips: dict[str, int] = {}
        self.unbounded: set[str] = set()
        self.branches: dict[int, int] = {}

    def assume(
        self,
        node: int,
        values: Sequence[Value | None],
        iteration: Iteration,
    ) -> Value | None:
        """Return the assumed value of a watched node; None for part of a loop condition."""
        if node in self.conditions:
            # A false operand of ``and`` would have decided the value.
            is_known = any(value is not None for value in values)
            iteration.bounded = iteration.bounded or is_known

            return None

        iteration.frame.assumed = True
        name = self._ops[node].name
        count = self._branch_counts[node]
        self.branches[node] = count

        branch = min(self._assumed.get(name, 1), count - 1)

        return (branch,)

    def continue_loop(self, iteration: Iteration) -> bool:
        """Return whether a loop with an unknown condition makes another trip."""
        name = iteration.frame.name
        number = iteration.number

        if not iteration.bounded:
            self.unbounded.add(name)

        usual = None if iteration.bounded else UNBOUNDED_TRIPS
        most = self._assumed.get(name, usual)
        is_continued = most is None or number < most
        self.trips[name] = max(self.trips.get(name, 0), number + is_continued)

        return is_continued


def _find_predicates(prepared: Prepared) -> dict[int, int]:
    """Return the number of branches for each node that computes a branch's predicate."""
    counts: dict[int, int] = {}

    for node, op in enumerate(prepared.ops):
        if op.type not in SWITCHES:
            continue

        source = prepared.inputs[node][1][0]
        if prepared.ops[source].type != "LoopCond":
            counts[source] = len(op.outputs)
            while prepared.ops[source].type in _PASSES_ON and prepared.inputs[source]:
                source = prepared.inputs[source][0][0]

            counts[source] = len(op.outputs)

    return counts


def _find_conditions(prepared: Prepared) -> frozenset[int]:
    """Return the ``LogicalAnd`` nodes in the conditions of loops, and the ends of branches in them."""
    conditions: set[int] = set()
    queue = [node for node, op in enumerate(prepared.ops) if op.type == "LoopCond"]

    while queue:
        for source, _ in prepared.inputs[queue.pop()]:
            kind = prepared.ops[source].type
            if kind == "LogicalAnd" and source not in conditions:
                conditions.add(source)
                queue.append(source)
            elif kind in MERGES:
                conditions.add(source)
            elif kind in _PASSES_ON - {"Enter"}:
                queue.append(source)

    return frozenset(conditions)
