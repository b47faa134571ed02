"""Execution of one node in a graph with control flow, and decisions that data make.

A loop whose condition includes a bound (``while i < limit and not done``) runs as often as the bound
allows; any other runs once. ``uncertainty.decisions`` tries which branch needs most. An assumed
predicate counts as known from then on: the gradient of a branch reads the same predicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.host_copies import COPY, COPY_BACK
from analyzer.simulate.predict.executor.scalar_values import (
    ASSIGNS,
    INPUT_FREE,
    LISTS,
    ListScalars,
    Value,
    assign,
    evaluate,
    list_index,
)
from analyzer.simulate.predict.executor.threads import NO_BUFFER
from analyzer.simulate.predict.graph.edges import SWITCHES, Wiring

if TYPE_CHECKING:
    from analyzer.simulate.predict.buffers.reference_counts import Ledger

MERGES: Final = frozenset(("Merge", "RefMerge"))

_PASSES_ON: Final = frozenset(
    (
        *("Identity", "Snapshot", "StopGradient", "PreventGradient", "Squeeze", "Reshape"),
        *("Enter", COPY, COPY_BACK),
    )
)
UNBOUNDED_TRIPS: Final = 1  # trips of a loop if its condition has no known bound
Entry = tuple[int, Value | None]  # a live tensor: its buffer, and its value if it is known


@dataclass(eq=False, slots=True)
class Iteration:
    """One iteration of a loop (``IterationState`` in ``propagator_state.h``)."""

    frame: Frame
    number: int
    slots: dict[int, list[Entry | None]] = field(default_factory=dict)
    # for each node that has received an input, the number of inputs it still waits for
    pending: dict[int, int] = field(default_factory=dict)
    # for each node, the number of its dead inputs
    dead: dict[int, int] = field(default_factory=dict)
    outstanding: int = 0
    frames: int = 0  # number of unfinished loops inside it
    bounded: bool = False  # whether only some operands of the loop condition's ``and`` were unknown


@dataclass(eq=False, slots=True)
class Frame:
    """A loop, or the graph itself (``FrameState`` in ``propagator_state.h``)."""

    name: str
    parent: Iteration | None  # the iteration that entered it; None for the graph
    pending_inputs: int  # number of ``Enter`` nodes that have not run
    parallel: int  # number of iterations that may run at once
    iterations: dict[int, Iteration] = field(default_factory=dict)
    count: int = 0
    # loops inside it, by iteration and name
    children: dict[tuple[int, str], Frame] = field(default_factory=dict)
    # inputs of an iteration that has to wait
    deferred: list[tuple[int, Entry]] = field(default_factory=list)
    invariants: list[tuple[int, Entry]] = field(default_factory=list)
    dead_exits: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Assumed outcomes of decisions that data make."""

    # name of a loop -> its trips, as far as its condition is unknown
    trips: Mapping[str, int] = field(default_factory=dict)
    most_trips: int | None = None  # trips of every other bounded loop; None for its bound
    # op that computes the predicate -> branch index; 1 (true) for any other
    branches: Mapping[str, int] = field(default_factory=dict)


NO_ASSUMPTIONS: Final = Assumptions()


@dataclass(slots=True)
class Loop:
    """A loop whose condition is unknown."""

    bounded: bool = True  # whether its condition had a bound at every evaluation
    trips: int = 0


class DecisionLog:
    """Decides unknown predicates of one run by assumption, and logs them.

    Attributes:
        loops: Name of each loop with an unknown condition -> its outcome.
        branches: Node of each unknown predicate -> number of branches.
        watched: Nodes whose unknown value needs an assumption.
    """

    def __init__(self, wiring: Wiring, assumed: Assumptions) -> None:
        self._assumed = assumed
        self._ops = wiring.ops
        self._branch_counts = _find_predicates(wiring)
        self._conditions = _find_conjunctions(wiring)
        self.watched = frozenset(self._branch_counts) | self._conditions
        self.loops: dict[str, Loop] = {}
        self.branches: dict[int, int] = {}

    def assume(
        self, node: int, values: Sequence[Value | None], iteration: Iteration
    ) -> Value | None:
        """Return the assumed value of a watched node; None for part of a loop condition."""
        if node in self._conditions:
            # A false operand of ``and`` would have decided the value.
            iteration.bounded = iteration.bounded or any(value is not None for value in values)
            return None
        count = self._branch_counts[node]
        self.branches[node] = count
        return (min(self._assumed.branches.get(self._ops[node].name, 1), count - 1),)

    def continue_loop(self, iteration: Iteration) -> bool:
        """Return whether a loop with an unknown condition makes another trip."""
        name, number = iteration.frame.name, iteration.number
        loop = self.loops.setdefault(name, Loop())
        loop.bounded = loop.bounded and iteration.bounded
        most = self._assumed.trips.get(name)
        if most is None:
            most = self._assumed.most_trips if iteration.bounded else UNBOUNDED_TRIPS
        is_taken = most is None or number < most
        if is_taken:
            loop.trips = max(loop.trips, number + 1)
        return is_taken


class NodeExecution:
    """Computes the outputs of nodes; the first arguments are those of ``ControlExecutor``."""

    def __init__(
        self,
        wiring: Wiring,
        ledger: Ledger,
        handles: Sequence[int],
        variables: dict[int, Value],
        decisions: DecisionLog,
    ) -> None:
        self._wiring = wiring
        self._ledger = ledger
        self._handles = handles
        self._variables = variables
        self._decisions = decisions
        self._types = [op.type for op in wiring.ops]
        self._specs: dict[int, list[TensorSpec | None]] = {}
        self._in_lists = ListScalars()

    def compute(
        self, node: int, slots: list[Entry | None], iteration: Iteration
    ) -> list[Entry | None]:
        """Run a node on its inputs and return its outputs; None for a dead tensor."""
        kind = self._types[node]
        values = [None if entry is None else entry[1] for entry in slots]
        buffers = [NO_BUFFER if entry is None else entry[0] for entry in slots]
        if kind in LISTS:
            return self._compute_list(node, kind, buffers, values, iteration)
        outputs = self._ledger.compute(node, buffers)
        if kind in MERGES:
            live = next((k for k, entry in enumerate(slots) if entry is not None), 0)
            return [(outputs[0], values[live]), *((buffer, None) for buffer in outputs[1:])]
        if kind in SWITCHES:
            return self._switch(node, outputs, values, iteration)
        value = self._find_value(node, values, iteration, has_outputs=bool(outputs))
        return [(buffer, value if k == 0 else None) for k, buffer in enumerate(outputs)]

    def _find_value(
        self, node: int, values: list[Value | None], iteration: Iteration, *, has_outputs: bool
    ) -> Value | None:
        """Return the value of a node's first output: read, computed or assumed; None if unknown."""
        value = self._variable_value(node, values)
        is_computable = not values or values[0] is not None or self._types[node] in INPUT_FREE
        if value is None and has_outputs and is_computable:
            if node not in self._specs:
                self._specs[node] = self._wiring.specs(node)
            value = evaluate(self._wiring.ops[node], values, self._specs[node])
        if value is None and node in self._decisions.watched:
            value = self._decisions.assume(node, values, iteration)
        return value

    def _compute_list(
        self,
        node: int,
        kind: str,
        buffers: list[int],
        values: list[Value | None],
        iteration: Iteration,
    ) -> list[Entry | None]:
        self._in_lists.store(kind, buffers, values)
        outputs = self._ledger.compute(node, buffers, list_index(kind, values))
        scalars = [self._in_lists.load(kind, k, buffer) for k, buffer in enumerate(outputs)]
        if scalars[:1] == [None] and node in self._decisions.watched:
            scalars[0] = self._decisions.assume(node, values, iteration)
        return list(zip(outputs, scalars, strict=True))

    def _variable_value(self, node: int, values: list[Value | None]) -> Value | None:
        """Return the value that a node reads from an integer variable; apply its assignment."""
        handle = self._handles[node]
        if handle not in self._variables:
            return None
        kind, old = self._types[node], self._variables[handle]
        if kind == "ReadVariableOp":
            return old
        if kind in ASSIGNS:
            new = assign(kind, old, values[1] if len(values) > 1 else None)
            if new is None:
                self._variables.pop(handle)
            else:
                self._variables[handle] = new
        return None

    def _switch(
        self, node: int, outputs: list[int], values: list[Value | None], iteration: Iteration
    ) -> list[Entry | None]:
        predicate = values[1]
        if predicate is not None:
            branch = int(predicate[0])
        elif self._types[self._wiring.inputs[node][1][0]] == "LoopCond":
            branch = int(self._decisions.continue_loop(iteration))
        else:
            branch = 1
        if not 0 <= branch < len(outputs):  # as ``SwitchNOp``; other switches have no such index
            branch = len(outputs) - 1
        for index, buffer in enumerate(outputs):
            if index != branch and buffer >= 0:
                self._ledger.release(buffer)
        entries: list[Entry | None] = [None] * len(outputs)
        entries[branch] = (outputs[branch], values[0])
        return entries


def _find_predicates(wiring: Wiring) -> dict[int, int]:
    """Return the number of branches for each node that computes a branch's predicate."""
    counts: dict[int, int] = {}
    for node, op in enumerate(wiring.ops):
        if op.type not in SWITCHES:
            continue
        source = wiring.inputs[node][1][0]
        if wiring.ops[source].type != "LoopCond":
            counts[_trace_back(wiring.ops, wiring.inputs, source)] = len(op.outputs)
            counts[source] = len(op.outputs)
    return counts


def _trace_back(ops: Sequence[Op], inputs: Sequence[Sequence[tuple[int, int]]], node: int) -> int:
    while ops[node].type in _PASSES_ON and inputs[node]:
        node = inputs[node][0][0]
    return node


def _find_conjunctions(wiring: Wiring) -> frozenset[int]:
    """Return the ``LogicalAnd`` nodes in the conditions of loops."""
    conjunctions: set[int] = set()
    queue = [node for node, op in enumerate(wiring.ops) if op.type == "LoopCond"]
    while queue:
        for source, _ in wiring.inputs[queue.pop()]:
            kind = wiring.ops[source].type
            if kind == "LogicalAnd" and source not in conjunctions:
                conjunctions.add(source)
                queue.append(source)
            elif kind in _PASSES_ON - {"Enter"}:
                queue.append(source)
    return frozenset(conjunctions)
