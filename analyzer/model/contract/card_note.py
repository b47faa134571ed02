"""``card.json``, ``*.plan.gz`` (a line of JSON and an HloProto), compiler messages."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, to_builtins

from analyzer.model.contract.fields import Bytes, Name, Text
from analyzer.model.contract.reading import read_record

CARD_VERSION: Final = 1
COMPILE_VERSION: Final = 1

REQUEST_FILE: Final = "request.json"
ANSWER_FILE: Final = "answer.json"
MODULE_FILE: Final = "module.hlo.pb"  # the serialized ``HloModuleProto`` before optimisation

Products = Literal["triton", "cublas"]  # the implementation of matrix products


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Memory of a compiled module, as the compiler reports it."""

    code_bytes: Bytes  # with constants; 0 if unknown
    argument_bytes: Bytes
    output_bytes: Bytes  # with the table of addresses
    alias_bytes: Bytes  # results that reuse a parameter's memory
    temp_bytes: Bytes

    @property
    def peak_bytes(self) -> int:
        """Arguments, results and temporaries, each byte counted once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHead:
    """The first line of a plan file."""

    compiler: Name  # name and version
    statistics: Statistics
    sha256: Name  # of the HloProto that follows
    module_sha256: Name = ""  # of the module that was compiled; empty if unknown


class FunctionPlans(Struct, frozen=True, kw_only=True):
    """A compiled function: the ops that call it, and a plan file for each kind of product."""

    ops: tuple[Name, ...]
    plans: dict[Products, Name]


class CompilerFailure(Struct, frozen=True, kw_only=True):
    """The reason that a compiler made no plan, and what to do."""

    message: Text
    hint: Text = ""


class CardFile(Struct, frozen=True, kw_only=True):
    """The content of ``card.json``."""

    schema_version: int = CARD_VERSION
    card: Name
    functions: tuple[FunctionPlans, ...] | None = None  # as in the note; None on failure
    failed: CompilerFailure | None = None

    def __post_init__(self) -> None:
        if self.failed is None and self.functions is None:
            raise ValueError("it holds neither plans nor a failure")


class CompileRequest(Struct, frozen=True, kw_only=True):
    """A request to compile a module."""

    library: str  # the compiler's shared library
    target: Text  # ``GpuTargetConfigProto`` in text form
    schema_version: int = COMPILE_VERSION


class CompileAnswer(Struct, frozen=True, kw_only=True):
    """The compiler's answer."""

    statistics: Statistics | None = None  # None if it refused the module
    refused: str = ""  # the compiler's error message
    schema_version: int = COMPILE_VERSION

    def __post_init__(self) -> None:
        if (self.statistics is None) is (not self.refused):
            raise ValueError("it holds either the compiler's totals or an error message")


def read_card_file(path: Path) -> CardFile:
    """Read ``card.json``, or raise a TraceError."""
    return read_record(path, CardFile, version=CARD_VERSION, hint="Repeat the estimate.")


def write_card_file(path: Path, card: CardFile) -> None:
    """Write ``card.json``."""
    path.write_text(json.dumps(to_builtins(card, str_keys=True), indent=1), encoding="utf-8")
