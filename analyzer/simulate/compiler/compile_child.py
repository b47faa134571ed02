"""Compile a module for a card in a child process, and return its memory plan.

A child is needed because XLA reads its flags once per process, because a compiler that aborts must not
end the command, and because its memory is freed at its end. The child dies with its parent, and its
folder with all files of XLA and ptxas is always removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from analyzer.cards.xla_compiler import Compiler, path_flag
from analyzer.model.contract.card_note import (
    ANSWER_FILE,
    COMPILE_VERSION,
    MODULE_FILE,
    REQUEST_FILE,
    CompileAnswer,
    CompileRequest,
    Statistics,
)
from analyzer.model.contract.child_messages import read_message, write_message
from analyzer.model.errors import AnalyzerError, CompilerUnavailable
from analyzer.simulate.compiler.card_options import TIME_OUT_S
from analyzer.simulate.compiler.spared_products import find_op_names, without_triton

_WORKER: Final = (sys.executable, "-m", "analyzer.simulate.compiler.compiler_worker")
_POLL_S: Final = 0.1  # seconds between checks of the child
_LONGEST: Final = 300  # characters of the compiler's message in an error

_MOST_RETRIES: Final = 12
"""Most compilations of one module, each with products of one more shape moved to cuBLAS."""

_UNKNOWN_FLAG: Final = "Unknown flag"
"""Text of XLA's error for an unknown flag, on which it dies (``parse_flags_from_env.cc``)."""

Progress = Callable[[str, float], None]


class CompilerRefused(CompilerUnavailable):
    """The compiler did not compile this module; other flags may help.

    Args:
        ops: The framework's op names in the compiler's message.
        has_unknown_flag: Whether the compiler does not know one of the XLA flags.
    """

    def __init__(
        self, message: str, *, ops: frozenset[str] = frozenset(), has_unknown_flag: bool = False
    ) -> None:
        super().__init__(message)
        self.ops = ops
        self.has_unknown_flag = has_unknown_flag


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledModule:
    """A module compiled for a card.

    Attributes:
        module_sha256: Digest of the input module; empty if unknown.
    """

    hlo: bytes
    statistics: Statistics
    compiler: str
    module_sha256: str = ""
    is_cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """Settings of a compilation.

    Attributes:
        target: The card: ``GpuTargetConfigProto`` in text form.
        flags: XLA flags in addition to the flags that write the plan.
        folder: Parent of the temporary folder; None for the system's default.
        progress: Called with the stage and the estimated share of time.
    """

    target: str
    compiler: Compiler
    flags: tuple[str, ...] = ()
    time_out_s: float = TIME_OUT_S
    folder: Path | None = None
    progress: Progress | None = None

    def report(self, share: float) -> None:
        """Report the estimated share of time, 0 to 1."""
        if self.progress is not None:
            self.progress("compiling for the card", share)


def compile_with_retries(module: bytes, how: Compilation) -> CompiledModule:
    """Compile a module; retry with cuBLAS for products on which Triton fails."""
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
            return replace(made, module_sha256=hashlib.sha256(module).hexdigest())
    raise CompilerRefused(f"XLA's compiler refused {_MOST_RETRIES} matrix products in turn.")


def compile_in_child(module: bytes, how: Compilation) -> CompiledModule:
    """Compile ``module``, a serialized ``HloModuleProto`` that is not optimised."""
    with tempfile.TemporaryDirectory(
        prefix=".xla-", dir=how.folder, ignore_cleanup_errors=True
    ) as temporary:
        place = Path(temporary).resolve()
        (place / MODULE_FILE).write_bytes(module)
        request = CompileRequest(library=str(how.compiler.library), target=how.target)
        write_message(place / REQUEST_FILE, request)
        dump = place / "dump"
        log = place / "log"
        expected_s = 1.0 + 3.0 * len(module) / 1e6  # measured: 1.4 s for 78 kB, 10 s for 3.5 MB
        code = _run(
            place,
            log,
            _environment(place, dump, how.compiler, how.flags),
            how.time_out_s,
            lambda elapsed_s: how.report(min(0.95, elapsed_s / expected_s)),
        )
        statistics = _statistics(place, code, log)
        plans = sorted(
            dump.glob("*after_optimizations.hlo.pb"), key=lambda file: file.stat().st_size
        )
        if not plans:
            raise CompilerUnavailable("XLA's compiler left no buffer assignment.")
        how.report(1.0)
        return CompiledModule(
            hlo=plans[-1].read_bytes(),
            statistics=statistics,
            compiler=how.compiler.version,
            module_sha256=hashlib.sha256(module).hexdigest(),
        )


def _statistics(place: Path, code: int, log: Path) -> Statistics:
    """Return the compiler's totals in the child's answer."""
    file = place / ANSWER_FILE
    if not file.is_file():
        message = _describe_death(code, log)
        raise CompilerRefused(message, has_unknown_flag=_UNKNOWN_FLAG in message)
    try:
        answer = read_message(file, CompileAnswer, COMPILE_VERSION)
    except AnalyzerError as error:
        raise CompilerUnavailable(error.message, hint=error.hint) from None
    if answer.statistics is None:
        message = f"XLA's compiler refused: {_shorten(answer.refused)}"
        raise CompilerRefused(message, ops=find_op_names(answer.refused))
    return answer.statistics


def _environment(
    place: Path, dump: Path, compiler: Compiler, flags: tuple[str, ...]
) -> dict[str, str]:
    """Return the child's environment, with the XLA flags and the folder for temporary files."""
    all_flags = (
        *flags,
        path_flag("--xla_gpu_cuda_data_dir", compiler.cuda),
        path_flag("--xla_dump_to", dump),
        "--xla_dump_hlo_as_proto",
    )
    root = str(Path(__file__).parents[3])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "XLA_FLAGS": " ".join(all_flags),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TMPDIR": str(place),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def _run(
    place: Path,
    log: Path,
    environment: dict[str, str],
    time_out_s: float,
    waiting: Callable[[float], None],
) -> int:
    """Run the child to its end and return its exit status."""
    started = time.monotonic()
    with log.open("wb") as log_file:
        # In a new session, ptxas, which the child starts, ends with it.
        child = subprocess.Popen(
            [*_WORKER, str(place)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=place,
            start_new_session=True,
        )
        try:
            while True:
                elapsed_s = time.monotonic() - started
                if elapsed_s > time_out_s:
                    raise CompilerUnavailable(
                        f"XLA's compiler did not finish within {time_out_s:.0f} s.",
                        hint="Allow more time with --compile-timeout.",
                    )
                waiting(elapsed_s)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return child.wait(timeout=min(_POLL_S, max(0.01, time_out_s - elapsed_s)))
        finally:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _describe_death(code: int, log: Path) -> str:
    how = f"ended with status {code}"
    if code < 0:
        with contextlib.suppress(ValueError):
            how = f"died of {signal.Signals(-code).name}"
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    error = next((line for line in lines if line[:1] in "EF" and "]" in line), "")
    text = (error.partition("]")[2] if error else lines[-1] if lines else "").strip()
    return f"XLA's compiler {how}" + (f": {_shorten(text)}" if text else ".")


def _shorten(text: str) -> str:
    """Return the first paragraph of a message as one line, without a stack trace."""
    head = text.partition("\n\n")[0].partition("Stack trace")[0]
    line = " ".join(head.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
