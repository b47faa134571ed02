"""The memory plans of a step's compiled functions on a card.

The plans are stored in the run folder (``card.json`` and one file per plan), so that a saved estimate
needs no compiler. A plan's file is a line of JSON (``PlanHead``) and the HloProto, in gzip.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from analyzer.cards.catalogue import Gpu
from analyzer.cards.xla_compiler import compiler_flags
from analyzer.model.contract.card_note import (
    CARD_VERSION,
    CardFile,
    CompilerFailure,
    FunctionPlans,
    PlanHead,
    Products,
    read_card_file,
    write_card_file,
)
from analyzer.model.contract.reading import (
    decode_record,
    pack,
    read_regular_file,
    sibling_file,
    unpack,
)
from analyzer.model.errors import AccountingError, CompilerUnavailable, TraceError
from analyzer.simulate.compiler.card_options import CardOptions
from analyzer.simulate.compiler.compile_child import (
    CUBLAS_PRODUCTS,
    CardPlan,
    Compilation,
    CompiledModule,
    CompilerRefused,
    central,
    check_plan,
    plan_for_card,
)
from analyzer.simulate.compiler.plan_uncertainty import (
    TRITON_FROM,
    PlanDoubts,
    card_doubts,
    cpu_doubts,
)
from analyzer.tracing.parse.run_folder import CompiledNote, RunNote
from analyzer.tracing.xla.buffer_plan import BufferPlan, build_plan

CARD_FILE: Final = "card.json"

_NO_TRIALS: Final = "xla_gpu_autotune_level=0"  # disables trials during compilation

BOTH_UP_TO_BYTES: Final = 1_000_000
"""Modules up to this total size are compiled a second time, with cuBLAS, which takes seconds. Larger
modules (ResNet50: 3.5 MB, 10 s) only on request."""

Plans: TypeAlias = Mapping[Products, CardPlan]
"""The plans of one function, by library for matrix products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardStep:
    """The plans of a step's compiled functions on a card."""

    plans: Mapping[str, BufferPlan]  # plan of each function, by the name of the op that calls it
    doubts: PlanDoubts
    compiler: str  # name and version of the compiler; empty if the plans are for the CPU


def card_step(
    note: RunNote,
    folder: Path,
    gpu: Gpu,
    *,
    options: CardOptions = CardOptions(),  # noqa: B008 (immutable)
    keep: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> CardStep:
    """Return the plans of a note's compiled functions on a card.

    Plans in the run folder are used; ``keep`` stores new ones there. CompilerUnavailable: the compiler
    is missing, refused, died or took too long, now or earlier. TraceError: a file is damaged.
    """
    functions = [one for one in note.compiled if one.module_file is not None]
    flags = compiler_flags(note.environment.get("XLA_FLAGS", ""))
    found = _read_plans(folder, gpu, functions)
    has_triton = gpu.compute_capability >= TRITON_FROM
    lacks_cublas = has_triton and any("cublas" not in plans for plans in found or ())
    if found is None or (options.both and lacks_cublas):
        how = Compilation(gpu=gpu, flags=flags, time_out_s=options.time_out_s, folder=folder)
        found = _compile(functions, how, both=options.both, progress=progress)
        if keep:
            rows = []
            for number, (one, made) in enumerate(zip(functions, found, strict=True)):
                files = {kind: f"card-{number}-{kind}.plan.gz" for kind in made}
                for kind, card_plan in made.items():
                    (folder / files[kind]).write_bytes(pack_plan(card_plan.compiled))
                rows.append(FunctionPlans(ops=one.ops, plans=files))
            write_card_file(folder / CARD_FILE, CardFile(card=gpu.id, functions=tuple(rows)))
    plans: dict[str, BufferPlan] = {}
    for one, card_plan in zip(functions, map(central, found), strict=True):
        plan = card_plan.plan.with_fixed(one.fixed)
        if any(flag.endswith(_NO_TRIALS) for flag in flags):
            plan = replace(plan, trials=())
        plans |= dict.fromkeys(one.ops, plan)
    doubts = card_doubts(found, gpu)
    if flags:
        word = f"Compiled with the XLA_FLAGS of this environment: {' '.join(flags)}"
        doubts = replace(doubts, because=(*doubts.because, word))
    compiler = central(found[0]).compiled.head.compiler if found else ""
    return CardStep(plans=plans, doubts=doubts, compiler=compiler)


def _compile(
    functions: Sequence[CompiledNote],
    how: Compilation,
    *,
    both: bool | None,
    progress: Callable[[str, float], None] | None,
) -> list[Plans]:
    """Return the plans of the functions; with cuBLAS for all products also if Triton fails."""
    if how.gpu.is_amd:
        raise CompilerUnavailable("no compiler for AMD cards is available.")
    modules = [module_of(one) for one in functions]
    has_triton = how.gpu.compute_capability >= TRITON_FROM
    if both is None:
        both = sum(map(len, modules)) <= BOTH_UP_TO_BYTES
    found: list[Plans] = []
    for number, module in enumerate(modules):
        if progress is not None:
            progress("compiling for the card", number / len(modules))
        plans: dict[Products, CardPlan] = {}
        try:
            plans["triton"] = plan_for_card(module, how)
        except CompilerRefused:
            if not has_triton:
                raise
        if has_triton and (both or not plans):
            cublas = replace(how, flags=(*how.flags, *CUBLAS_PRODUCTS))
            plans["cublas"] = plan_for_card(module, cublas)
        found.append(plans)
    return found


def cpu_step(note: RunNote, gpu: Gpu, why: CompilerUnavailable) -> CardStep | None:
    """Return the plans for the CPU instead of a card; None if the note has none."""
    if any(one.hlo is None for one in note.compiled):
        return None
    plans = {
        name: build_plan(one.hlo, platform=one.platform).with_fixed(one.fixed)
        for one in note.compiled
        if one.hlo is not None
        for name in one.ops
    }
    return CardStep(plans=plans, doubts=cpu_doubts(plans.values(), gpu, why), compiler="")


def keep_failure(folder: Path, gpu: Gpu, why: CompilerUnavailable) -> None:
    """Store in the run folder that the compiler failed, so that no later command calls it."""
    failed = CompilerFailure(message=why.message, hint=why.hint)
    write_card_file(folder / CARD_FILE, CardFile(card=gpu.id, failed=failed))


def module_of(one: CompiledNote) -> bytes:
    """Return the serialized module of a function, before XLA's passes."""
    assert one.module_file is not None
    try:
        return unpack(read_regular_file(one.module_file))
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{one.module_file} cannot be read ({error}).", hint="Run the estimate once more."
        ) from None


def _read_plans(folder: Path, gpu: Gpu, functions: list[CompiledNote]) -> list[Plans] | None:
    """Return the plans in the folder; None if there are none for this card and step."""
    file = folder / CARD_FILE
    card = read_card_file(file) if file.is_file() else None
    if card is None or card.card != gpu.id:
        return None
    if card.failed is not None:
        raise CompilerUnavailable(card.failed.message, hint=card.failed.hint)
    rows = [row for row in card.functions or () if row.plans]
    if [row.ops for row in rows] != [one.ops for one in functions]:
        return None
    found: list[Plans] = []
    for row, one in zip(rows, functions, strict=True):
        digest = hashlib.sha256(module_of(one)).hexdigest()
        names = row.plans.items()
        found.append({products: _read_plan(file, name, gpu, digest) for products, name in names})
    return found


def _read_plan(file: Path, name: str, gpu: Gpu, digest: str) -> CardPlan:
    """Read a plan beside ``card.json``, compiled from the module with this digest."""
    try:
        compiled = unpack_plan(read_regular_file(sibling_file(file, name)))
        if compiled.head.module_sha256 not in ("", digest):
            raise ValueError("compiled from another module")
        return check_plan(compiled, gpu)
    except (OSError, ValueError, AccountingError) as error:
        raise TraceError(
            f"The plan {name[:80]!r} of {file} is damaged ({error}).",
            hint="Run the estimate once more.",
        ) from None


def pack_plan(plan: CompiledModule) -> bytes:
    """Return the content of a plan's file."""
    return pack(json.dumps(asdict(plan.head)).encode() + b"\n" + plan.hlo)


def unpack_plan(content: bytes) -> CompiledModule:
    """Return the plan in a file; damaged content raises a ``ValueError``."""
    line, _, hlo = unpack(content).partition(b"\n")
    try:
        head = decode_record(line, PlanHead, CARD_VERSION)
    except RecursionError:
        raise ValueError("the first line is nested too deeply") from None
    if hashlib.sha256(hlo).hexdigest() != head.sha256:
        raise ValueError("the digest differs")
    return CompiledModule(hlo=hlo, head=head)
