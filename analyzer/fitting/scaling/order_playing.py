"""A family's orders played at one size, and each buffer's bytes made a form of the size.

They are the orders that an estimate at that size looks at: the same draws, which follow on the same
starts of the process. What their buffers take at other sizes, their kernels say
(``sizes_elsewhere``); where they cannot, a few are played there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from analyzer.fitting.scaling.closed_forms import FormTable
from analyzer.fitting.scaling.scaled_orders import ScaledOrder, ScaledOrders
from analyzer.fitting.scaling.sizes_elsewhere import OtherSize, other_size
from analyzer.fitting.scaling.step_family import NotOneFamily, StepFamily
from analyzer.simulate.allocator import Sequence as Operations
from analyzer.simulate.predict.buffers.draw_table import rows_of
from analyzer.simulate.predict.played_step import (
    STEPS,
    Draw,
    Owner,
    Prepared,
    play,
    prepare_alike,
)
from analyzer.simulate.predict.predicted_device import target_of
from analyzer.simulate.predict.predicted_recording import inter_op_drawn, left_out, owners_by_number
from analyzer.simulate.predict.process_table import Played, build_up_of, play_from_start
from analyzer.simulate.predict.representative import beginnings
from analyzer.simulate.predict.schedules import predict
from analyzer.simulate.predict.startup import Made
from analyzer.simulate.predict.uncertainty.assumptions import assumptions_of
from analyzer.tracing.parse.run_folder import RunNote

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]

_SIZES_KEPT: Final = 64
"""Sizes at which a step is kept that was made by forms."""

_REPLAYS: Final = 14
"""Replays of each order that a search takes: 580 of 41 orders were counted."""

PLAYED_ANEW: Final = 9
"""Orders at most that are played at each size, where kernels cannot tell their bytes there."""


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
        draws: Orders to draw, with the figure's threads alone; None for those that an estimate at the
            first size looks at.

    Raises:
        NotOneFamily: the orders are not the same at each size, or a size is of no form.
    """
    first = _AtSize.of(family, sizes[0], threads, inter_op, draws)
    others = [_elsewhere(family, size, first, threads) for size in sizes[1:]]
    kinds: dict[int, list[ScaledOrder]] = {number: [] for number in first.kinds}
    inexact = 0.0
    chosen = first.chosen(is_told=all(told is not None for _, told in others))
    for seed, number in chosen:
        start = first.follows[seed, number]
        if number != first.kinds[0]:  # a process with other threads has them from its start on
            start = first.play(seed, number)
        asked = _Asked.of(first, start, seed, number)
        order, share = _order(sizes, first, others, asked)
        inexact = max(inexact, share)
        kinds[number].append(replace(order, replays=max(order.replays, _REPLAYS * len(chosen))))
    return ScaledOrders(
        family=family,
        sizes=tuple(sizes),
        kinds={number: tuple(orders) for number, orders in kinds.items()},
        names=tuple(op.name for op in first.prepared.wiring.ops),
        target=target_of(family.notes[0]),
        inexact=inexact,
        left_out=first.left_out,
    )


@dataclass(frozen=True, slots=True)
class _AtSize:
    """The step at one size, ready to be played.

    Attributes:
        size: The size.
        note, prepared, owners: The step.
        made: What there is before the first step.
        follows: Orders by seed and threads, and what each follows on; those with the threads of the
            figure first.
        started: By seed and threads, orders that were played from the process's start.
        drawn: Those of which one step was played.
        told: By ``id`` of a draw at the first size, the bytes of its buffers here.
        left_out: What is said of ops of which it is not known what they take.
    """

    size: int
    note: RunNote
    prepared: Prepared
    owners: Mapping[int, Owner]
    made: Sequence[Made]
    follows: Mapping[tuple[int, int], Played]
    started: dict[tuple[int, int], Played] = field(default_factory=dict)
    drawn: dict[tuple[int, int], Draw] = field(default_factory=dict)
    told: dict[int, list[int]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        family: StepFamily,
        size: int,
        threads: int | None,
        inter_op: int | None,
        draws: int | None,
    ) -> _AtSize:
        """Return the step with the orders that an estimate looks at.

        Args:
            family, size, threads, inter_op, draws: As for ``play_orders``.
        """
        note = family.at(size)
        target = target_of(note)
        owners = owners_by_number(note, target.device)
        kinds = (inter_op,) if inter_op else inter_op_drawn(note.threads)
        prediction = predict(
            note.ops,
            list(owners.values()),
            threads=threads or max(note.threads.intra_op, 1),
            inter_op=kinds if draws is None else kinds[:1],
            device=target.device,
            steps=STEPS if note.steps_wanted is None else note.steps_wanted,
            told=assumptions_of(note),
            draws=draws,
        )
        follows = beginnings(note, prediction, owners)
        begun = {(start.draw.seed, start.draw.threads): start for start in follows.values()}
        return cls(
            size=size,
            note=note,
            prepared=prediction.prepared,
            owners=owners,
            made=build_up_of(note, prediction.prepared).made,
            follows=follows,
            started=begun,
            drawn=dict(prediction.candidates),
            left_out=left_out(prediction, next(iter(prediction.candidates.values()))),
        )

    @property
    def kinds(self) -> tuple[int, ...]:
        """Numbers of threads that run ops side by side, that of the figure first."""
        return tuple(dict.fromkeys(number for _, number in self.follows))

    def chosen(self, *, is_told: bool) -> list[tuple[int, int]]:
        """Return seed and threads of the orders to give.

        Args:
            is_told: Whether their bytes at other sizes are told; else each is played there again.
        """
        main = self.kinds[0]
        own = [at for at in self.follows if at[1] == main]
        if not is_told and len(own) > PLAYED_ANEW:
            even = np.linspace(0, len(own) - 1, PLAYED_ANEW).round().astype(int)
            own = [own[at] for at in even]
        return own + [at for at in self.follows if at[1] != main]

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
        told={},
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
        if (seed, threads) != (draw.seed, draw.threads):
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
        seed=asked.draw.seed,
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
    known = other.told
    for draw in (asked.start.draw, asked.draw):
        if id(draw) not in known:
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
    start = other.play(asked.start.draw.seed, asked.start.draw.threads)
    played, sequence = _Asked.of(other, start, seed, threads).sequence, asked.sequence
    if not np.array_equal(sequence.slot, played.slot) or not np.array_equal(
        sequence.request > 0, played.request > 0
    ):
        raise NotOneFamily(f"the ops ask for other buffers at {other.size} than elsewhere")
    return played.requested_bytes
