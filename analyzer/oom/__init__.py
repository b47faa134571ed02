"""Explains an out-of-memory log: the request, the state of the allocator, the cause, and advice.

Inputs: the bytes of a log of TensorFlow 2.4 or later, in any format; optionally a model's tensors.
Outputs: an ``OomReport`` with the JSON document, text for the terminal, and a page.
Restrictions: the log is untrusted; TensorFlow is not imported. ``scan/`` reads the log into records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from analyzer.model.contract.report.oom_file import OomDocument
from analyzer.oom.explain_log import ModelTensor, add_names, explain_log
from analyzer.oom.failure_case import Cause, OomCase
from analyzer.oom.scan.log_reader import read_records
from analyzer.report.output_files import DocumentOutput

__all__ = ["Cause", "ModelTensor", "OomDocument", "OomReport", "read_oom_log"]


@dataclass(frozen=True, eq=False)
class OomReport(DocumentOutput):
    """The explanation of a log: its JSON document, and each failure's chunks for the drawing."""

    document: OomDocument
    cases: list[OomCase] = field(repr=False)

    def with_model(
        self, tensors: Iterable[ModelTensor], model_name: str, *, is_target: bool = False
    ) -> OomReport:
        """Return the report with a model's tensors named; ``is_target``: a command can use it."""
        document = add_names(self.document, tensors, model_name, is_target=is_target)
        return replace(self, document=document)


def read_oom_log(stream: BinaryIO, name: str) -> OomReport:
    """Read a log and explain it, or raise an InputError for a damaged gzip header."""
    document, cases = explain_log(read_records(stream, name), name)
    return OomReport(document, cases)
