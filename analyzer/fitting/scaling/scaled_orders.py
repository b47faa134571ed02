"""Orders of a step whose requests are closed forms of a size: any size is a replay, no new capture.

The executor's order does not depend on how large tensors are but for the durations that several threads
are simulated with; those are taken at one size. So one order asks for the same buffers in the same order
at two or three sizes, and each buffer's bytes become a form. An order is played at one size; what its
buffers take at the others, their kernels say (``sizes_elsewhere``). A few orders
are played from the process's start; the others are a step that follows on one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from analyzer.fitting.scaling.closed_forms import FormTable
from analyzer.fitting.scaling.step_family import StepFamily
from analyzer.simulate.allocator import BfcAllocator, BfcOptions, Engine
from analyzer.simulate.allocator import Sequence as Operations
from analyzer.simulate.allocator.bfc.bfc_options import round_up_all
from analyzer.simulate.allocator.replay import choose, in_use_bytes
from analyzer.simulate.allocator.sequence_runner import feed_sparing, runs_throughout
from analyzer.simulate.predict.graph.constant_folding import fold
from analyzer.simulate.predict.predicted_device import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ScaledOrder:
    """One order that the executor could take, at any size.

    Attributes:
        seed: Which draw.
        threads: Threads that run ops side by side.
        operations: What is asked for in it, from the process's start; the bytes are those of one size.
        forms: Bytes of each buffer.
        first, last: Operations of the last step.
        first_of_all: First operation of the first step.
        nodes: The op that asks for each buffer; -1 for what was there before the steps.
        is_variable: Whether each buffer is a variable's value.
        replays: About how many replays of it and of orders like it are asked for together, so that the
            allocator that is compiled is loaded where that pays.
    """

    seed: int
    threads: int
    operations: Operations
    forms: FormTable
    first: int
    last: int
    first_of_all: int
    nodes: Table
    is_variable: NDArray[np.bool_]
    replays: int = 50

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
        is_compiled = choose(Engine.AUTO, len(sequence) * self.replays) is Engine.COMPILED
        allocator = BfcAllocator(options, sequence.n_buffers, is_compiled=is_compiled)
        return feed_sparing(allocator, sequence)[0] == len(sequence)

    def fits_throughout(self, size: int, options: BfcOptions, most_bytes: int) -> bool:
        """Say whether it comes to its end under every limit from that of the options to another.

        Args:
            size: The size.
            options: The allocator, with the lowest limit.
            most_bytes: The highest.
        """
        if self.least_bytes(size) > options.memory_limit_bytes:
            return False
        sequence = self.at(size)
        is_compiled = choose(Engine.AUTO, len(sequence) * self.replays) is Engine.COMPILED
        return runs_throughout(sequence, options, most_bytes, is_compiled=is_compiled)

    def allocated_bytes(self, size: int, options: BfcOptions) -> int:
        """Return the most bytes of chunks in use in the last step; what is spare may find no room."""
        sequence, first, last = self.at(size), self.first, self.last
        in_use = in_use_bytes(sequence, options)
        if in_use.size < len(sequence) and sequence.spare.size:
            allocator = BfcAllocator(options, sequence.n_buffers)
            kept = ~np.isin(sequence.slot, feed_sparing(allocator, sequence)[1])
            last = int(kept[: last + 1].sum()) - 1
            first = int(kept[:first].sum())
            without = replace(
                sequence,
                slot=sequence.slot[kept],
                request=sequence.request[kept],
                instant=sequence.instant[kept],
            )
            in_use = in_use_bytes(without, options)
        return int(in_use[first : last + 1].max(initial=0))


WaitingPlay: TypeAlias = Callable[[ScaledOrder, int, BfcOptions], bool]
"""Whether an order's process comes to its end at a size, under a limit."""


@dataclass(frozen=True, slots=True)
class ScaledOrders:
    """The orders of a family's step, of each number of threads that a run may have.

    Attributes:
        family: The steps.
        sizes: Where the orders were played.
        kinds: By number of threads, those of the figure first.
        names: Name of each op.
        target: The device and its allocator.
        waiting: Says whether an order's process, played at a size together with the allocator, comes to
            its end where threads wait for each other's memory; None where none can.
        inexact: Share of the requested peak in buffers whose bytes at the last of ``sizes`` are not
            those of the form through the others; 0.0 where there are none.
        left_out: Sentences about ops of which it is not known what they take, or whether they run.
    """

    family: StepFamily
    sizes: tuple[int, ...]
    kinds: Mapping[int, tuple[ScaledOrder, ...]]
    names: tuple[str, ...]
    target: Target
    inexact: float
    waiting: WaitingPlay | None = None
    left_out: tuple[str, ...] = ()

    @property
    def main(self) -> tuple[ScaledOrder, ...]:
        """The orders of the number of threads that the figure is for."""
        return next(iter(self.kinds.values()))

    @property
    def every(self) -> tuple[ScaledOrder, ...]:
        """The orders of all kinds."""
        return tuple(order for orders in self.kinds.values() for order in orders)

    def runs(self, order: ScaledOrder, size: int, options: BfcOptions) -> bool:
        """Say whether a process that takes an order comes to its end, its threads waiting.

        Args:
            order: One of these.
            size: The size.
            options: The allocator, with its limit.
        """
        if order.fits(size, options):
            return True
        return self.waiting is not None and order.threads > 1 and self.waiting(order, size, options)

    def is_same_at(self, size: int) -> bool:
        """Say whether the ops that run at a size are those of the orders: constants are folded by size.

        Args:
            size: The size.
        """
        return [op.name for op in fold(self.family.at(size).ops)] == list(self.names)
