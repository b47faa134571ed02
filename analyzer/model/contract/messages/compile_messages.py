"""What the child that compiles a module is asked, and what it answers: a file each in its folder.

The module itself lies beside them as the compiler reads it. Version 1 of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.card_note import Statistics
from analyzer.model.contract.fields import Text

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
