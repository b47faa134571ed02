"""The range of a step's peak around the plans of its compiled functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from analyzer.cards.catalogue import Gpu
from analyzer.model.contract.card_note import Products
from analyzer.model.contract.report.peak_figures import StatedRange, shift_bounds
from analyzer.model.errors import CompilerUnavailable
from analyzer.model.units import format_bytes
from analyzer.simulate.compiler.compile_child import CardPlan, central
from analyzer.tracing.parse.hlo import Hlo, read_hlo
from analyzer.tracing.xla.buffer_plan import BufferPlan, Holder
from analyzer.tracing.xla.compile_trials import CONVOLUTION

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDoubts:
    """The uncertainty of a step's peak due to its plans."""

    low_bytes: int = 0
    high_bytes: int = 0
    stand_in: str = ""  # A phrase if the plans are for another device; else empty
    because: tuple[str, ...] = ()


def cpu_doubts(plans: Iterable[BufferPlan], gpu: Gpu, why: CompilerUnavailable) -> PlanDoubts:
    """Return the uncertainty of CPU plans used instead of card plans."""
    temp = max((plan.temp_bytes for plan in plans), default=0)
    reason = f"{why.message.rstrip('.')}; {why.hint}" if why.hint else why.message
    stand_in = (
        f"XLA planned for the CPU instead of {gpu.name}: the need may be up to twice too high"
    )
    return PlanDoubts(
        low_bytes=round(temp * (1 - _CPU_LOW)),
        high_bytes=round(temp * (_CPU_HIGH - 1)),
        stand_in=stand_in,
        because=(f"{stand_in[0].upper()}{stand_in[1:]}: {reason}",),
    )


def with_plan_doubts(base: StatedRange, doubts: PlanDoubts) -> StatedRange:
    """Return the range of a prediction, widened by the uncertainty of the plans."""
    kinds = ("", "allocated_", "limit_")
    return replace(
        base,
        **shift_bounds(base, doubts.low_bytes, doubts.high_bytes, *kinds),
        stand_in=doubts.stand_in or base.stand_in,
        because=(*base.because, *doubts.because),
    )


def card_doubts(found: Sequence[Mapping[Products, CardPlan]], gpu: Gpu) -> PlanDoubts:
    """Return the uncertainty of the plans for a card."""
    if not found:
        return PlanDoubts()
    low, high, products = 0, 0, ""
    if gpu.compute_capability >= TRITON_FROM:
        low, high, products = _product_range(found)
    shown = map(central, found)
    rises = [workspace_rise(read_hlo(one.compiled.hlo), one.plan) for one in shown]
    workspace = max((rise for rise in rises if rise is not None), default=None)
    reasons = (
        f"The plan is from XLA's compiler for {gpu.name} ({central(found[0]).compiled.head.compiler}), "
        "without the card; it was not compared with a run on a card.",
        products,
        ""
        if workspace is None
        else "The plan has no workspaces of cuDNN. A workspace as large as a convolution's tensors "
        f"would add up to {format_bytes(workspace)}.",
        "The module is lowered for XLA's CPU device: a few ops (batch norm, softmax) may differ on "
        "a GPU.",
        "The plan does not contain constants of the module, CUDA's context and library handles.",
    )
    return PlanDoubts(
        low_bytes=low,
        high_bytes=high + (workspace or 0),
        because=tuple(filter(None, reasons)),
    )


def _product_range(found: Sequence[Mapping[Products, CardPlan]]) -> tuple[int, int, str]:
    """Return the bytes less and more with the other library for matrix products, and a reason."""
    choice = "On the card XLA's autotuner chooses Triton or cuBLAS for each matrix product."
    has_triton = all("triton" in one for one in found)
    if has_triton and all("cublas" in one for one in found):
        triton = [one["triton"].plan.temp_bytes for one in found]
        cublas = [one["cublas"].plan.temp_bytes for one in found]
        more = [other - own for own, other in zip(triton, cublas, strict=True)]
        with_triton, with_cublas = format_bytes(max(triton)), format_bytes(max(cublas))
        sizes = f"The temporaries are {with_triton} with Triton and {with_cublas} with cuBLAS."
        return max(0, -min(more)), max(0, *more), f"{choice} {sizes}"
    temp = max(central(one).plan.temp_bytes for one in found)
    shown, rise = "Triton", _PRODUCTS_SHARE
    if not has_triton:
        shown = "cuBLAS, because Triton's kernels cannot be compiled without the card"
        rise = _WITHOUT_TRITON_SHARE
    return (
        round(_PRODUCTS_SHARE * temp),
        round(rise * temp),
        f"{choice} The plan uses {shown}. The two differed by up to {_PRODUCTS_SHARE:.0%} in large "
        f"steps and by {_WITHOUT_TRITON_SHARE:.0%} in a small step.",
    )


def workspace_rise(hlo: Hlo, plan: BufferPlan, *, size_bytes: int | None = None) -> int | None:
    """Return the growth of a plan by the workspaces of convolutions; None without convolutions.

    On a card XLA places a workspace in the large temporary buffer while the convolution runs. It
    costs nothing if the buffer has a free range of that size; otherwise the growth is the part that
    does not fit behind the last value alive. The bound is the most common need: a copy of each operand
    and of the result in the kernel's layout. Some algorithms (FFT, Winograd) need more, up to 4 GiB.
    """
    region = max(plan.temporaries, key=lambda region: region.size_bytes, default=None)
    # Values that are always alive are tables of tuples, allocations of their own; they are ignored.
    holders = [
        holder
        for holder in (region.holders if region else ())
        if region and holder.last - holder.first < region.moments
    ]
    end = max((h.offset_bytes + h.size_bytes for h in holders), default=0)
    moments = _find_moments(hlo, holders)
    rises = []
    for one in hlo.instructions.values():
        if not one.target.startswith(CONVOLUTION):
            continue
        bound = size_bytes
        if bound is None:
            operands = (hlo.instructions[operand] for operand in one.operands)
            bound = sum(size for made in (*operands, one) for size in made.array_bytes)
        bound = min(bound, XLA_LIMIT_BYTES)
        moment = moments.get(one.id, 0)
        alive = sorted(
            (holder.offset_bytes, holder.offset_bytes + holder.size_bytes)
            for holder in holders
            if holder.first <= moment < holder.last
        )
        largest = last_end = 0
        for first, last in alive:
            largest = max(largest, first - last_end)
            last_end = max(last_end, last)
        behind = end - last_end
        rises.append(0 if bound <= max(largest, behind) else bound - behind)
    return max(rises, default=None)


def _find_moments(hlo: Hlo, holders: Iterable[Holder]) -> dict[int, int]:
    """Return instruction -> its moment in the plan, or that of the instruction before it."""
    births: dict[str, int] = {}
    for holder in holders:
        births[holder.instruction] = max(holder.first, births.get(holder.instruction, 0))
    moments: dict[int, int] = {}
    for numbers in hlo.schedule.values():
        moment = 0
        for number in numbers:
            moment = births.get(hlo.instructions[number].name, moment)
            moments[number] = moment
    return moments
