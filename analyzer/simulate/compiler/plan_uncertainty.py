"""How far a step's peak may lie from what its functions' plans give, in bytes and in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from analyzer.cards.catalogue import Gpu
from analyzer.model.contract.card_note import Products
from analyzer.model.contract.report.trust_figures import StatedRange, shift_bound
from analyzer.model.errors import CompilerUnavailable
from analyzer.model.units import format_bytes
from analyzer.simulate.compiler.card_compilation import CardPlan, central
from analyzer.simulate.compiler.workspace import workspaces
from analyzer.tracing.parse.hlo import read_hlo
from analyzer.tracing.xla.buffer_plan import BufferPlan

TRITON_FROM: Final = (8, 0)
"""Compute capability from which XLA writes matrix products with Triton at all."""

_PRODUCTS_SEEN: Final = 0.07
"""Share of the temporaries by which the two products' plans differed for larger steps: 6.4 % for a
decoder in bfloat16 on an H100, below 3 % for ResNet50 and MobileNetV2
(``benchmarks/xla/xla_gpu.md``)."""

_WITHOUT_TRITON: Final = 0.25
"""The same where Triton's kernels could not be made, upwards: TensorFlow's compiler took 20 % more for a
small decoder on a phantom H100 than cuBLAS' plan has (``benchmarks/results/accuracy-cards.md``)."""

_CPU_LOW, _CPU_HIGH = 0.4, 1.2
"""The card's temporaries over the CPU's, a little beyond what was seen there: 0.47 for ResNet50 in half
precision on a T4, 1.17 for a small MLP on an H100 with cuBLAS' products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDoubts:
    """How far the step's peak may lie from what the plans give.

    Attributes:
        low_bytes: How much less it may be.
        high_bytes: How much more.
        workspace_bytes: The part of ``high_bytes`` that convolutions' workspaces are.
        stand_in: That the plans are another device's, in few words; empty where they are the card's.
        because: Why, a sentence each.
    """

    low_bytes: int = 0
    high_bytes: int = 0
    workspace_bytes: int = 0
    stand_in: str = ""
    because: tuple[str, ...] = ()


def cpu_doubts(plans: Iterable[BufferPlan], gpu: Gpu, why: CompilerUnavailable) -> PlanDoubts:
    """Return how far the CPU's plans are off where they stand in for a card's.

    Args:
        plans: The CPU's plans.
        gpu: The card that was asked for.
        why: What became of the card's own compiler.
    """
    temp = max((plan.temp_bytes for plan in plans), default=0)
    said = f"{why.message.rstrip('.')}; {why.hint}" if why.hint else why.message
    stand_in = f"the plan is the CPU's, not {gpu.name}'s, and may be up to twice too high"
    return PlanDoubts(
        low_bytes=round(temp * (1 - _CPU_LOW)),
        high_bytes=round(temp * (_CPU_HIGH - 1)),
        stand_in=stand_in,
        because=(f"{stand_in[0].upper()}{stand_in[1:]}: {said}",),
    )


def with_plan_doubts(base: StatedRange, doubts: PlanDoubts) -> StatedRange:
    """Return a prediction's range with the plans' doubts in it.

    Args:
        base: The range without them.
        doubts: What the plans add; the workspaces lie inside the one large buffer, so that they count
            wherever the buffer does.
    """
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
    """Return how far a card's plans may be off.

    Args:
        found: For each function, its plans by who multiplies matrices: ``triton``, perhaps ``cublas``.
        gpu: The card.
    """
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
            f"The plan is that of XLA's own compiler for {gpu.name} ({compiler}), made without the "
            "card; it was not compared with a run on one.",
            *products,
            *workspace,
            "The module is lowered for XLA's CPU device: a few ops (batch norm, softmax) may take "
            "another form on a GPU.",
            "The module's constants, CUDA's context and library handles lie outside of it.",
        ),
    )


def _product_range(
    found: Sequence[Mapping[Products, CardPlan]], gpu: Gpu
) -> tuple[int, int, tuple[str, ...]]:
    """Return how much less and more the other matrix products' plan takes, and a sentence."""
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
                "XLA's autotuner picks Triton or cuBLAS for each matrix product on the card; the "
                f"temporaries are {both}.",
            ),
        )
    temp = max(central(one).plan.temp_bytes for one in found)
    has_triton = all("triton" in one for one in found)
    low, high = (
        round(share * temp)
        for share in (_PRODUCTS_SEEN, _PRODUCTS_SEEN if has_triton else _WITHOUT_TRITON)
    )
    shown = "Triton" if has_triton else "cuBLAS"
    why = "" if shown == "Triton" else ", since Triton's kernels cannot be made without the card"
    return (
        low,
        high,
        (
            "XLA's autotuner picks Triton or cuBLAS for each matrix product on the card; the plan is "
            f"with {shown}{why}. The two differed by up to {_PRODUCTS_SEEN:.0%} in large steps, by "
            f"{_WITHOUT_TRITON:.0%} in a small one.",
        ),
    )


def _workspace(found: Sequence[Mapping[Products, CardPlan]]) -> tuple[int, tuple[str, ...]]:
    """Return what the convolutions' workspaces may add, and a sentence."""
    shown = [central(one) for one in found]
    most = [workspaces(read_hlo(one.compiled.hlo), one.plan) for one in shown]
    largest = max(most, key=lambda one: one.rise_bytes)
    if not largest.count:
        return 0, ()
    where = largest.largest
    assert where is not None
    return largest.rise_bytes, (
        f"cuDNN's workspaces count as nothing; one the size of a convolution's own tensors would add up "
        f"to {format_bytes(largest.rise_bytes)} (at least {format_bytes(largest.least_rise_bytes)}"
        + (f"), most at {where.op_name}." if where.op_name else ")."),
    )
