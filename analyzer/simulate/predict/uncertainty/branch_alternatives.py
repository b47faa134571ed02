"""What else could happen where the data decide: the other branches, and loops that go round once.

What is shown is what needs most of memory, for that is what has to fit; the stated range begins with
what needs least. Each alternative is one schedule played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.ops import LEAST_SHAPES
from analyzer.simulate.predict.executor.data_decisions import NOTHING_TOLD, Assumptions, Loop
from analyzer.simulate.predict.played_step import Draw, Prepared, play

MOST_PLAYED: Final = 12
"""Alternatives that are played: of many branches that the data decide, the first few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A branch or a loop that the data decide.

    Attributes:
        name: Name of the loop, or of the op that brings the branch's predicate.
        is_loop: Whether it is a loop.
        taken: Times that the loop goes round, or the branch: 0 for the first.
        bounded: Whether the loop's condition says how often it may go round at most.
        told: Whether the user told what to take.
        other_bytes: Requested peak with the loop once round, or another branch; None where not played.
    """

    name: str
    is_loop: bool
    taken: int
    bounded: bool = False
    told: bool = False
    other_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The graph with what is taken where the data decide.

    Attributes:
        prepared: The graph, with its assumptions.
        decisions: What the data decide, and what is taken.
        low_bytes, high_bytes: Least and highest requested peak of the alternatives; None without any.
    """

    prepared: Prepared
    decisions: tuple[Decision, ...] = ()
    low_bytes: int | None = None
    high_bytes: int | None = None


def decide(prepared: Prepared, told: Assumptions | None = None) -> Decided:
    """Return the alternative that needs most, and how far the others are from it.

    Args:
        prepared: The graph.
        told: What the user told: those stay.
    """
    told = told or NOTHING_TOLD
    best = told
    first = play(replace(prepared, assumed=best), 0)
    if not first.loops and not first.branches:
        return Decided(prepared=replace(prepared, assumed=best))
    top, played = first, [first]
    others: dict[str, int] = {}
    for name, way in islice(_ways(prepared, first, told), MOST_PLAYED):
        assumed = replace(best, branches={**best.branches, name: way})
        draw = play(replace(prepared, assumed=assumed), 0)
        played.append(draw)
        others[name] = draw.peak_bytes
        if draw.peak_bytes > top.peak_bytes:
            others[name] = top.peak_bytes
            best, top = assumed, draw
    for name in _open_loops(top.loops, told):
        trips = {**best.trips, name: 1}
        draw = play(replace(prepared, assumed=replace(best, trips=trips)), 0)
        played.append(draw)
        others[name] = draw.peak_bytes
    return Decided(
        prepared=replace(prepared, assumed=best),
        decisions=_decisions(prepared, top, best, told, others),
        low_bytes=min(draw.peak_bytes for draw in played),
        high_bytes=max(draw.peak_bytes for draw in played),
    )


def with_least_shapes(ops: Sequence[Op]) -> list[Op] | None:
    """Return the graph with one element where the most was taken; None where nothing was."""
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


def _ways(prepared: Prepared, first: Draw, told: Assumptions) -> list[tuple[str, int]]:
    """Return name and branch of every branch that was not taken."""
    names = {node: prepared.wiring.ops[node].name for node in first.branches}
    return [
        (names[node], way)
        for node, count in first.branches.items()
        for way in range(count)
        if names[node] not in told.branches and way != 1
    ]


def _decisions(
    prepared: Prepared,
    draw: Draw,
    best: Assumptions,
    told: Assumptions,
    others: Mapping[str, int],
) -> tuple[Decision, ...]:
    loops = [
        Decision(
            name=name,
            is_loop=True,
            taken=loop.trips,
            bounded=loop.bounded,
            told=name in told.trips,
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
                taken=best.branches.get(name, 1),
                told=name in told.branches,
                other_bytes=others.get(name),
            )
            for name in names
        ),
    )


def _open_loops(loops: Mapping[str, Loop], told: Assumptions) -> list[str]:
    return [name for name, loop in loops.items() if name not in told.trips and loop.trips > 1]
