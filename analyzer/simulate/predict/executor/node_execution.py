"""One node's turn where there are branches and loops: its buffers, and the numbers that are followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from analyzer.model.contract.graph_note import TensorSpec
from analyzer.simulate.predict.executor.data_decisions import Deciding
from analyzer.simulate.predict.executor.loop_frames import Entry, Iteration
from analyzer.simulate.predict.executor.scalar_values import (
    ASSIGNS,
    LISTS,
    UNASKED,
    InLists,
    Value,
    assigned,
    follow,
    index_of,
)
from analyzer.simulate.predict.executor.sequential import NO_BUFFER, NodeRunner
from analyzer.simulate.predict.graph.edges import SWITCHES, Wiring

MERGES: Final = frozenset(("Merge", "RefMerge"))


class Computing:
    """What the nodes' turns give.

    Args:
        wiring: The graph.
        machine: What each node's turn does to memory.
        handles: For each node, the node that brings in the handle in its first input; -1 for none.
        variables: Values of the whole-number variables, by that node; changed by the run.
        deciding: What is taken for predicates that are not known.
    """

    def __init__(
        self,
        wiring: Wiring,
        machine: NodeRunner,
        handles: Sequence[int],
        variables: dict[int, Value],
        deciding: Deciding,
    ) -> None:
        self._wiring = wiring
        self._machine = machine
        self._handles = handles
        self._variables = variables
        self._deciding = deciding
        self._types = [op.type for op in wiring.ops]
        self._specs: dict[int, list[TensorSpec | None]] = {}
        self._in_lists = InLists()

    def outputs(
        self, node: int, slots: list[Entry | None], iteration: Iteration
    ) -> list[Entry | None]:
        """Run the node on its inputs and return its outputs; None for one that is dead.

        Args:
            node: Number of the node.
            slots: Buffer and value on each input; None for a dead one.
            iteration: The loop iteration that it runs in.
        """
        op = self._wiring.ops[node]
        values = [None if entry is None else entry[1] for entry in slots]
        buffers = [NO_BUFFER if entry is None else entry[0] for entry in slots]
        if self._types[node] in MERGES:
            taken = next((k for k, entry in enumerate(slots) if entry is not None), 0)
            made = self._machine.compute(node, buffers)
            return [(made[0], values[taken]), *((b, None) for b in made[1:])]
        if op.type in LISTS:
            return self._compute_list(node, op.type, buffers, values, iteration)
        made = self._machine.compute(node, buffers)
        if op.type in SWITCHES:
            return self._switch(node, made, values, iteration)
        value = self._variable_value(node, values)
        is_told = not values or values[0] is not None or op.type in UNASKED
        if value is None and made and is_told:
            if node not in self._specs:
                self._specs[node] = self._wiring.specs(node)
            value = follow(op, values, self._specs[node])
        if value is None and node in self._deciding.watched:
            value = self._deciding.assume(node, values, iteration)
        if len(made) == 1:
            return [(made[0], value)]
        return [(buffer, value if k == 0 else None) for k, buffer in enumerate(made)]

    def _compute_list(
        self,
        node: int,
        kind: str,
        buffers: list[int],
        values: list[Value | None],
        iteration: Iteration,
    ) -> list[Entry | None]:
        self._in_lists.join(kind, buffers, values)
        made = self._machine.compute(node, buffers, index_of(kind, values))
        told = [self._in_lists.leave(kind, k, buffer) for k, buffer in enumerate(made)]
        if told[:1] == [None] and node in self._deciding.watched:
            told[0] = self._deciding.assume(node, values, iteration)
        return list(zip(made, told, strict=True))

    def _variable_value(self, node: int, values: list[Value | None]) -> Value | None:
        handle = self._handles[node]
        if handle not in self._variables:
            return None
        kind, old = self._types[node], self._variables[handle]
        if kind == "ReadVariableOp":
            return old
        if kind in ASSIGNS:
            new = assigned(kind, old, values[1] if len(values) > 1 else None)
            if new is None:
                self._variables.pop(handle)
            else:
                self._variables[handle] = new
        return None

    def _switch(
        self, node: int, made: list[int], values: list[Value | None], iteration: Iteration
    ) -> list[Entry | None]:
        predicate = values[1]
        if predicate is not None:
            taken = int(predicate[0])
        elif self._types[self._wiring.inputs[node][1][0]] == "LoopCond":
            taken = int(self._deciding.goes_on(iteration))
        else:
            taken = 1
        if not 0 <= taken < len(made):  # as ``SwitchNOp`` does; the others take no other number
            taken = len(made) - 1
        for way, buffer in enumerate(made):
            if way != taken and buffer >= 0:
                self._machine.release(buffer)
        entries: list[Entry | None] = [None] * len(made)
        entries[taken] = (made[taken], values[0])
        return entries
