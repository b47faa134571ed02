"""The range of a step's peak around the plans of its compiled functions."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from analyzer.cards.catalogue import Gpu
from analyzer.model.contract.card_note import Products
from analyzer.model.contract.fields import ITEM_BYTES
from analyzer.model.contract.report.peak_figures import StatedRange, shift_bound
from analyzer.model.errors import CompilerUnavailable
from analyzer.model.units import format_bytes
from analyzer.simulate.compiler.card_compilation import CardPlan, central
from analyzer.tracing.parse.hlo import read_hlo
from analyzer.tracing.parse.hlo_module import Hlo, Instruction
from analyzer.tracing.xla.buffer_plan import BufferPlan, PlanRegion

TRITON_FROM: Final = (8, 0)
"""First compute capability for which XLA uses Triton for matrix products."""

_PRODUCTS_SHARE: Final = 0.07
"""Largest difference of the plans with Triton and cuBLAS for large steps, as a share of the temporaries:
6.4 % for a decoder in bfloat16 on an H100, below 3 % for ResNet50 and MobileNetV2
(``benchmarks/xla/xla_gpu.md``)."""

_WITHOUT_TRITON_SHARE: Final = 0.25
"""The same upwards if Triton fails: TensorFlow's compiler needed 20 % more for a small decoder on a
simulated H100 than the plan with cuBLAS (``benchmarks/results/accuracy-cards.md``)."""

_CPU_LOW, _CPU_HIGH = 0.4, 1.2
"""Temporaries of a card divided by the temporaries of a CPU, a bit beyond measured values: 0.47 for
ResNet50 in half precision on a T4, 1.17 for a small MLP on an H100 with cuBLAS."""

XLA_LIMIT_BYTES: Final = 4 << 30
"""Largest workspace (``xla_gpu_redzone_scratch_max_megabytes``, and the scratch allocator of XLA's
convolution autotuner)."""

_CONVOLUTION: Final = "__cudnn$conv"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDoubts:
    """The uncertainty of a step's peak due to its plans.

    Attributes:
        workspace_bytes: Part of ``high_bytes`` due to workspaces of convolutions.
        stand_in: A phrase if the plans are for another device; else empty.
    """

    low_bytes: int = 0
    high_bytes: int = 0
    workspace_bytes: int = 0
    stand_in: str = ""
    because: tuple[str, ...] = ()


def cpu_doubts(plans: Iterable[BufferPlan], gpu: Gpu, why: CompilerUnavailable) -> PlanDoubts:
    """Return the uncertainty of CPU plans used instead of card plans."""
    temp = max((plan.temp_bytes for plan in plans), default=0)
    reason = f"{why.message.rstrip('.')}; {why.hint}" if why.hint else why.message
    stand_in = f"the plan is the CPU's, not {gpu.name}'s, and may be up to twice too high"
    return PlanDoubts(
        low_bytes=round(temp * (1 - _CPU_LOW)),
        high_bytes=round(temp * (_CPU_HIGH - 1)),
        stand_in=stand_in,
        because=(f"{stand_in[0].upper()}{stand_in[1:]}: {reason}",),
    )


def with_plan_doubts(base: StatedRange, doubts: PlanDoubts) -> StatedRange:
    """Return the range of a prediction, widened by the uncertainty of the plans."""
    return replace(
        base,
        low_bytes=shift_bound(base.low_bytes, -doubts.low_bytes),
        allocated_low_bytes=shift_bound(base.allocated_low_bytes, -doubts.low_bytes),
        high_bytes=shift_bound(base.high_bytes, doubts.high_bytes),
        allocated_high_bytes=shift_bound(base.allocated_high_bytes, doubts.high_bytes),
        limit_low_bytes=shift_bound(base.limit_low_bytes, -doubts.low_bytes),
        limit_high_bytes=shift_bound(base.limit_high_bytes, doubts.high_bytes),
        xla_workspace_bytes=doubts.workspace_bytes,
        stand_in=doubts.stand_in or base.stand_in,
        because=(*base.because, *doubts.because),
    )


def card_doubts(found: Sequence[Mapping[Products, CardPlan]], gpu: Gpu) -> PlanDoubts:
    """Return the uncertainty of the plans for a card."""
    if not found:
        return PlanDoubts()
    low, high, products = _product_range(found, gpu)
    rise, workspace = _workspace(found)
    compiler = central(found[0]).compiled.compiler
    return PlanDoubts(
        low_bytes=low,
        high_bytes=high + rise,
        workspace_bytes=rise,
        because=(
            f"The plan is from XLA's compiler for {gpu.name} ({compiler}), without the card; it was "
            "not compared with a run on a card.",
            *products,
            *workspace,
            "The module is lowered for XLA's CPU device: a few ops (batch norm, softmax) may differ on "
            "a GPU.",
            "The plan does not contain constants of the module, CUDA's context and library handles.",
        ),
    )


def _product_range(
    found: Sequence[Mapping[Products, CardPlan]], gpu: Gpu
) -> tuple[int, int, tuple[str, ...]]:
    """Return the bytes less and more with the other library for matrix products, and a reason."""
    if gpu.compute_capability < TRITON_FROM:
        return 0, 0, ()
    pairs = [
        (one["triton"].plan.temp_bytes, one["cublas"].plan.temp_bytes)
        for one in found
        if "triton" in one and "cublas" in one
    ]
    if len(pairs) == len(found):
        low = max(max(triton - cublas, 0) for triton, cublas in pairs)
        high = max(max(cublas - triton, 0) for triton, cublas in pairs)
        both = " and ".join(
            f"{format_bytes(max(column))} with {who}"
            for who, column in zip(("Triton", "cuBLAS"), zip(*pairs, strict=True), strict=True)
        )
        return (
            low,
            high,
            (
                "On the card XLA's autotuner chooses Triton or cuBLAS for each matrix product. The "
                f"temporaries are {both}.",
            ),
        )
    temp = max(central(one).plan.temp_bytes for one in found)
    has_triton = all("triton" in one for one in found)
    low, high = (
        round(share * temp)
        for share in (_PRODUCTS_SHARE, _PRODUCTS_SHARE if has_triton else _WITHOUT_TRITON_SHARE)
    )
    shown = "Triton" if has_triton else "cuBLAS"
    why = (
        ""
        if shown == "Triton"
        else ", because Triton's kernels cannot be compiled without the card"
    )
    return (
        low,
        high,
        (
            "On the card XLA's autotuner chooses Triton or cuBLAS for each matrix product. The plan "
            f"uses {shown}{why}. The two differed by up to {_PRODUCTS_SHARE:.0%} in large steps and by "
            f"{_WITHOUT_TRITON_SHARE:.0%} in a small step.",
        ),
    )


def _workspace(found: Sequence[Mapping[Products, CardPlan]]) -> tuple[int, tuple[str, ...]]:
    """Return the bytes that workspaces of convolutions may add, and a reason."""
    shown = [central(one) for one in found]
    most = [workspaces(read_hlo(one.compiled.hlo), one.plan) for one in shown]
    largest = max(most, key=lambda one: one.rise_bytes)
    if not largest.count:
        return 0, ()
    return largest.rise_bytes, (
        "The plan has no workspaces of cuDNN. A workspace as large as a convolution's tensors would add "
        f"up to {format_bytes(largest.rise_bytes)} (at least {format_bytes(largest.least_rise_bytes)}"
        + (f"), the most at {largest.op_name}." if largest.op_name else ")."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    """Growth of a module's peak by the workspaces of its convolutions.

    Attributes:
        rise_bytes: Growth if no value moves.
        least_rise_bytes: Growth if XLA moves values freely.
    """

    rise_bytes: int
    least_rise_bytes: int
    op_name: str
    count: int


def workspaces(hlo: Hlo, plan: BufferPlan, *, size_bytes: int | None = None) -> Workspaces:
    """Return the growth of a plan by the workspaces of convolutions.

    Without a card the compiler does not ask cuDNN for an algorithm, so the plan has no workspaces. On a
    card XLA places a workspace in the large temporary buffer while the convolution runs.

    The bound is the most common need: a copy of each operand and of the result in the kernel's layout
    (cuDNN transforms NCHW for its tensor-core kernels). Some algorithms need more (FFT, Winograd with
    separate stages); XLA allows up to 4 GiB.

    If the buffer has a free range of that size, the workspace costs nothing. Otherwise the growth is
    between the part that does not fit behind the last value alive (if no value moves), and the part
    above all free bytes together (if XLA moves values freely). Convolutions do not run at the same
    time, so only the largest growth counts.

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
