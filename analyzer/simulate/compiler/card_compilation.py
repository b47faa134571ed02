"""The memory plan of a module on a card: from the user's cache (``user_cache``) or the compiler.

A plan file is a line of JSON (``PlanHead``) and the HloProto, in gzip.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from analyzer.cards.catalogue import Gpu
from analyzer.cards.xla_compiler import find_compiler, target_text
from analyzer.model.contract.card_note import CARD_VERSION, PlanHead, Products
from analyzer.model.contract.reading import decode_record, pack, unpack
from analyzer.model.errors import AccountingError
from analyzer.simulate.compiler.card_options import TIME_OUT_S
from analyzer.simulate.compiler.compile_child import (
    Compilation,
    CompiledModule,
    compile_with_retries,
)
from analyzer.tracing.parse.hlo import read_hlo
from analyzer.tracing.xla.assignment import build_plan
from analyzer.tracing.xla.buffer_plan import BufferPlan
from analyzer.tracing.xla.compile_trials import find_trials

CUBLAS_PRODUCTS: Final = ("--xla_gpu_enable_triton_gemm=false",)
"""Use cuBLAS, with its workspace, for all matrix products instead of Triton kernels. On a card XLA's
autotuner times both and chooses for each product, so the real plan lies between the two plans."""

LIMIT_BYTES: Final = 256 << 20
"""Largest size of the cache: about 500 plans of ResNet50."""

_FORMAT: Final = b"2"
_SUFFIX: Final = ".plan.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """The memory plan of a module on a card."""

    plan: BufferPlan
    compiled: CompiledModule


def central(plans: Mapping[Products, CardPlan]) -> CardPlan:
    """Return the plan to show: with XLA's default products if it could be compiled."""
    return plans.get("triton") or plans["cublas"]


def plan_for_card(
    module: bytes,
    gpu: Gpu,
    cache: PlanCache,
    *,
    flags: tuple[str, ...] = (),
    time_out_s: float = TIME_OUT_S,
    folder: Path | None = None,
) -> CardPlan:
    """Return the memory plan of ``module`` on ``gpu``.

    Args:
        module: A serialized ``HloModuleProto``, not optimised, lowered for any device.
        flags: XLA flags.
        folder: Parent of the compiler's temporary folder.
    """
    how = Compilation(
        target=target_text(gpu),
        compiler=find_compiler(),
        flags=flags,
        time_out_s=time_out_s,
        folder=folder,
    )
    key = make_key(module, how.target, flags, how.compiler.version)
    compiled = cache.find(key)
    if compiled is None:
        compiled = compile_with_retries(module, how)
        cache.store(key, compiled)
    return check_plan(compiled, gpu)


def check_plan(compiled: CompiledModule, gpu: Gpu) -> CardPlan:
    """Return the plan in the compiler's output, whose sums must be the compiler's totals."""
    hlo = read_hlo(compiled.hlo)
    plan = build_plan(hlo, platform=gpu.name)
    for name in ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes"):
        ours, theirs = getattr(plan, name), getattr(compiled.statistics, name)
        if ours != theirs:
            raise AccountingError(
                f"the plan for {gpu.name} has {name} {ours}, the compiler says {theirs}"
            )
    trials = find_trials(hlo, gpu.compute_capability)
    return CardPlan(plan=replace(plan, trials=trials), compiled=compiled)


class PlanCache:
    """Compiled plans by key in a folder; None for no cache."""

    def __init__(self, folder: Path | None, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes

    def find(self, key: str) -> CompiledModule | None:
        """Return the plan with this key; None if there is none or it cannot be read."""
        if self.folder is None:
            return None
        file = self.folder / f"{key}{_SUFFIX}"
        try:
            plan = unpack_plan(file.read_bytes())
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):
            file.touch()
        return plan

    def store(self, key: str, plan: CompiledModule) -> None:
        """Write a plan atomically, and remove the oldest plans beyond the limit."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder) as place:
                part = Path(place) / key
                part.write_bytes(pack_plan(plan))
                part.replace(self.folder / f"{key}{_SUFFIX}")
            files = [(file.stat(), file) for file in self.folder.glob(f"*{_SUFFIX}")]
            total = 0
            for stat, file in sorted(files, key=lambda one: one[0].st_mtime, reverse=True):
                total += stat.st_size
                if total > self._limit_bytes:
                    file.unlink(missing_ok=True)


def pack_plan(plan: CompiledModule) -> bytes:
    """Return the content of a plan's file."""
    head = PlanHead(
        compiler=plan.compiler,
        statistics=plan.statistics,
        sha256=hashlib.sha256(plan.hlo).hexdigest(),
        module_sha256=plan.module_sha256,
    )
    return pack(json.dumps(asdict(head)).encode() + b"\n" + plan.hlo)


def unpack_plan(content: bytes) -> CompiledModule:
    """Return the plan in a file's content.

    Raises:
        ValueError: the content is damaged.
    """
    line, _, hlo = unpack(content).partition(b"\n")
    try:
        head = decode_record(line, PlanHead, CARD_VERSION)
    except RecursionError:
        raise ValueError("the first line is nested too deeply") from None
    if hashlib.sha256(hlo).hexdigest() != head.sha256:
        raise ValueError("the digest differs")
    return CompiledModule(
        hlo=hlo,
        statistics=head.statistics,
        compiler=head.compiler,
        module_sha256=head.module_sha256,
    )


def make_key(module: bytes, target: str, flags: tuple[str, ...], compiler: str) -> str:
    """Return the key of a plan: a digest of all inputs of the compiler."""
    digest = hashlib.sha256()
    for part in (_FORMAT, module, target.encode(), "\n".join(flags).encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    digest.update(compiler.encode())
    return digest.hexdigest()
