"""The plan of a module on a named card: from the cache, else from the compiler."""

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
    compile_sparing,
)
from analyzer.simulate.compiler.plan_cache import PlanCache, key_of
from analyzer.tracing.parse.hlo import read_hlo
from analyzer.tracing.xla.assignment import build_plan
from analyzer.tracing.xla.buffer_plan import BufferPlan
from analyzer.tracing.xla.compile_trials import find_trials

CUBLAS_PRODUCTS: Final = ("--xla_gpu_enable_triton_gemm=false",)
"""Matrix products by cuBLAS, with its workspace, and not by kernels that XLA writes with Triton. On
the card XLA's autotuner times both and picks for each product, so the two plans bracket the real."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """A module's memory plan on a card.

    Attributes:
        plan: What the module allocates, checked against the compiler's own totals.
        compiled: What the compiler gave.
        products: ``triton`` or ``cublas``: who multiplies matrices.
    """

    plan: BufferPlan
    compiled: CompiledModule
    products: Products


def central(plans: Mapping[Products, CardPlan]) -> CardPlan:
    """Return the plan to show of those of one function: XLA's own choice where it could be made."""
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
        gpu: The card.
        cache: Where plans are kept.
        cublas: Give all matrix products to cuBLAS.
        users: The user's own XLA flags.
        time_out_s: After which the compiler is ended.
        folder: Where the compiler's temporary folder is made; None for the system's place.
        progress: Called with the stage and the share done.

    Raises:
        CompilerRefused: the compiler refused the module or died.
        CompilerUnavailable: the compiler is missing or took too long.
        AccountingError: the buffers do not add up to the compiler's totals.
    """
    compiler = find_compiler()
    flags = (*users, *(CUBLAS_PRODUCTS if cublas else ()))
    target = target_text(gpu)
    key = key_of(module, target, flags, compiler.version)
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
        compiled = compile_sparing(module, how)
        cache.keep(key, compiled)
    return CardPlan(
        plan=checked_plan(compiled, gpu),
        compiled=compiled,
        products="cublas" if cublas else "triton",
    )


def checked_plan(compiled: CompiledModule, gpu: Gpu) -> BufferPlan:
    """Return the plan in what the compiler gave.

    Raises:
        AccountingError: its buffers do not add up to the compiler's totals.
    """
    hlo = read_hlo(compiled.hlo)
    plan = build_plan(hlo, platform=gpu.name)
    told = compiled.statistics
    for name in ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes"):
        ours, theirs = getattr(plan, name), getattr(told, name)
        if ours != theirs:
            raise AccountingError(
                f"the plan for {gpu.name} has {name} {ours}, the compiler says {theirs}"
            )
    return replace(plan, trials=find_trials(hlo, gpu.compute_capability))
