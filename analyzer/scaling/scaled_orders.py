"""Orders of a step whose requests are closed forms of a size: any size is a replay, no new capture.

The executor's order does not depend on how large tensors are but for the durations that several threads
are simulated with; those are taken at one size. So one order, played at two or three sizes, asks for the
same buffers in the same order, and each buffer's bytes become a form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from analyzer.allocator import BfcOptions, Engine
from analyzer.allocator import Sequence as Operations
from analyzer.allocator.bfc.bfc_options import round_up_all
from analyzer.allocator.replay import choose, in_use_bytes
from analyzer.allocator.sequence_runner import allocator_of, feed_sparing
from analyzer.parse.run_folder import RunNote
from analyzer.predict.buffers.draw_table import rows_of
from analyzer.predict.played_step import STEPS, Owner, Prepared, prepare
from analyzer.predict.predicted_device import Target, target_of
from analyzer.predict.predicted_recording import inter_op_drawn, owners_by_number
from analyzer.predict.process_table import Played, play_from_start
from analyzer.predict.uncertainty.assumptions import assumptions_of
from analyzer.predict.uncertainty.branch_alternatives import decide
from analyzer.scaling.closed_forms import FormTable
from analyzer.scaling.step_family import NotOneFamily, StepFamily

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]

DRAWS: Final = 7
"""ScaledOrders of each kind that are played: an odd number, so that one is the middle one."""

RUNS: Final = 120_000
"""Runs of ops that the orders together may take at one size, between three orders and all."""


@dataclass(frozen=True, slots=True)
class ScaledOrder:
    """One order that the executor could take, at any size.

    Attributes:
        threads: Threads that run ops side by side.
        operations: What is asked for in it, from the process's start; the bytes are those of one size.
        forms: Bytes of each buffer.
        first, last: Operations of the last step.
        first_of_all: First operation of the first step.
        nodes: The op that asks for each buffer; -1 for what was there before the steps.
        is_variable: Whether each buffer is a variable's value.
    """

    threads: int
    operations: Operations
    forms: FormTable
    first: int
    last: int
    first_of_all: int
    nodes: Table
    is_variable: NDArray[np.bool_]

    def at(self, size: int) -> Operations:
        """Return what is asked for at a size."""
        sizes = self.forms.at(size)
        request = np.where(self.operations.request > 0, sizes[self.operations.slot], 0)
        request = np.where((self.operations.request > 0) & (request == 0), 1, request)
        return replace(self.operations, request=request, requested_bytes=np.maximum(sizes, 1))

    def variables_bytes(self) -> int:
        """Return the bytes alive before the steps but for what they are fed: of the variables."""
        operations = self.operations
        before = operations.slot[: self.first_of_all]
        alive = np.zeros(operations.n_buffers, bool)
        born = operations.request[: self.first_of_all] > 0
        alive[before[born]] = True
        alive[before[~born]] = False
        return int(operations.requested_bytes[alive & self.is_variable].sum())

    def live_bytes(self, size: int) -> Table:
        """Return requested bytes alive after each operation of the last step."""
        operations = self.operations
        sign = np.where(operations.request > 0, 1, -1)
        live = np.cumsum(sign * self.forms.at(size)[operations.slot])
        return np.asarray(live[self.first : self.last + 1], np.int64)

    def least_bytes(self, size: int) -> int:
        """Return what no limit can go under: the peak of the rounded requests, the build-up included."""
        operations = self.operations
        sizes = round_up_all(self.forms.at(size))
        if operations.spare.size:
            sizes = np.where(operations.spare, 0, sizes)
        sign = np.where(operations.request > 0, 1, -1)
        return int(np.cumsum(sign * sizes[operations.slot]).max(initial=0))

    def fits(self, size: int, options: BfcOptions) -> bool:
        """Say whether it comes to its end under a limit."""
        if self.least_bytes(size) > options.memory_limit_bytes:
            return False
        sequence = self.at(size)
        is_compiled = choose(Engine.AUTO, len(sequence) * 50) is Engine.COMPILED
        allocator = allocator_of(options, sequence.n_buffers, is_compiled=is_compiled)
        return feed_sparing(allocator, sequence)[0] == len(sequence)

    def allocated_bytes(self, size: int, options: BfcOptions) -> int:
        """Return the most bytes of chunks in use in the last step, with room for all."""
        in_use = in_use_bytes(self.at(size), options)
        return int(in_use[self.first : self.last + 1].max(initial=0))


@dataclass(frozen=True, slots=True)
class ScaledOrders:
    """The orders of a family's step, of each number of threads that a run may have.

    Attributes:
        family: The steps.
        sizes: Where the orders were played.
        kinds: By number of threads, those of the figure first.
        names: Name of each op.
        target: The device and its allocator.
        inexact: Share of the requested peak in buffers whose bytes at the last of ``sizes`` are not
            those of the form through the others; 0.0 where there are none.
    """

    family: StepFamily
    sizes: tuple[int, ...]
    kinds: Mapping[int, tuple[ScaledOrder, ...]]
    names: tuple[str, ...]
    target: Target
    inexact: float

    @property
    def main(self) -> tuple[ScaledOrder, ...]:
        """The orders of the number of threads that the figure is for."""
        return next(iter(self.kinds.values()))

    @property
    def every(self) -> tuple[ScaledOrder, ...]:
        """The orders of all kinds."""
        return tuple(order for orders in self.kinds.values() for order in orders)


def play_orders(
    family: StepFamily,
    sizes: Sequence[int],
    *,
    threads: int | None = None,
    inter_op: int | None = None,
) -> ScaledOrders:
    """Play the step's orders at some sizes and make each buffer's bytes a form.

    Args:
        family: The steps.
        sizes: Three that differ; the durations are those of the first.
        threads: Threads that one op may use; None for those of the machine that took the notes.
        inter_op: Threads that run ops side by side; None for that machine's, and one beside them.

    Raises:
        NotOneFamily: the orders are not the same at each size, or a size is of no form.
    """
    played: dict[int, _AtSize] = {}
    first: _AtSize | None = None
    for size in sizes:
        played[size] = _AtSize.of(family.at(size), threads, inter_op, first)
        first = first or played[size]
    assert first is not None
    kinds: dict[int, tuple[ScaledOrder, ...]] = {}
    inexact = 0.0
    for number in first.kinds:
        orders = []
        for seed in range(first.draws):
            order, share = _order(
                sizes, [played[size].play(seed, number) for size in sizes], number
            )
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
    """The step at one size, ready to be played."""

    note: RunNote
    prepared: Prepared
    owners: Mapping[int, Owner]
    kinds: tuple[int, ...]
    draws: int

    @classmethod
    def of(
        cls, note: RunNote, threads: int | None, inter_op: int | None, like: _AtSize | None
    ) -> _AtSize:
        target = target_of(note)
        owners = owners_by_number(note, target.device)
        prepared = prepare(
            note.ops,
            list(owners.values()),
            threads=threads or max(note.threads.intra_op, 1),
            device=target.device,
            steps=STEPS if note.steps_wanted is None else note.steps_wanted,
        )
        if like is None:
            prepared = decide(prepared, assumptions_of(note)).prepared
        else:
            prepared = replace(
                prepared,
                seconds=like.prepared.seconds,
                first_seconds=like.prepared.first_seconds,
                assumed=like.prepared.assumed,
            )
        kinds = (inter_op,) if inter_op else inter_op_drawn(note.threads)
        if target.device.is_cheap:
            kinds = (1,)
        runs = len(prepared.wiring.ops) * prepared.steps * len(kinds)
        draws = min(max(RUNS // max(runs, 1), 3), DRAWS) // 2 * 2 + 1
        return cls(note, prepared, owners, tuple(dict.fromkeys(kinds)), min(draws, DRAWS))

    def play(self, seed: int, threads: int) -> Played:
        return play_from_start(self.note, self.prepared, self.owners, seed, threads)


def _order(
    sizes: Sequence[int], played: Sequence[Played], threads: int
) -> tuple[ScaledOrder, float]:
    sequences = [one.sequence() for one in played]
    first = sequences[0]
    for size, other in zip(sizes[1:], sequences[1:], strict=True):
        if not np.array_equal(first.slot, other.slot) or not np.array_equal(
            first.request > 0, other.request > 0
        ):
            raise NotOneFamily(f"the ops ask for other buffers at {size} than at {sizes[0]}")
    rows = [one.requested_bytes for one in sequences]
    forms = FormTable.through(sizes, rows)
    straight = FormTable.through(sizes[:2], rows[:2]).at(sizes[2]) if len(sizes) > 2 else rows[-1]
    off = np.abs(straight - rows[-1])
    step = played[0].steps[-1]
    buffers = played[0].draw.buffers
    nodes = np.full(len(first.row), -1, np.int64)
    of_row = np.array([buffers.node[k] for k in rows_of(buffers)], np.int64)
    known = first.row < len(of_row)
    nodes[known] = of_row[first.row[known]]
    is_variable = np.zeros(len(first.row), bool)
    is_variable[known] = (np.array([buffers.variable[k] for k in rows_of(buffers)]) >= 0)[
        first.row[known]
    ]
    order = ScaledOrder(
        threads=threads,
        operations=first,
        forms=forms,
        first=step.first,
        last=step.last,
        first_of_all=played[0].steps[0].first,
        nodes=nodes,
        is_variable=is_variable,
    )
    return order, float(off.max(initial=0) / max(order.live_bytes(sizes[-1]).max(initial=1), 1))
