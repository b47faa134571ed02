"""``card.json`` and the ``*.plan.gz`` beside it: what a card's compiler made of a step's modules.

``card.json`` is of version 1. A plan file is a line of JSON (``PlanHead``) and an HloProto, packed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from analyzer.model.contract.fields import Bytes, Name, Text, Word
from analyzer.model.contract.reading import read_record

CARD_VERSION: Final = 1  # of the note's layout

Products = Literal["triton", "cublas"]
"""Who multiplies matrices: kernels that XLA writes with Triton, or cuBLAS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What the compiler says a module takes, in bytes.

    Attributes:
        code_bytes: The machine code, constants included; 0 where the compiler does not say.
        argument_bytes: The parameters.
        output_bytes: The results and the table of their addresses.
        alias_bytes: Results that take a parameter's place.
        temp_bytes: The temporaries.
    """

    code_bytes: Bytes
    argument_bytes: Bytes
    output_bytes: Bytes
    alias_bytes: Bytes
    temp_bytes: Bytes

    @property
    def peak_bytes(self) -> int:
        """Arguments, results and temporaries together, each byte once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHead:
    """The first line of a plan file.

    Attributes:
        compiler: Which compiler, with its version.
        statistics: Its own totals.
        sha256: Digest of the HloProto that follows.
        module_sha256: Digest of the module that was compiled; empty in a file that does not say.
    """

    compiler: Word
    statistics: Statistics
    sha256: Word
    module_sha256: Word = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionPlans:
    """The plans of one compiled function: the ops that call it, and a file for each way to multiply."""

    ops: tuple[Name, ...]
    plans: dict[Products, Name]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerFailure:
    """Why a card's compiler gave no plan: what it says and what to do."""

    message: Text
    hint: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFile:
    """What ``card.json`` holds.

    Attributes:
        schema_version: Which form of it.
        card: The catalogue's name of the card.
        functions: The plans, in the order of the note's functions that have a module; None where the
            compiler gave none.
        without_flags: Why they were made without the user's XLA flags; empty where they were not.
        failed: Why there are none; None where there are.
    """

    schema_version: int = CARD_VERSION
    card: Word
    functions: tuple[FunctionPlans, ...] | None = None
    without_flags: Text = ""
    failed: CompilerFailure | None = None


def read_card_file(path: Path) -> CardFile:
    """Read ``card.json``.

    Raises:
        TraceError: it is damaged, or a newer version wrote it.
    """
    return read_record(path, CardFile, version=CARD_VERSION, hint="Estimate again.", check=_check)


def write_card_file(path: Path, card: CardFile) -> None:
    """Write ``card.json``."""
    path.write_text(json.dumps(asdict(card), indent=1), encoding="utf-8")


def _check(card: CardFile) -> None:
    if card.failed is None and card.functions is None:
        raise ValueError("it holds neither plans nor why there are none")


COMPILE_VERSION: Final = 1

REQUEST_FILE: Final = "request.json"
MODULE_FILE: Final = "module.hlo.pb"
"""The serialized ``HloModuleProto``, not optimised."""
ANSWER_FILE: Final = "answer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """What the child is to compile the module with.

    Attributes:
        library: Path of the compiler's shared library.
        target: ``GpuTargetConfigProto`` in text form.
        schema_version: Of this record.
    """

    library: str
    target: Text
    schema_version: int = COMPILE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileAnswer:
    """What the compiler said: its totals, or why it refused.

    Attributes:
        statistics: Its own totals; None where it refused.
        refused: Its message, in as many lines as it gave; empty where it compiled.
        schema_version: Of this record.
    """

    statistics: Statistics | None = None
    refused: str = ""
    schema_version: int = COMPILE_VERSION

    def __post_init__(self) -> None:
        if (self.statistics is None) is (not self.refused):
            raise ValueError("it holds either the compiler's totals or why it refused")
