"""The JSON output that results share."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from analyzer.model.contract.fields import ReportRecord
from analyzer.model.contract.report.writing import Json, encode_report, plain_report
from analyzer.report.output_files import write_text


class ReportOutput:
    """A result with a typed ``report``; ``document`` has its JSON values."""

    report: ReportRecord

    @cached_property
    def document(self) -> dict[str, Json]:
        """The report as JSON values, version 1."""
        return plain_report(self.report)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the document."""
        write_text(Path(path), encode_report(self.report))


class DocumentOutput:
    """A result with a typed ``document``; ``plain`` has its JSON values."""

    document: ReportRecord

    @cached_property
    def plain(self) -> dict[str, Json]:
        """The document as JSON values."""
        return plain_report(self.document)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the document."""
        write_text(Path(path), encode_report(self.document))
