"""What cuDNN's workspaces can add to a compiled module's peak: one-sided, from the heap trace.

The compiler, with no card at hand, does not ask cuDNN which algorithm it would take, so that every
convolution's workspace counts as 0 bytes in the plan. On the card XLA's autotuner picks an algorithm
and gives its workspace a place in the large temporary buffer, alive while that one convolution runs.

How large it is nobody can say without cuDNN. The bound here is what the usual reason for one takes: a
copy of each operand and of the result in the layout that the kernel works in (cuDNN transforms NCHW
for its tensor-core kernels inside of the workspace). Algorithms that ask for more exist (FFT, Winograd
with separate stages); XLA lets none have more than 4 GiB.

Where the buffer has a free stretch of that size at that moment, the workspace costs nothing. Where not,
the buffer grows by what does not fit behind the last value alive, if no value is moved; and by what is
more than all free bytes together, if XLA moves the others as it likes. The truth, which packs anew with
the workspaces in, lies between. No two convolutions run at once in the schedule, so the growths do not
add up: the largest counts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.element_sizes import ITEM_BYTES
from analyzer.tracing.parse.hlo_module import Hlo, Instruction
from analyzer.tracing.xla.buffer_plan import BufferPlan, PlanRegion

XLA_LIMIT_BYTES: Final = 4 << 30
"""``xla_gpu_redzone_scratch_max_megabytes`` and the scratch allocator of XLA's convolution
autotuner: more than this no algorithm gets."""

_CONVOLUTION: Final = "__cudnn$conv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """One convolution, and what a workspace for it would add.

    Attributes:
        instruction: Name of the HLO instruction.
        op_name: The framework's op; empty where XLA names none.
        bound_bytes: The workspace that is assumed.
        free_bytes: Bytes of the temporary buffer that are free while it runs, in all.
        stretch_bytes: The largest stretch of them.
        rise_bytes: By how much the buffer would grow, were no value moved.
        least_rise_bytes: By how much at least.
    """

    instruction: str
    op_name: str
    bound_bytes: int
    free_bytes: int
    stretch_bytes: int
    rise_bytes: int
    least_rise_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    """All convolutions of a module.

    Attributes:
        rise_bytes: What their workspaces may add to the peak, were no other value moved.
        least_rise_bytes: What they add even if XLA moves the others as it likes.
        largest: The one that adds most, None where there is no convolution.
        count: Convolutions.
    """

    rise_bytes: int
    least_rise_bytes: int
    largest: Workspace | None
    count: int


def workspaces(hlo: Hlo, plan: BufferPlan, *, size_bytes: int | None = None) -> Workspaces:
    """Return what the convolutions' workspaces may add to a plan.

    Args:
        hlo: The compiled module.
        plan: Its memory plan.
        size_bytes: The workspace of every convolution; None for each one's own operands and result.
    """
    found = list(_each(hlo, plan, size_bytes))
    largest = max(found, key=lambda workspace: workspace.rise_bytes, default=None)
    return Workspaces(
        rise_bytes=largest.rise_bytes if largest else 0,
        least_rise_bytes=max((workspace.least_rise_bytes for workspace in found), default=0),
        largest=largest,
        count=len(found),
    )


def _each(hlo: Hlo, plan: BufferPlan, size_bytes: int | None) -> Iterator[Workspace]:
    convolutions = [i for i in hlo.instructions.values() if i.target.startswith(_CONVOLUTION)]
    if not convolutions:
        return
    region = max(plan.temporaries, key=lambda region: region.size_bytes, default=None)
    clock = _Clock(hlo, region)
    for instruction in convolutions:
        bound = size_bytes
        if bound is None:
            operands = (hlo.instructions[number] for number in instruction.operands)
            bound = sum(map(_bytes_of, operands)) + _bytes_of(instruction)
        bound = min(bound, XLA_LIMIT_BYTES)
        free, stretch, behind = clock.room(instruction)
        yield Workspace(
            instruction=instruction.name,
            op_name=instruction.op_name,
            bound_bytes=bound,
            free_bytes=free,
            stretch_bytes=stretch,
            rise_bytes=0 if bound <= stretch else bound - behind,
            least_rise_bytes=max(0, bound - free),
        )


class _Clock:
    """Which bytes of a buffer are free when an instruction runs."""

    def __init__(self, hlo: Hlo, region: PlanRegion | None) -> None:
        # What is alive throughout are the tables of tuples, an allocation of their own each that was
        # put behind the others: they move out of the way.
        holders = [
            holder
            for holder in (region.holders if region else ())
            if holder.last - holder.first < (region.moments if region else 0)
        ]
        self._holders = holders
        self._end = max((h.offset_bytes + h.size_bytes for h in holders), default=0)
        self._born: dict[str, int] = {}
        for holder in holders:
            self._born[holder.instruction] = max(
                holder.first, self._born.get(holder.instruction, 0)
            )
        # An instruction whose result lies elsewhere runs when the one before it has run.
        self._place = {
            number: (computation, position)
            for computation, numbers in hlo.schedule.items()
            for position, number in enumerate(numbers)
        }
        self._known: dict[int, list[tuple[int, int]]] = {
            computation: [
                (position, self._born[hlo.instructions[number].name])
                for position, number in enumerate(numbers)
                if hlo.instructions[number].name in self._born
            ]
            for computation, numbers in hlo.schedule.items()
        }

    def room(self, instruction: Instruction) -> tuple[int, int, int]:
        """Return the free bytes in all, in the largest stretch, and behind the last value."""
        moment = self._moment(instruction)
        alive = sorted(
            (holder.offset_bytes, holder.offset_bytes + holder.size_bytes)
            for holder in self._holders
            if holder.first <= moment < holder.last
        )
        free = largest = end = 0
        for first, last in [*alive, (self._end, self._end)]:
            free += max(0, first - end)
            largest = max(largest, first - end)
            end = max(end, last)
        behind = self._end - max((last for _, last in alive), default=0)
        return free, largest, behind

    def _moment(self, instruction: Instruction) -> int:
        if instruction.name in self._born:
            return self._born[instruction.name]
        computation, position = self._place.get(instruction.id, (-1, 0))
        known = self._known.get(computation, [])
        at = bisect_right(known, (position, 0)) - 1
        return known[at][1] if at >= 0 else 0


def _bytes_of(instruction: Instruction) -> int:
    """Return the bytes of the arrays that an instruction makes."""
    return sum(
        math.prod(shape) * ITEM_BYTES.get(dtype, 0)
        for dtype, shape in instruction.shapes.values()
        if dtype != "tuple"
    )
