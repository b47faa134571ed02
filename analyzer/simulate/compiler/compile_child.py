"""Compile a module for a card in a child process, and read its memory plan.

A child is needed because XLA reads its flags once per process, and a compiler that aborts must not end
the command. The child dies with its parent; its folder with all files of XLA and ptxas is removed.
"""

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from analyzer.cards.catalogue import Gpu
from analyzer.cards.xla_compiler import Compiler, find_compiler, target_text
from analyzer.model.contract.card_note import (
    ANSWER_FILE,
    COMPILE_VERSION,
    MODULE_FILE,
    REQUEST_FILE,
    CompileAnswer,
    CompileRequest,
    PlanHead,
    Products,
    Statistics,
)
from analyzer.model.contract.child_messages import read_message, write_message
from analyzer.model.errors import AccountingError, AnalyzerError, CompilerUnavailable
from analyzer.model.xla_flags import path_flag
from analyzer.simulate.compiler.card_options import TIME_OUT_S
from analyzer.tracing.parse.hlo import read_hlo
from analyzer.tracing.parse.protobuf import message_class, read_schema
from analyzer.tracing.xla.buffer_plan import BufferPlan, build_plan
from analyzer.tracing.xla.compile_trials import find_trials

_WORKER: Final = (sys.executable, "-m", "analyzer.simulate.compiler.pjrt")
_LONGEST: Final = 300  # characters of the compiler's message in an error

_MOST_RETRIES: Final = 12
"""Most compilations of one module, each with products of one more shape moved to cuBLAS."""

CUBLAS_PRODUCTS: Final = ("--xla_gpu_enable_triton_gemm=false",)
"""Use cuBLAS, with its workspace, for all matrix products instead of Triton kernels. On a card XLA's
autotuner times both and chooses for each product, so the real plan lies between the two plans."""

_HIGHEST: Final = 2  # ``PrecisionConfig.HIGHEST`` (``xla/xla_data.proto``)

_OP_NAME: Final = re.compile(r'\bop_name="([^"]*)"')

_SCHEMA: Final = read_schema("products")
_Module: Final = message_class("analyzer.spared_products", _SCHEMA, "Module")


class CompilerRefused(CompilerUnavailable):
    """The compiler did not compile this module; other flags may help."""

    ops: frozenset[str] = frozenset()  # the framework's op names in the compiler's message


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledModule:
    """A module compiled for a card."""

    hlo: bytes
    head: PlanHead


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """The memory plan of a module on a card."""

    plan: BufferPlan
    compiled: CompiledModule


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """Settings of a compilation."""

    gpu: Gpu
    flags: tuple[str, ...] = ()  # XLA flags in addition to the flags that write the plan
    time_out_s: float = TIME_OUT_S
    folder: Path | None = None  # parent of the temporary folder; None for the system's default
    compiler: Compiler | None = None  # none for the installed one


def central(plans: Mapping[Products, CardPlan]) -> CardPlan:
    """Return the plan to show: with XLA's default products if it could be compiled."""
    return plans.get("triton") or plans["cublas"]


def plan_for_card(module: bytes, how: Compilation) -> CardPlan:
    """Return the memory plan of a serialized ``HloModuleProto``, not optimised, for any device.

    Products on which Triton fails are compiled again with cuBLAS.
    """
    variant = module
    for _ in range(_MOST_RETRIES):
        try:
            made = compile_in_child(variant, how)
        except CompilerRefused as why:
            spared = without_triton(variant, why.ops)
            if spared is None:
                raise
            variant = spared
        else:
            digest = hashlib.sha256(module).hexdigest()
            head = replace(made.head, module_sha256=digest)
            return check_plan(replace(made, head=head), how.gpu)
    raise CompilerRefused(f"XLA's compiler refused {_MOST_RETRIES} matrix products in turn.")


def check_plan(compiled: CompiledModule, gpu: Gpu) -> CardPlan:
    """Return the plan in the compiler's output, whose sums must be the compiler's totals."""
    hlo = read_hlo(compiled.hlo)
    plan = build_plan(hlo, platform=gpu.name)
    for name in ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes"):
        ours, theirs = getattr(plan, name), getattr(compiled.head.statistics, name)
        if ours != theirs:
            raise AccountingError(
                f"the plan for {gpu.name} has {name} {ours}, the compiler says {theirs}"
            )
    trials = find_trials(hlo, gpu.compute_capability)
    return CardPlan(plan=replace(plan, trials=trials), compiled=compiled)


def without_triton(module: bytes, ops: Iterable[str]) -> bytes | None:
    """Return the module with the products of some ops, and equal ones, moved to cuBLAS.

    On a card XLA tries several kernels for each product and uses cuBLAS if all fail. Without a card
    it refuses the module if its first kernel fails. XLA never uses Triton for a product with more
    than the default precision (``CanTritonHandleGEMM``, ``triton_support_legacy.cc``), and cuBLAS
    needs the same memory for any precision. So a raised precision moves it. None without such products.
    """
    proto = _Module()
    try:
        proto.ParseFromString(module)
    except DecodeError:
        return None
    wanted = {name.encode() for name in ops}
    instructions = [one for part in proto.computations for one in part.instructions]
    shapes = {one.id: (one.shape.element_type, *one.shape.dimensions) for one in instructions}

    def kind(one: Any) -> tuple[Any, ...]:
        return shapes[one.id], *(shapes.get(number) for number in one.operand_ids)

    dots = [one for one in instructions if one.opcode == b"dot"]
    products = [one for one in dots if _HIGHEST not in one.precision.operand_precision]
    kinds = {kind(one) for one in products if one.metadata.op_name in wanted}
    for one in products:
        if kind(one) in kinds:
            one.precision.operand_precision[:] = [_HIGHEST, _HIGHEST]
    return bytes(proto.SerializeToString()) if kinds else None


def compile_in_child(module: bytes, how: Compilation) -> CompiledModule:
    """Compile ``module``, a serialized ``HloModuleProto`` that is not optimised."""
    compiler = how.compiler or find_compiler()
    with tempfile.TemporaryDirectory(
        prefix=".xla-", dir=how.folder, ignore_cleanup_errors=True
    ) as temporary:
        place = Path(temporary).resolve()
        (place / MODULE_FILE).write_bytes(module)
        request = CompileRequest(library=str(compiler.library), target=target_text(how.gpu))
        write_message(place / REQUEST_FILE, request)
        statistics = _read_statistics(place, _run(place, how, compiler))
        plans = (place / "dump").glob("*after_optimizations.hlo.pb")
        largest = max(plans, key=lambda file: file.stat().st_size, default=None)
        if largest is None:
            raise CompilerUnavailable("XLA's compiler left no buffer assignment.")
        hlo = largest.read_bytes()
        digest = hashlib.sha256(hlo).hexdigest()
        head = PlanHead(compiler=compiler.version, statistics=statistics, sha256=digest)
        return CompiledModule(hlo=hlo, head=head)


def _read_statistics(place: Path, code: int) -> Statistics:
    """Return the compiler's totals in the answer of a child with this exit status."""
    file = place / ANSWER_FILE
    if not file.is_file():
        how = f"ended with status {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"died of {signal.Signals(-code).name}"
        log = (place / "log").read_text("utf-8", "replace")
        lines = [line for line in log.splitlines() if line.strip()]
        errors = [line.partition("]")[2] for line in lines if line[0] in "EF" and "]" in line]
        text = [*errors[:1], *lines[-1:]][:1]
        end = f": {_shorten(text[0].strip())}" if text else "."
        raise CompilerRefused(f"XLA's compiler {how}{end}")
    try:
        answer = read_message(file, CompileAnswer, COMPILE_VERSION)
    except AnalyzerError as error:
        raise CompilerUnavailable(error.message, hint=error.hint) from None
    if answer.statistics is None:
        refused = CompilerRefused(f"XLA's compiler refused: {_shorten(answer.refused)}")
        refused.ops = frozenset(_OP_NAME.findall(answer.refused))
        raise refused
    return answer.statistics


def _run(place: Path, how: Compilation, compiler: Compiler) -> int:
    flags = (
        *how.flags,
        path_flag("--xla_gpu_cuda_data_dir", compiler.cuda),
        path_flag("--xla_dump_to", place / "dump"),
        "--xla_dump_hlo_as_proto",
    )
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "XLA_FLAGS": " ".join(flags),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TMPDIR": str(place),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    with (place / "log").open("wb") as log:
        # In a new session, ptxas, which the child starts, ends with it.
        child = subprocess.Popen(
            [*_WORKER, str(place)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=place,
            start_new_session=True,
        )
        try:
            return child.wait(timeout=how.time_out_s)
        except subprocess.TimeoutExpired:
            raise CompilerUnavailable(
                f"XLA's compiler did not finish within {how.time_out_s:.0f} s.",
                hint="Allow more time with --compile-timeout.",
            ) from None
        finally:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _shorten(text: str) -> str:
    line = " ".join(text.partition("\n\n")[0].partition("Stack trace")[0].split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
