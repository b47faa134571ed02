"""Alternative outcomes of branches and loops that data decide.

The outcome that needs most memory is shown, because it has to fit. The range starts at the outcome that
needs least. Each alternative is one schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.ops import LEAST_SHAPES
from analyzer.model.ranges import Range
from analyzer.simulate.predict.executor.data_decisions import NO_ASSUMPTIONS, Assumptions, Loop
from analyzer.simulate.predict.played_step import Draw, play
from analyzer.simulate.predict.prepared_step import Prepared

MOST_ALTERNATIVES: Final = 12
"""Most alternatives to try: the first branches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A branch or a loop that data decide.

    Attributes:
        name: Name of the loop, or of the op that computes the branch's predicate.
        is_loop: Whether it is a loop.
        outcome: Trips of the loop, or index of the branch.
        bounded: Whether the loop's condition has a bound.
        by_user: Whether the user chose the outcome.
        other_bytes: Requested peak with one trip, or with another branch; None if not tried.
    """

    name: str
    is_loop: bool
    outcome: int
    bounded: bool = False
    by_user: bool = False
    other_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A graph with assumed outcomes for its decisions.

    Attributes:
        prepared: The graph, with its assumptions.
        decisions: The decisions and their outcomes.
        peaks: Requested peaks of the alternatives; None without any.
    """

    prepared: Prepared
    decisions: tuple[Decision, ...] = ()
    peaks: Range | None = None


def decide(prepared: Prepared, by_user: Assumptions | None = None) -> Decided:
    """Return the alternative that needs most memory, with the peaks of all.

    Args:
        by_user: The user's assumptions; they stay.
    """
    by_user = by_user or NO_ASSUMPTIONS
    best = by_user
    first = play(replace(prepared, assumed=best), 0)
    if not first.loops and not first.branches:
        return Decided(prepared=replace(prepared, assumed=best))
    top, tried = first, [first]
    others: dict[str, int] = {}
    for name, branch in islice(_other_branches(prepared, first, by_user), MOST_ALTERNATIVES):
        assumed = replace(best, branches={**best.branches, name: branch})
        draw = play(replace(prepared, assumed=assumed), 0)
        tried.append(draw)
        others[name] = draw.peak_bytes
        if draw.peak_bytes > top.peak_bytes:
            others[name] = top.peak_bytes
            best, top = assumed, draw
    for name in _open_loops(top.loops, by_user):
        trips = {**best.trips, name: 1}
        draw = play(replace(prepared, assumed=replace(best, trips=trips)), 0)
        tried.append(draw)
        others[name] = draw.peak_bytes
    return Decided(
        prepared=replace(prepared, assumed=best),
        decisions=_describe(prepared, top, best, by_user, others),
        peaks=Range.spanning(draw.peak_bytes for draw in tried),
    )


def with_least_shapes(ops: Sequence[Op]) -> list[Op] | None:
    """Return the graph with one element for each data-dependent size; None without any."""
    if not any(LEAST_SHAPES in op.attrs for op in ops):
        return None
    return [
        replace(
            op,
            outputs=tuple(
                TensorSpec(spec.dtype, None if shape is None else tuple(shape))
                for spec, shape in zip(op.outputs, op.attrs[LEAST_SHAPES], strict=False)
            ),
        )
        if LEAST_SHAPES in op.attrs
        else op
        for op in ops
    ]


def _other_branches(prepared: Prepared, first: Draw, by_user: Assumptions) -> list[tuple[str, int]]:
    """Return predicate and index of every branch that was not taken."""
    names = {node: prepared.wiring.ops[node].name for node in first.branches}
    return [
        (names[node], branch)
        for node, count in first.branches.items()
        for branch in range(count)
        if names[node] not in by_user.branches and branch != 1
    ]


def _describe(
    prepared: Prepared,
    draw: Draw,
    best: Assumptions,
    by_user: Assumptions,
    others: Mapping[str, int],
) -> tuple[Decision, ...]:
    loops = [
        Decision(
            name=name,
            is_loop=True,
            outcome=loop.trips,
            bounded=loop.bounded,
            by_user=name in by_user.trips,
            other_bytes=others.get(name),
        )
        for name, loop in draw.loops.items()
    ]
    names = [prepared.wiring.ops[node].name for node in draw.branches]
    return (
        *loops,
        *(
            Decision(
                name=name,
                is_loop=False,
                outcome=best.branches.get(name, 1),
                by_user=name in by_user.branches,
                other_bytes=others.get(name),
            )
            for name in names
        ),
    )


def _open_loops(loops: Mapping[str, Loop], by_user: Assumptions) -> list[str]:
    """Return the loops with several trips that the user did not choose."""
    return [name for name, loop in loops.items() if name not in by_user.trips and loop.trips > 1]
