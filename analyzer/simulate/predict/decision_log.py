"""Branches and loops that data decide, in one run of the executor.

A loop whose condition includes a bound (``while i < limit and not done``) runs as often as the bound
allows; any other runs once. An assumed predicate counts as known from then on: the gradient of a branch
reads the same predicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from analyzer.model.contract.graph_note import op_types
from analyzer.model.graph.host_copies import COPY, COPY_BACK
from analyzer.simulate.predict.scalar_values import Value
from analyzer.simulate.predict.wiring import MERGES, SWITCHES, Wiring

if TYPE_CHECKING:
    from analyzer.simulate.predict.executor import Iteration

_PASSES_ON: Final = {COPY, COPY_BACK} | op_types(
    "Identity Snapshot StopGradient PreventGradient Squeeze Reshape Enter"
)
UNBOUNDED_TRIPS: Final = 1  # trips of a loop if its condition has no known bound


class DecisionLog:
    """Decides unknown predicates by assumption; ``assumed`` has trips and branches by name.

    ``trips`` are the trips of each loop with an unknown condition, ``unbounded`` the loops whose
    condition has no known bound, and ``branches`` the number of branches by the node of an unknown
    predicate. An unknown value of a ``watched`` node needs an assumption.
    """

    def __init__(self, wiring: Wiring, assumed: Mapping[str, int]) -> None:
        self._assumed = assumed
        self._ops = wiring.ops
        self._branch_counts = _find_predicates(wiring)
        self.conditions = _find_conditions(wiring)
        self.watched = frozenset(self._branch_counts) | self.conditions
        self.trips: dict[str, int] = {}
        self.unbounded: set[str] = set()
        self.branches: dict[int, int] = {}

    def assume(
        self, node: int, values: Sequence[Value | None], iteration: Iteration
    ) -> Value | None:
        """Return the assumed value of a watched node; None for part of a loop condition."""
        if node in self.conditions:
            # A false operand of ``and`` would have decided the value.
            iteration.bounded = iteration.bounded or any(
                value is not None for value in values
            )
            return None

        iteration.frame.assumed = True
        count = self._branch_counts[node]
        self.branches[node] = count

        return (min(self._assumed.get(self._ops[node].name, 1), count - 1),)

    def continue_loop(self, iteration: Iteration) -> bool:
        """Return whether a loop with an unknown condition makes another trip."""
        name, number = iteration.frame.name, iteration.number
        if not iteration.bounded:
            self.unbounded.add(name)

        most = self._assumed.get(name, None if iteration.bounded else UNBOUNDED_TRIPS)
        is_continued = most is None or number < most
        self.trips[name] = max(self.trips.get(name, 0), number + is_continued)

        return is_continued


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
