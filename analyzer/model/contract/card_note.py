"""``card.json`` and ``*.plan.gz``: plans that XLA's compiler for a card made of a step's functions.

A plan file is a gzipped line of JSON (``PlanHead``) followed by an HloProto. This module also holds the
messages to and from the child process that runs the compiler.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from analyzer.model.contract.fields import Bytes, Name, Text, Word
from analyzer.model.contract.reading import read_record

CARD_VERSION: Final = 1
COMPILE_VERSION: Final = 1

REQUEST_FILE: Final = "request.json"
ANSWER_FILE: Final = "answer.json"
MODULE_FILE: Final = "module.hlo.pb"
"""The serialized ``HloModuleProto`` before optimisation."""

Products = Literal["triton", "cublas"]
"""The implementation of matrix products: Triton kernels of XLA, or cuBLAS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Memory of a compiled module, as the compiler reports it.

    Attributes:
        code_bytes: Machine code with constants; 0 if unknown.
        argument_bytes: Parameters.
        output_bytes: Results and the table of their addresses.
        alias_bytes: Results that reuse a parameter's memory.
        temp_bytes: Temporaries.
    """

    code_bytes: Bytes
    argument_bytes: Bytes
    output_bytes: Bytes
    alias_bytes: Bytes
    temp_bytes: Bytes

    @property
    def peak_bytes(self) -> int:
        """Arguments, results and temporaries, each byte counted once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHead:
    """The first line of a plan file.

    Attributes:
        compiler: Name and version of the compiler.
        statistics: The compiler's totals.
        sha256: Digest of the HloProto that follows.
        module_sha256: Digest of the module that was compiled; empty if unknown.
    """

    compiler: Word
    statistics: Statistics
    sha256: Word
    module_sha256: Word = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionPlans:
    """A compiled function: the ops that call it, and a plan file for each kind of product."""

    ops: tuple[Name, ...]
    plans: dict[Products, Name]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerFailure:
    """The reason that a compiler made no plan, and what to do."""

    message: Text
    hint: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFile:
    """The content of ``card.json``.

    Attributes:
        card: The card's name in the card table.
        functions: Plans, in the order of the note's functions that have a module; None on failure.
        without_flags: Why the user's XLA flags were left out; empty if they were used.
        failed: Why there is no plan; None on success.
    """

    schema_version: int = CARD_VERSION
    card: Word
    functions: tuple[FunctionPlans, ...] | None = None
    without_flags: Text = ""
    failed: CompilerFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """A request to compile a module.

    Attributes:
        library: Path of the compiler's shared library.
        target: ``GpuTargetConfigProto`` in text form.
    """

    library: str
    target: Text
    schema_version: int = COMPILE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileAnswer:
    """The compiler's answer.

    Attributes:
        statistics: The compiler's totals; None if it refused the module.
        refused: The compiler's error message; empty on success.
    """

    statistics: Statistics | None = None
    refused: str = ""
    schema_version: int = COMPILE_VERSION

    def __post_init__(self) -> None:
        if (self.statistics is None) is (not self.refused):
            raise ValueError("it holds either the compiler's totals or an error message")


def read_card_file(path: Path) -> CardFile:
    """Read ``card.json``.

    Raises:
        TraceError: It is damaged, or a newer version wrote it.
    """
    return read_record(
        path, CardFile, version=CARD_VERSION, hint="Repeat the estimate.", check=_check
    )


def write_card_file(path: Path, card: CardFile) -> None:
    """Write ``card.json``."""
    path.write_text(json.dumps(asdict(card), indent=1), encoding="utf-8")


def _check(card: CardFile) -> None:
    if card.failed is None and card.functions is None:
        raise ValueError("it holds neither plans nor a failure")
