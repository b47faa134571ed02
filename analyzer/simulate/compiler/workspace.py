"""Bound how much cuDNN's workspaces add to the peak of a compiled module.

Without a card the compiler does not ask cuDNN for an algorithm, so the plan has no workspaces. On a
card XLA's autotuner chooses an algorithm, and places its workspace in the large temporary buffer while
the convolution runs.

The size of a workspace is unknown without cuDNN. The bound here is the most common need: a copy of each
operand and of the result in the kernel's layout (cuDNN transforms NCHW for its tensor-core kernels in
the workspace). Some algorithms need more (FFT, Winograd with separate stages); XLA allows up to 4 GiB.

If the buffer has a free range of that size at the time, the workspace costs nothing. Otherwise the
growth lies between two bounds: the part that does not fit behind the last value alive (if no value
moves), and the part above all free bytes together (if XLA moves values freely). Convolutions do not run
at the same time in the schedule, so only the largest growth counts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.element_sizes import ITEM_BYTES
from analyzer.tracing.parse.hlo_module import Hlo, Instruction
from analyzer.tracing.xla.buffer_plan import BufferPlan, PlanRegion

XLA_LIMIT_BYTES: Final = 4 << 30
"""Largest workspace (``xla_gpu_redzone_scratch_max_megabytes``, and the scratch allocator of XLA's
convolution autotuner)."""

_CONVOLUTION: Final = "__cudnn$conv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    """Growth of a module's peak by the workspaces of its convolutions.

    Attributes:
        rise_bytes: Growth if no value moves.
        least_rise_bytes: Growth if XLA moves values freely.
        op_name: The framework's op with the largest growth; empty if XLA names none.
        count: Number of convolutions.
    """

    rise_bytes: int
    least_rise_bytes: int
    op_name: str
    count: int


def workspaces(hlo: Hlo, plan: BufferPlan, *, size_bytes: int | None = None) -> Workspaces:
    """Return the growth of a plan by the workspaces of convolutions.

    Args:
        size_bytes: Size of each workspace; None for the size of the operands and the result.
    """
    convolutions = [one for one in hlo.instructions.values() if one.target.startswith(_CONVOLUTION)]
    region = max(plan.temporaries, key=lambda region: region.size_bytes, default=None)
    clock = _Clock(hlo, region)
    rise, least_rise, op_name = 0, 0, ""
    for number, instruction in enumerate(convolutions):
        bound = size_bytes
        if bound is None:
            operands = (hlo.instructions[operand] for operand in instruction.operands)
            bound = sum(map(_bytes_of, operands)) + _bytes_of(instruction)
        bound = min(bound, XLA_LIMIT_BYTES)
        free, largest, behind = clock.find_free(instruction)
        own_rise = 0 if bound <= largest else bound - behind
        if number == 0 or own_rise > rise:
            rise, op_name = own_rise, instruction.op_name
        least_rise = max(least_rise, bound - free)
    return Workspaces(
        rise_bytes=rise, least_rise_bytes=least_rise, op_name=op_name, count=len(convolutions)
    )


class _Clock:
    """The free bytes of a buffer while an instruction runs."""

    def __init__(self, hlo: Hlo, region: PlanRegion | None) -> None:
        # Values that are always alive are tables of tuples, allocations of their own at the end of
        # the buffer; they are ignored.
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
        # An instruction with its result elsewhere has the time of the instruction before it.
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

    def find_free(self, instruction: Instruction) -> tuple[int, int, int]:
        """Return the free bytes in total, in the largest range, and behind the last value."""
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
    """Return the bytes of the arrays in the result of an instruction."""
    return sum(
        math.prod(shape) * ITEM_BYTES.get(dtype, 0)
        for dtype, shape in instruction.shapes.values()
        if dtype != "tuple"
    )
