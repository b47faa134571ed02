"""Execution of one node in a graph with control flow: its buffers, and the scalars that it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from analyzer.model.contract.graph_note import TensorSpec
from analyzer.simulate.predict.executor.data_decisions import DecisionLog, Entry, Iteration
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
from analyzer.simulate.predict.executor.sequential import NO_BUFFER, NodeRunner
from analyzer.simulate.predict.graph.edges import SWITCHES, Wiring

MERGES: Final = frozenset(("Merge", "RefMerge"))


class NodeExecution:
    """Computes the outputs of nodes.

    Args:
        runner: Runs nodes in memory.
        handles: For each node, the node behind the resource handle in its first input; -1 for none.
        variables: Values of integer variables by that node; the run changes them.
        decisions: Decides unknown predicates.
    """

    def __init__(
        self,
        wiring: Wiring,
        runner: NodeRunner,
        handles: Sequence[int],
        variables: dict[int, Value],
        decisions: DecisionLog,
    ) -> None:
        self._wiring = wiring
        self._runner = runner
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
        outputs = self._runner.compute(node, buffers)
        if kind in MERGES:
            live = next((k for k, entry in enumerate(slots) if entry is not None), 0)
            return [(outputs[0], values[live]), *((buffer, None) for buffer in outputs[1:])]
        if kind in SWITCHES:
            return self._switch(node, outputs, values, iteration)
        value = self._find_value(node, values, iteration, has_outputs=bool(outputs))
        if len(outputs) == 1:
            return [(outputs[0], value)]
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
        outputs = self._runner.compute(node, buffers, list_index(kind, values))
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
                self._runner.release(buffer)
        entries: list[Entry | None] = [None] * len(outputs)
        entries[branch] = (outputs[branch], values[0])
        return entries
