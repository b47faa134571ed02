"""Execution of one node in a graph with control flow, and decisions that data make.

A loop whose condition includes a bound (``while i < limit and not done``) runs as often as the bound
allows; any other runs once. ``uncertainty.decisions`` tries which branch needs most. An assumed
predicate counts as known from then on: the gradient of a branch reads the same predicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from analyzer.model.contract.graph_note import op_types
from analyzer.model.graph.host_copies import COPY, COPY_BACK
from analyzer.simulate.predict.executor.scalar_values import (
    ASSIGNS,
    INPUT_FREE,
    LISTS,
    ListScalars,
    Value,
    assign,
    evaluate,
)
from analyzer.simulate.predict.executor.threads import NO_BUFFER
from analyzer.simulate.predict.graph.edges import SWITCHES, Wiring

if TYPE_CHECKING:
    from analyzer.simulate.predict.buffers.reference_counts import Ledger
    from analyzer.simulate.predict.prepared_step import Prepared

MERGES: Final = frozenset(("Merge", "RefMerge"))

_PASSES_ON: Final = {COPY, COPY_BACK} | op_types(
    "Identity Snapshot StopGradient PreventGradient Squeeze Reshape Enter"
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
    assumed: bool = False  # whether the outcome of a branch in it was assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Assumed outcomes of decisions that data make."""

    # name of a loop -> its trips, as far as its condition is unknown
    trips: Mapping[str, int] = field(default_factory=dict)
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

    ``loops`` has loops with an unknown condition by name, ``branches`` the number of branches by
    the node of the unknown predicate. An unknown value of a ``watched`` node needs an assumption.
    """

    def __init__(self, wiring: Wiring, assumed: Assumptions) -> None:
        self._assumed = assumed
        self._ops = wiring.ops
        self._branch_counts = _find_predicates(wiring)
        self.conditions = _find_conditions(wiring)
        self.watched = frozenset(self._branch_counts) | self.conditions
        self.loops: dict[str, Loop] = {}
        self.branches: dict[int, int] = {}

    def assume(
        self, node: int, values: Sequence[Value | None], iteration: Iteration
    ) -> Value | None:
        """Return the assumed value of a watched node; None for part of a loop condition."""
        if node in self.conditions:
            # A false operand of ``and`` would have decided the value.
            iteration.bounded = iteration.bounded or any(value is not None for value in values)
            return None
        iteration.frame.assumed = True
        count = self._branch_counts[node]
        self.branches[node] = count
        return (min(self._assumed.branches.get(self._ops[node].name, 1), count - 1),)

    def continue_loop(self, iteration: Iteration) -> bool:
        """Return whether a loop with an unknown condition makes another trip."""
        name, number = iteration.frame.name, iteration.number
        loop = self.loops.setdefault(name, Loop())
        loop.bounded = loop.bounded and iteration.bounded
        most = self._assumed.trips.get(name, None if iteration.bounded else UNBOUNDED_TRIPS)
        is_taken = most is None or number < most
        loop.trips = max(loop.trips, number + is_taken)
        return is_taken


class NodeExecution:
    """Computes the outputs of nodes; the run changes ``variables``, values of integer variables."""

    def __init__(self, prepared: Prepared, ledger: Ledger, variables: dict[int, Value]) -> None:
        self._ledger = ledger
        self._handles = prepared.kernels.handles
        self._variables = variables
        self._ops, self._inputs = prepared.wiring.ops, prepared.wiring.inputs
        self._specs = cache(prepared.wiring.specs)
        self._in_lists = ListScalars()
        self.decisions = DecisionLog(prepared.wiring, prepared.assumed)

    def compute(
        self, node: int, slots: list[Entry | None], iteration: Iteration
    ) -> list[Entry | None]:
        """Run a node on its inputs and return its outputs; None for a dead tensor."""
        kind = self._ops[node].type
        values = [None if entry is None else entry[1] for entry in slots]
        buffers = [NO_BUFFER if entry is None else entry[0] for entry in slots]
        index = self._in_lists.store(kind, buffers, values) if kind in LISTS else None
        outputs = self._ledger.compute(node, buffers, index)
        if kind in SWITCHES:
            return self._switch(node, outputs, values, iteration)
        if kind in MERGES:
            value = next((entry[1] for entry in slots if entry is not None), None)
            if node in self.decisions.conditions and iteration.frame.assumed and value and value[0]:
                value = None  # a loop that an assumed branch continues would never end
            return [(outputs[0], value), *((buffer, None) for buffer in outputs[1:])]
        if kind in LISTS:
            found = [self._in_lists.load(kind, k, buffer) for k, buffer in enumerate(outputs)]
            if found == [None]:  # a list of a constant's elements has a value of its own
                found = [evaluate(self._ops[node], values, self._specs(node))]
        else:
            found = [self._access(node, values)]
            is_computable = not values or values[0] is not None or kind in INPUT_FREE
            is_computable |= "value" in self._ops[node].attrs
            if outputs and found == [None] and is_computable:
                found = [evaluate(self._ops[node], values, self._specs(node))]
        if found[:1] == [None] and node in self.decisions.watched:
            found[0] = self.decisions.assume(node, values, iteration)
        return [(buffer, found[k] if k < len(found) else None) for k, buffer in enumerate(outputs)]

    def _access(self, node: int, values: list[Value | None]) -> Value | None:
        """Return the value that a node reads from an integer variable; apply its assignment."""
        handle = self._handles[node]
        if handle not in self._variables:
            return None
        kind, old = self._ops[node].type, self._variables[handle]
        if kind in ASSIGNS:
            new = assign(kind, old, values[1] if len(values) > 1 else None)
            self._variables.pop(handle)
            if new is not None:
                self._variables[handle] = new
        return old if kind == "ReadVariableOp" else None

    def _switch(
        self, node: int, outputs: list[int], values: list[Value | None], iteration: Iteration
    ) -> list[Entry | None]:
        predicate, branch = values[1], 1
        if predicate is not None:
            branch = int(predicate[0])
        elif self._ops[self._inputs[node][1][0]].type == "LoopCond":
            branch = int(self.decisions.continue_loop(iteration))
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
            counts[source] = len(op.outputs)
            while wiring.ops[source].type in _PASSES_ON and wiring.inputs[source]:
                source = wiring.inputs[source][0][0]
            counts[source] = len(op.outputs)
    return counts


def _find_conditions(wiring: Wiring) -> frozenset[int]:
    """Return the ``LogicalAnd`` nodes in the conditions of loops, and the ends of branches in them."""
    conditions: set[int] = set()
    queue = [node for node, op in enumerate(wiring.ops) if op.type == "LoopCond"]
    while queue:
        for source, _ in wiring.inputs[queue.pop()]:
            kind = wiring.ops[source].type
            if kind == "LogicalAnd" and source not in conditions:
                conditions.add(source)
                queue.append(source)
            elif kind in MERGES:
                conditions.add(source)
            elif kind in _PASSES_ON - {"Enter"}:
                queue.append(source)
    return frozenset(conditions)
