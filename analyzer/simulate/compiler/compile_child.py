"""Compile a module for a card in a child process, and bring back its memory plan.

A child, because XLA reads its flags once a process, because a compiler that aborts must not take the
command down, and because its memory goes back when it ends. Nothing of it stays: its folder, and all
that XLA and ptxas write, is removed however it ends, and it dies with its parent.
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
from analyzer.simulate.compiler.spared_products import ops_named, without_triton

_WORKER: Final = (sys.executable, "-m", "analyzer.simulate.compiler.compiler_worker")
_POLL_S: Final = 0.1  # seconds between two looks at the child
_LONGEST: Final = 300  # characters of the compiler's message that fit one line

_MOST_SPARED: Final = 12
"""Compilations of one module, each with the products of one more shape left to cuBLAS."""

Progress = Callable[[str, float], None]


class CompilerRefused(CompilerUnavailable):
    """The compiler was there and did not compile this module: other flags may do better.

    Args:
        message: One line.
        ops: The framework's names of the instructions that the compiler's own message shows.
    """

    def __init__(self, message: str, *, ops: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.ops = ops


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledModule:
    """A module compiled for a card.

    Attributes:
        hlo: The serialized HloProto: optimised module, schedule, buffer assignment, heap trace.
        statistics: The compiler's own totals.
        compiler: Which compiler, with its version.
        module_sha256: Digest of the module that was compiled; empty where not known.
        is_cached: It was compiled earlier and kept.
    """

    hlo: bytes
    statistics: Statistics
    compiler: str
    module_sha256: str = ""
    is_cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """For which card, and how, modules are compiled.

    Attributes:
        target: The card: ``GpuTargetConfigProto`` in text form.
        compiler: The compiler.
        flags: XLA flags beside those that make it tell the plan.
        time_out_s: Seconds after which a compilation is ended.
        folder: Where its temporary folder is made; None for the system's place.
        progress: Called with the stage and the share of the time that is likely gone.
    """

    target: str
    compiler: Compiler
    flags: tuple[str, ...] = ()
    time_out_s: float = TIME_OUT_S
    folder: Path | None = None
    progress: Progress | None = None

    def tell(self, share: float) -> None:
        """Say how much of the time is likely gone, 0 to 1."""
        if self.progress is not None:
            self.progress("compiling for the card", share)


def compile_sparing(module: bytes, how: Compilation) -> CompiledModule:
    """Compile as ``compile_in_child``, with the products that Triton cannot write left to cuBLAS.

    Raises:
        CompilerRefused: it refused the module, and for no product of it.
        CompilerUnavailable: it took too long.
    """
    given = module
    for _ in range(_MOST_SPARED):
        try:
            made = compile_in_child(given, how)
        except CompilerRefused as why:
            spared = without_triton(given, why.ops)
            if spared is None:
                raise
            given = spared
        else:
            return replace(made, module_sha256=hashlib.sha256(module).hexdigest())
    raise CompilerRefused(f"XLA's compiler refused {_MOST_SPARED} products one after the other.")


def compile_in_child(module: bytes, how: Compilation) -> CompiledModule:
    """Compile ``module``, a serialized ``HloModuleProto`` that is not optimised.

    Raises:
        CompilerRefused: it refused the module or died; the message is one line.
        CompilerUnavailable: it took too long, or its answer cannot be read.
    """
    with tempfile.TemporaryDirectory(
        prefix=".xla-", dir=how.folder, ignore_cleanup_errors=True
    ) as made:
        place = Path(made).resolve()  # the child works there
        (place / MODULE_FILE).write_bytes(module)
        request = CompileRequest(library=str(how.compiler.library), target=how.target)
        write_message(place / REQUEST_FILE, request)
        dump = place / "dump"
        log = place / "log"
        expected_s = 1.0 + 3.0 * len(module) / 1e6  # seen: 1.4 s for 78 kB, 10 s for 3.5 MB
        code = _run(
            place,
            log,
            _environment(place, dump, how.compiler, how.flags),
            how.time_out_s,
            lambda gone_s: how.tell(min(0.95, gone_s / expected_s)),
        )
        statistics = _statistics(place, code, log)
        plans = sorted(
            dump.glob("*after_optimizations.hlo.pb"), key=lambda file: file.stat().st_size
        )
        if not plans:
            raise CompilerUnavailable("XLA's compiler left no buffer assignment.")
        how.tell(1.0)
        return CompiledModule(
            hlo=plans[-1].read_bytes(),
            statistics=statistics,
            compiler=how.compiler.version,
            module_sha256=hashlib.sha256(module).hexdigest(),
        )


def _statistics(place: Path, code: int, log: Path) -> Statistics:
    """Return the compiler's totals from what the child answered.

    Args:
        place: The folder that it worked in.
        code: Its exit code.
        log: What it printed.

    Raises:
        CompilerRefused: it refused the module or died.
        CompilerUnavailable: its answer cannot be read.
    """
    file = place / ANSWER_FILE
    if not file.is_file():
        raise CompilerRefused(_how_it_died(code, log))
    try:
        answer = read_message(file, CompileAnswer, COMPILE_VERSION)
    except AnalyzerError as error:
        raise CompilerUnavailable(error.message, hint=error.hint) from None
    if answer.statistics is None:
        told = answer.refused
        raise CompilerRefused(f"XLA's compiler refused: {_one_line(told)}", ops=ops_named(told))
    return answer.statistics


def _environment(
    place: Path, dump: Path, compiler: Compiler, flags: tuple[str, ...]
) -> dict[str, str]:
    """Return the child's environment: the XLA flags asked for and ours, temporary files beside it."""
    ours = (
        *flags,
        path_flag("--xla_gpu_cuda_data_dir", compiler.cuda),
        path_flag("--xla_dump_to", dump),
        "--xla_dump_hlo_as_proto",
    )
    root = str(Path(__file__).parents[3])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "XLA_FLAGS": " ".join(ours),
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
    """Run the child to its end and return its exit status.

    Raises:
        CompilerUnavailable: it took too long.
    """
    started = time.monotonic()
    with log.open("wb") as log_file:
        # A session of its own: ptxas, which it starts, ends with it.
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
                gone_s = time.monotonic() - started
                if gone_s > time_out_s:
                    raise CompilerUnavailable(
                        f"XLA's compiler was not done after {time_out_s:.0f} s.",
                        hint="Allow it more with --compile-timeout.",
                    )
                waiting(gone_s)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return child.wait(timeout=min(_POLL_S, max(0.01, time_out_s - gone_s)))
        finally:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _how_it_died(code: int, log: Path) -> str:
    how = f"ended with status {code}"
    if code < 0:
        with contextlib.suppress(ValueError):
            how = f"died of {signal.Signals(-code).name}"
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    told = next((line for line in lines if line[:1] in "EF" and "]" in line), "")
    word = (told.partition("]")[2] if told else lines[-1] if lines else "").strip()
    return f"XLA's compiler {how}" + (f": {_one_line(word)}" if word else ".")


def _one_line(text: str) -> str:
    """Return the first lines of a message as one, without what follows the matter itself."""
    head = text.partition("\n\n")[0].partition("Stack trace")[0]
    line = " ".join(head.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
