"""A family's orders played at one size, and each buffer's bytes made a form of the size.

A few orders are played from the process's start; the others are a step that follows on one of them.
What their buffers take at other sizes, their kernels say (:mod:`analyzer.scaling.sizes_elsewhere`);
where they cannot, the order is played there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from analyzer.allocator import Sequence as Operations
from analyzer.parse.run_folder import RunNote
from analyzer.predict.buffers.draw_table import rows_of
from analyzer.predict.played_step import (
    STEPS,
    Draw,
    Owner,
    Prepared,
    play,
    prepare,
    prepare_alike,
)
from analyzer.predict.predicted_device import target_of
from analyzer.predict.predicted_recording import inter_op_drawn, owners_by_number
from analyzer.predict.process_table import Played, build_up_of, play_from_start
from analyzer.predict.schedules import draws_within
from analyzer.predict.startup import Made
from analyzer.predict.uncertainty.assumptions import assumptions_of
from analyzer.predict.uncertainty.branch_alternatives import decide
from analyzer.scaling.closed_forms import FormTable
from analyzer.scaling.scaled_orders import ScaledOrder, ScaledOrders
from analyzer.scaling.sizes_elsewhere import OtherSize, other_size
from analyzer.scaling.step_family import NotOneFamily, StepFamily

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]

DRAWS: Final = 7
"""Orders of each kind that are played: an odd number, so that one is the middle one."""

FEWEST: Final = 3
"""The same where each is much work."""

STARTS: Final = 3
"""Orders of each kind that are played from the process's start: one is taken for all."""

RUNS: Final = 120_000
"""Runs of ops that the orders together may take at one size, between three orders and all."""


def play_orders(
    family: StepFamily,
    sizes: Sequence[int],
    *,
    threads: int | None = None,
    inter_op: int | None = None,
    draws: int | None = None,
) -> ScaledOrders:
    """Play the step's orders at one size and make each buffer's bytes a form.

    Args:
        family: The steps.
        sizes: Some that differ, one more than the degree of the forms; the orders and their durations
            are those of the first.
        threads: Threads that one op may use; None for those of the machine that took the notes.
        inter_op: Threads that run ops side by side; None for that machine's, and one beside them.
        draws: Orders of each number of threads; None chooses by the size of the graph.

    Raises:
        NotOneFamily: the orders are not the same at each size, or a size is of no form.
    """
    first = _AtSize.of(family, sizes[0], threads, inter_op)
    others = [_elsewhere(family, size, first, threads) for size in sizes[1:]]
    kinds: dict[int, tuple[ScaledOrder, ...]] = {}
    inexact = 0.0
    for number in first.kinds:
        orders = []
        start = first.play(0, number) if draws == 1 else _usual_start(first, number)
        for seed in range(draws or first.draws):
            own = first.started.get((seed, number), start)
            order, share = _order(sizes, first, others, _Asked.of(first, own, seed, number))
            inexact = max(inexact, share)
            orders.append(order)
        kinds[number] = tuple(orders)
    return ScaledOrders(
        family=family,
        sizes=tuple(sizes),
        kinds=kinds,
        names=tuple(op.name for op in first.prepared.wiring.ops),
        target=target_of(family.notes[0]),
        inexact=inexact,
    )


@dataclass(frozen=True, slots=True)
class _AtSize:
    """The step at one size, ready to be played.

    Attributes:
        size: The size.
        note, prepared, owners: The step.
        kinds: Numbers of threads that run ops side by side, that of the figure first.
        draws: Orders of each.
        made: What there is before the first step.
        started: By seed and threads, orders that were played from the process's start.
        drawn: Those of which one step was played.
    """

    size: int
    note: RunNote
    prepared: Prepared
    owners: Mapping[int, Owner]
    kinds: tuple[int, ...]
    draws: int
    made: Sequence[Made]
    started: dict[tuple[int, int], Played] = field(default_factory=dict)
    drawn: dict[tuple[int, int], Draw] = field(default_factory=dict)

    @classmethod
    def of(
        cls, family: StepFamily, size: int, threads: int | None, inter_op: int | None
    ) -> _AtSize:
        note = family.at(size)
        target = target_of(note)
        owners = owners_by_number(note, target.device)
        prepared = prepare(
            note.ops,
            list(owners.values()),
            threads=threads or max(note.threads.intra_op, 1),
            device=target.device,
            steps=STEPS if note.steps_wanted is None else note.steps_wanted,
        )
        prepared = decide(prepared, assumptions_of(note)).prepared
        kinds = (inter_op,) if inter_op else inter_op_drawn(note.threads)
        kinds = prepared.threads_that_matter(kinds)
        draws = draws_within(RUNS, len(prepared.wiring.ops) * len(kinds), FEWEST, DRAWS)
        return cls(
            size=size,
            note=note,
            prepared=prepared,
            owners=owners,
            kinds=tuple(dict.fromkeys(kinds)),
            draws=min(draws, DRAWS),
            made=build_up_of(note, prepared).made,
        )

    def play_once(self, seed: int, threads: int) -> Draw:
        """Return one step of an order; several where each step may be another."""
        at = seed, threads
        if at not in self.drawn:
            self.drawn[at] = play(self.prepared, seed, threads=threads)
        return self.drawn[at]

    def play(self, seed: int, threads: int) -> Played:
        """Return an order from the process's start."""
        at = seed, threads
        if at not in self.started:
            self.started[at] = play_from_start(self.note, self.prepared, self.owners, seed, threads)
        return self.started[at]


def _usual_start(first: _AtSize, threads: int) -> Played:
    """Return a start of the process that is as large as most: orders without their own follow on it.

    Of the orders in the middle a few are played from the start, and of these the one with the middle
    peak before its last step is taken: a rare order in the first steps would be in most of them.

    Args:
        first: The step.
        threads: Threads that run ops side by side.
    """
    drawn = [first.play_once(seed, threads) for seed in range(first.draws)]
    ranked = [draw.seed for draw in sorted(drawn, key=lambda draw: draw.peak_bytes)]
    if any(len(draw.steps) > 1 for draw in drawn):
        return first.play(ranked[(len(ranked) - 1) // 2], threads)
    least = (len(ranked) - STARTS) // 2
    starts = [first.play(seed, threads) for seed in ranked[least : least + STARTS]]

    def before_last(start: Played) -> int:
        live = start.sequence().live_rounded_bytes()
        return int(live[: start.steps[-1].first].max(initial=0))

    return sorted(starts, key=before_last)[(len(starts) - 1) // 2]


def _elsewhere(
    family: StepFamily, size: int, first: _AtSize, threads: int | None
) -> tuple[_AtSize, OtherSize | None]:
    """Return the step at another size, and what tells the bytes of buffers there.

    That is None where each order has to be played there too.

    Args:
        family: The steps.
        size: The size.
        first: The step at the size that orders are played at.
        threads: Threads that one op may use; None for those of the machine that took the notes.

    Raises:
        NotOneFamily: it is another step there.
    """
    note = family.at(size)
    owners = owners_by_number(note, first.prepared.device)
    prepared = prepare_alike(
        first.prepared,
        note.ops,
        list(owners.values()),
        threads=threads or max(note.threads.intra_op, 1),
    )
    if prepared is None:
        raise NotOneFamily(f"other constants are computed beforehand at {size}")
    made = build_up_of(note, prepared).made
    here = replace(
        first,
        size=size,
        note=note,
        prepared=prepared,
        owners=owners,
        made=made,
        started={},
        drawn={},
    )
    lived = [[(one.born, one.dies, one.variable) for one in each] for each in (first.made, made)]
    return here, other_size(first.prepared, prepared) if lived[0] == lived[1] else None


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a process asks for that ends with one draw.

    Attributes:
        sequence: The requests.
        first, last: Operations of the last step.
        first_of_all: Operation that the first step begins with.
        start, draw: Whose buffers they are: those of the start before its last step, then the draw's.
        kept: Rows of the start that were born before its last step.
    """

    sequence: Operations
    first: int
    last: int
    first_of_all: int
    start: Played
    draw: Draw
    kept: NDArray[np.bool_]

    @classmethod
    def of(cls, at: _AtSize, start: Played, seed: int, threads: int) -> _Asked:
        draw = start.draw
        if seed != draw.seed:
            draw = at.play_once(seed, threads)
            if len(draw.steps) > 1:  # each step is another: it is played from the start
                start = at.play(seed, threads)
                draw = start.draw
        first_of_all = start.steps[0].first
        count = len(rows_of(start.draw.buffers)) + len(start.alone)
        if draw is start.draw:
            step = start.steps[-1]
            kept = np.ones(count, bool)
            return cls(start.sequence(), step.first, step.last, first_of_all, start, draw, kept)
        sequence, step = start.ended_with(draw)
        born = start.born + [start.grown.made[number].born for number in start.alone]
        kept = np.asarray(born, np.int64) < start.begins
        return cls(sequence, step.first, step.last, first_of_all, start, draw, kept)

    def by_row(self, of_buffers: Callable[[Draw], Sequence[int]], alone: Sequence[int]) -> Table:
        """Return something of each buffer of the sequence.

        Args:
            of_buffers: It for all buffers of a draw.
            alone: It for each buffer of the build-up alone.
        """
        values = of_buffers(self.start.draw)
        rows = [values[k] for k in rows_of(self.start.draw.buffers)] + list(alone)
        table = np.asarray(rows, np.int64)[self.kept]
        if self.draw is not self.start.draw:
            own, born = of_buffers(self.draw), self.draw.buffers.born
            made = [own[k] for k in rows_of(self.draw.buffers) if born[k] >= 0]
            table = np.concatenate([table, np.asarray(made, np.int64)])
        return np.asarray(table[self.sequence.row], np.int64)


def _order(
    sizes: Sequence[int],
    first: _AtSize,
    others: Sequence[tuple[_AtSize, OtherSize | None]],
    asked: _Asked,
) -> tuple[ScaledOrder, float]:
    """Return one order, and the share of its peak that the form through all but the last size is off by.

    Args:
        sizes: The sizes.
        first: The step at the first.
        others: At the others.
        asked: The order at the first.
    """
    sequence = asked.sequence
    rows = [sequence.requested_bytes]
    for other, told in others:
        bytes_ = None if told is None else _told_bytes(asked, first, other, told)
        rows.append(_played_bytes(asked, other) if bytes_ is None else bytes_)
    forms = FormTable.through(sizes, rows)
    others_say = FormTable.through(sizes[:-1], rows[:-1]).at(sizes[-1]) if others else rows[-1]
    off = np.abs(others_say - rows[-1])
    none = [-1] * len(asked.start.alone)
    order = ScaledOrder(
        threads=asked.draw.threads,
        operations=sequence,
        forms=forms,
        first=asked.first,
        last=asked.last,
        first_of_all=asked.first_of_all,
        nodes=asked.by_row(lambda draw: draw.buffers.node, none),
        is_variable=asked.by_row(lambda draw: draw.buffers.variable, none) >= 0,
    )
    return order, float(off.max(initial=0) / max(order.live_bytes(sizes[-1]).max(initial=1), 1))


def _told_bytes(asked: _Asked, first: _AtSize, other: _AtSize, told: OtherSize) -> Table | None:
    """Return the bytes of an order's buffers at another size; None where they cannot be told.

    Args:
        asked: The order.
        first: The step at the size that it was played at.
        other: The step here.
        told: What tells the bytes here.
    """
    known: dict[int, list[int]] = {}
    for draw in (asked.start.draw, asked.draw):
        sizes = told.bytes_of(draw.buffers, first.prepared)
        if sizes is None:
            return None
        known[id(draw)] = sizes
    alone = [other.made[number].size_bytes for number in asked.start.alone]
    return asked.by_row(lambda draw: known[id(draw)], alone)


def _played_bytes(asked: _Asked, other: _AtSize) -> Table:
    """Return the bytes of an order's buffers at another size, where it is played, too.

    Args:
        asked: The order.
        other: The step here.

    Raises:
        NotOneFamily: other buffers are asked for here.
    """
    seed, threads = asked.draw.seed, asked.draw.threads
    start = other.play(asked.start.draw.seed, threads)
    played, sequence = _Asked.of(other, start, seed, threads).sequence, asked.sequence
    if not np.array_equal(sequence.slot, played.slot) or not np.array_equal(
        sequence.request > 0, played.request > 0
    ):
        raise NotOneFamily(f"the ops ask for other buffers at {other.size} than elsewhere")
    return played.requested_bytes
