"""Branches and loops that the data decide: what is taken for them, and where that is said.

A loop whose condition holds a bound (``while i < limit and not done``) goes round as often as the bound
allows; one without goes round once. Which branch is taken is tried out by whoever asks for the run
(``branch_alternatives``). A number that was assumed counts as known
from there on: the
gradient of a branch is taken by the very predicate of the branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from analyzer.model.contract.graph_note import Op
from analyzer.model.graph.host_copies import COPY, COPY_BACK
from analyzer.simulate.predict.executor.loop_frames import Iteration
from analyzer.simulate.predict.executor.scalar_values import Value
from analyzer.simulate.predict.graph.edges import SWITCHES, Wiring

_HANDS_ON: Final = frozenset(
    (
        *("Identity", "Snapshot", "StopGradient", "PreventGradient", "Squeeze", "Reshape"),
        *("Enter", COPY, COPY_BACK),
    )
)
UNBOUNDED_TRIPS: Final = 1
"""Times that a loop goes round of which nothing tells how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What a run takes for what the data decide.

    Attributes:
        trips: Name of a loop -> times that it goes round, as far as its condition is not known.
        most_trips: The same of every other loop whose condition holds a bound; None for the bound.
        branches: Op that brings the predicate -> the branch taken; the second (true) of any other.
    """

    trips: Mapping[str, int] = field(default_factory=dict)
    most_trips: int | None = None
    branches: Mapping[str, int] = field(default_factory=dict)


NOTHING_TOLD: Final = Assumptions()


@dataclass(slots=True)
class Loop:
    """A loop whose condition could not be followed.

    Attributes:
        bounded: Whether its condition held a bound each time that it was asked.
        trips: Times that it went round.
    """

    bounded: bool = True
    trips: int = 0


class Deciding:
    """The decisions of one run.

    Args:
        wiring: The graph.
        assumed: What is taken.

    Attributes:
        loops: Name of a loop whose condition could not be followed -> what became of it.
        branches: Node that brings a predicate that could not be followed -> branches there are.
    """

    def __init__(self, wiring: Wiring, assumed: Assumptions) -> None:
        self._assumed = assumed
        self._ops = wiring.ops
        self._inputs = wiring.inputs
        self._ways = _predicates(wiring)
        self._conditions = _conditions(wiring)
        self.watched = frozenset(self._ways) | self._conditions
        self.loops: dict[str, Loop] = {}
        self.branches: dict[int, int] = {}

    def assume(
        self, node: int, values: Sequence[Value | None], iteration: Iteration
    ) -> Value | None:
        """Return what is taken for a watched node's value, which is not known.

        Args:
            node: Number of the node.
            values: Values of its inputs; None for one that is not known.
            iteration: The loop iteration that it runs in.
        """
        if node in self._conditions:
            # ``and`` of which one side is known: to be false would have decided it.
            iteration.bounded = iteration.bounded or any(value is not None for value in values)
            return None
        ways = self._ways[node]
        self.branches[node] = ways
        return (min(self._assumed.branches.get(self._ops[node].name, 1), ways - 1),)

    def goes_on(self, iteration: Iteration) -> bool:
        """Say whether a loop goes round once more whose condition is not known."""
        name, number = iteration.frame.name, iteration.number
        loop = self.loops.setdefault(name, Loop())
        loop.bounded = loop.bounded and iteration.bounded
        most = self._assumed.trips.get(name)
        if most is None:
            most = self._assumed.most_trips if iteration.bounded else UNBOUNDED_TRIPS
        more = most is None or number < most
        if more:
            loop.trips = max(loop.trips, number + 1)
        return more


def _predicates(wiring: Wiring) -> dict[int, int]:
    """Return, for each node that brings the predicate of a branch, how many branches there are."""
    ways: dict[int, int] = {}
    for node, op in enumerate(wiring.ops):
        if op.type not in SWITCHES:
            continue
        source = wiring.inputs[node][1][0]
        if wiring.ops[source].type == "LoopCond":
            continue
        count = len(op.outputs)
        ways[_origin(wiring.ops, wiring.inputs, source)] = count
        ways[source] = count
    return ways


def _origin(ops: Sequence[Op], inputs: Sequence[Sequence[tuple[int, int]]], node: int) -> int:
    while ops[node].type in _HANDS_ON and inputs[node]:
        node = inputs[node][0][0]
    return node


def _conditions(wiring: Wiring) -> frozenset[int]:
    """Return the nodes by which the conditions of loops join several ones."""
    found: set[int] = set()
    queue = [node for node, op in enumerate(wiring.ops) if op.type == "LoopCond"]
    while queue:
        for source, _ in wiring.inputs[queue.pop()]:
            kind = wiring.ops[source].type
            if kind == "LogicalAnd" and source not in found:
                found.add(source)
                queue.append(source)
            elif kind in _HANDS_ON - {"Enter"}:
                queue.append(source)
    return frozenset(found)
