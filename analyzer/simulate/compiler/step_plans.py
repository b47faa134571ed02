"""The memory plans of a step's compiled functions on a card, and their uncertainty.

The plans are stored in the run folder (``card.json`` and one file per plan), so that a saved estimate
needs no compiler.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from analyzer.cards.catalogue import Gpu
from analyzer.cards.xla_compiler import compiler_flags
from analyzer.model.contract.card_note import (
    CardFile,
    CompilerFailure,
    FunctionPlans,
    Products,
    read_card_file,
    write_card_file,
)
from analyzer.model.contract.reading import read_regular_file, sibling_file, unpack
from analyzer.model.errors import AccountingError, CompilerUnavailable, TraceError
from analyzer.simulate.compiler.card_compilation import (
    CardPlan,
    central,
    checked_plan,
    plan_for_card,
)
from analyzer.simulate.compiler.card_options import CardOptions
from analyzer.simulate.compiler.compile_child import CompilerRefused, Progress
from analyzer.simulate.compiler.plan_cache import PlanCache, pack_plan, unpack_plan
from analyzer.simulate.compiler.plan_uncertainty import (
    TRITON_FROM,
    PlanDoubts,
    card_doubts,
    cpu_doubts,
)
from analyzer.tracing.parse.run_folder import CompiledNote, RunNote
from analyzer.tracing.xla.assignment import build_plan
from analyzer.tracing.xla.buffer_plan import BufferPlan
from analyzer.tracing.xla.plan_contents import set_fixed_inputs

CARD_FILE: Final = "card.json"

_NO_TRIALS: Final = "xla_gpu_autotune_level=0"
"""The flag that disables trials of algorithms during compilation."""

BOTH_UP_TO_BYTES: Final = 1_000_000
"""Modules up to this total size are compiled a second time, with cuBLAS, which takes seconds. Larger
modules (ResNet50: 3.5 MB, 10 s) only on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardStep:
    """The plans of a step's compiled functions on a card.

    Attributes:
        plans: Plan of each function, by the name of the op that calls it.
        compiler: Name and version of the compiler; empty if the plans are for the CPU.
    """

    plans: Mapping[str, BufferPlan]
    doubts: PlanDoubts
    compiler: str


@dataclass(slots=True)
class _Plans:
    """The plans of one function, by library for matrix products."""

    ops: tuple[str, ...]
    plans: dict[Products, CardPlan] = field(default_factory=dict)


def card_step(
    note: RunNote,
    folder: Path,
    gpu: Gpu,
    cache: PlanCache,
    *,
    options: CardOptions = CardOptions(),  # noqa: B008 (immutable)
    keep: bool = False,
    progress: Progress | None = None,
) -> CardStep:
    """Return the plans of a note's compiled functions on a card.

    Args:
        folder: The run folder; plans stored there are used.

    Raises:
        CompilerUnavailable: the compiler is missing, refused, died or took too long, now or when the
            folder was written (``keep_failure``).
        TraceError: a module or a plan in the folder is damaged.
    """
    functions = [one for one in note.compiled if one.module is not None]
    flags = compiler_flags(note.environment.get("XLA_FLAGS", ""))
    found, unknown = _read_plans(folder, gpu, functions)
    if found is None or (options.both and _lacks_cublas(found, gpu)):
        job = _Job(gpu=gpu, cache=cache, folder=folder, options=options, progress=progress)
        found, unknown = job.run(functions, flags)
        if keep:
            _write_plans(folder, gpu, found, unknown)
    shown = [central(one.plans) for one in found]
    plans: dict[str, BufferPlan] = {}
    for one, plan in zip(functions, shown, strict=True):
        shown_plan = set_fixed_inputs(plan.plan, one)
        if any(flag.endswith(_NO_TRIALS) for flag in flags):
            shown_plan = replace(shown_plan, trials=())
        plans |= dict.fromkeys(one.ops, shown_plan)
    return CardStep(
        plans=plans,
        doubts=_with_flags(card_doubts([one.plans for one in found], gpu), flags, unknown),
        compiler=shown[0].compiled.compiler if shown else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A compilation of several functions; see ``card_step``."""

    gpu: Gpu
    cache: PlanCache
    folder: Path
    options: CardOptions
    progress: Progress | None
    flags: tuple[str, ...] = ()

    def run(
        self, functions: list[CompiledNote], flags: tuple[str, ...]
    ) -> tuple[list[_Plans], str]:
        """Return the plans with the user's flags; without them, and why, if a flag is unknown."""
        try:
            return replace(self, flags=flags).plans(functions), ""
        except CompilerRefused as why:
            if not flags or not why.has_unknown_flag:
                raise
            return self.plans(functions), why.message

    def plans(self, functions: list[CompiledNote]) -> list[_Plans]:
        """Return the plans of the functions."""
        modules = [module_of(one) for one in functions]
        total = sum(map(len, modules)) or 1
        both = self.options.both
        if both is None:
            both = total <= BOTH_UP_TO_BYTES
        found, done = [], 0
        for one, module in zip(functions, modules, strict=True):
            plans = self._compile(module, both=both, start=done / total, share=len(module) / total)
            found.append(_Plans(one.ops, {plan.products: plan for plan in plans}))
            done += len(module)
        return found

    def _compile(
        self, module: bytes, *, both: bool, start: float, share: float
    ) -> Iterator[CardPlan]:
        """Compile one module, with cuBLAS only if Triton fails."""
        has_triton = self.gpu.compute_capability >= TRITON_FROM
        half = share / 2 if has_triton and both else share
        try:
            yield self._plan(module, cublas=False, start=start, share=half)
        except CompilerRefused as why:
            if not has_triton or why.has_unknown_flag:
                raise
            both = True
        if both and has_triton:
            yield self._plan(module, cublas=True, start=start + share - half, share=half)

    def _plan(self, module: bytes, *, cublas: bool, start: float, share: float) -> CardPlan:
        return plan_for_card(
            module,
            self.gpu,
            self.cache,
            cublas=cublas,
            users=self.flags,
            time_out_s=self.options.time_out_s,
            folder=self.folder,
            progress=_share_progress(self.progress, start, share),
        )


def cpu_step(note: RunNote, gpu: Gpu, why: CompilerUnavailable) -> CardStep | None:
    """Return the plans for the CPU instead of a card; None if the note has none."""
    if any(one.plan is None for one in note.compiled):
        return None
    plans = {
        name: set_fixed_inputs(build_plan(one.plan, platform=one.platform), one)
        for one in note.compiled
        if one.plan is not None
        for name in one.ops
    }
    return CardStep(plans=plans, doubts=cpu_doubts(plans.values(), gpu, why), compiler="")


def _with_flags(doubts: PlanDoubts, flags: tuple[str, ...], unknown: str) -> PlanDoubts:
    """Return the uncertainty with a sentence about the user's ``XLA_FLAGS``."""
    if not flags:
        return doubts
    word = f"Compiled with the XLA_FLAGS of this environment: {' '.join(flags)}"
    if unknown:
        word = f"Compiled without the XLA_FLAGS of this environment ({' '.join(flags)}): {unknown}"
    return replace(doubts, because=(*doubts.because, word))


def _lacks_cublas(found: list[_Plans], gpu: Gpu) -> bool:
    return gpu.compute_capability >= TRITON_FROM and any("cublas" not in one.plans for one in found)


def keep_failure(folder: Path, gpu: Gpu, why: CompilerUnavailable) -> None:
    """Store in the run folder that the compiler failed, so that no later command calls it."""
    failed = CompilerFailure(message=why.message, hint=why.hint)
    write_card_file(folder / CARD_FILE, CardFile(card=gpu.id, failed=failed))


def module_of(one: CompiledNote) -> bytes:
    """Return the serialized module of a function, before XLA's passes."""
    assert one.module is not None
    try:
        return unpack(read_regular_file(one.module))
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{one.module} cannot be read ({error}).", hint="Run the estimate once more."
        ) from None


def _share_progress(progress: Progress | None, start: float, share: float) -> Progress | None:
    if progress is None:
        return None
    return lambda stage, done: progress(stage, start + share * done)


def _write_plans(folder: Path, gpu: Gpu, found: list[_Plans], unknown: str) -> None:
    rows = []
    for number, one in enumerate(found):
        files: dict[Products, str] = {}
        for products, plan in one.plans.items():
            files[products] = f"card-{number}-{products}.plan.gz"
            (folder / files[products]).write_bytes(pack_plan(plan.compiled))
        rows.append(FunctionPlans(ops=one.ops, plans=files))
    card = CardFile(card=gpu.id, functions=tuple(rows), without_flags=unknown)
    write_card_file(folder / CARD_FILE, card)


def _read_plans(
    folder: Path, gpu: Gpu, functions: list[CompiledNote]
) -> tuple[list[_Plans] | None, str]:
    """Return the plans in the folder, and why they were compiled without the user's flags.

    None if there are none for this card and step.

    Raises:
        CompilerUnavailable: the compiler failed when the folder was written.
        TraceError: a plan is damaged, or belongs to another module.
    """
    file = folder / CARD_FILE
    if not file.is_file():
        return None, ""
    card = read_card_file(file)
    if card.card != gpu.id:
        return None, ""
    if card.failed is not None:
        raise CompilerUnavailable(card.failed.message, hint=card.failed.hint)
    rows = card.functions or ()
    if [row.ops for row in rows] != [one.ops for one in functions]:
        return None, ""
    found = []
    for row, one in zip(rows, functions, strict=True):
        if not row.plans:
            return None, ""
        digest = hashlib.sha256(module_of(one)).hexdigest()
        plans = {
            products: _read_plan(file, name, products, gpu, digest)
            for products, name in row.plans.items()
        }
        found.append(_Plans(one.ops, plans))
    return found, card.without_flags


def _read_plan(file: Path, name: str, products: Products, gpu: Gpu, digest: str) -> CardPlan:
    """Read a plan beside ``card.json``, compiled from the module with this digest."""
    try:
        compiled = unpack_plan(read_regular_file(sibling_file(file, name)))
        if compiled.module_sha256 not in ("", digest):
            raise ValueError("compiled from another module")
        return CardPlan(plan=checked_plan(compiled, gpu), compiled=compiled, products=products)
    except (OSError, ValueError, AccountingError) as error:
        raise TraceError(
            f"The plan {name[:80]!r} of {file} is damaged ({error}).",
            hint="Run the estimate once more.",
        ) from None
