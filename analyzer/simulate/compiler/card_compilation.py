"""The memory plan of a module on a card: from the cache, else from the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from analyzer.cards.catalogue import Gpu
from analyzer.cards.xla_compiler import find_compiler, target_text
from analyzer.model.contract.card_note import Products
from analyzer.model.errors import AccountingError
from analyzer.simulate.compiler.card_options import TIME_OUT_S
from analyzer.simulate.compiler.compile_child import (
    Compilation,
    CompiledModule,
    Progress,
    compile_with_retries,
)
from analyzer.simulate.compiler.plan_cache import PlanCache, make_key
from analyzer.tracing.parse.hlo import read_hlo
from analyzer.tracing.xla.assignment import build_plan
from analyzer.tracing.xla.buffer_plan import BufferPlan
from analyzer.tracing.xla.compile_trials import find_trials

CUBLAS_PRODUCTS: Final = ("--xla_gpu_enable_triton_gemm=false",)
"""Use cuBLAS, with its workspace, for all matrix products instead of Triton kernels. On a card XLA's
autotuner times both and chooses for each product, so the real plan lies between the two plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """The memory plan of a module on a card.

    Attributes:
        products: ``triton`` or ``cublas``: the library for matrix products.
    """

    plan: BufferPlan
    compiled: CompiledModule
    products: Products


def central(plans: Mapping[Products, CardPlan]) -> CardPlan:
    """Return the plan to show: with XLA's default products if it could be compiled."""
    return plans.get("triton") or plans["cublas"]


def plan_for_card(
    module: bytes,
    gpu: Gpu,
    cache: PlanCache,
    *,
    cublas: bool = False,
    users: tuple[str, ...] = (),
    time_out_s: float = TIME_OUT_S,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> CardPlan:
    """Return the memory plan of ``module`` on ``gpu``.

    Args:
        module: A serialized ``HloModuleProto``, not optimised, lowered for any device.
    """
    compiler = find_compiler()
    flags = (*users, *(CUBLAS_PRODUCTS if cublas else ()))
    target = target_text(gpu)
    key = make_key(module, target, flags, compiler.version)
    compiled = cache.find(key)
    if compiled is None:
        how = Compilation(
            target=target,
            compiler=compiler,
            flags=flags,
            time_out_s=time_out_s,
            folder=folder,
            progress=progress,
        )
        compiled = compile_with_retries(module, how)
        cache.store(key, compiled)
    return CardPlan(
        plan=checked_plan(compiled, gpu),
        compiled=compiled,
        products="cublas" if cublas else "triton",
    )


def checked_plan(compiled: CompiledModule, gpu: Gpu) -> BufferPlan:
    """Return the plan in the compiler's output."""
    hlo = read_hlo(compiled.hlo)
    plan = build_plan(hlo, platform=gpu.name)
    for name in ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes"):
        ours, theirs = getattr(plan, name), getattr(compiled.statistics, name)
        if ours != theirs:
            raise AccountingError(
                f"the plan for {gpu.name} has {name} {ours}, the compiler says {theirs}"
            )
    return replace(plan, trials=find_trials(hlo, gpu.compute_capability))
