"""An out-of-memory log explained: what was asked, what was in the way, and what the numbers support.

    log ──> scan/ ──> records ──> occupied, asked, crowds ──> judged, remedies ──> account ──> text, page
            (lines, wordings)     (worked out from the chunks)                     (the JSON)

The log is the only source; nothing of TensorFlow is imported. ``scan/`` reads, ``judged.py`` decides,
``telling.py`` and ``sheet/`` show; each needs only the records of the one before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from analyzer.model.contract.report.oom_file import OomDocument
from analyzer.oom.account import build_account, to_plain
from analyzer.oom.failure_case import Cause, OomCase
from analyzer.oom.named import ModelTensor, with_names
from analyzer.oom.scan.gathering import hear
from analyzer.report.exports.output_files import write_text

__all__ = ["Cause", "ModelTensor", "OomDocument", "OomReport", "read_oom_log"]


@dataclass(frozen=True, eq=False)
class OomReport:
    """What a log says, as one thing that can be shown and written.

    Attributes:
        document: The JSON contract, version 1.
        cases: Each failure's chunks, for drawing.
    """

    document: OomDocument
    cases: list[OomCase] = field(repr=False)

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The document as plain values."""
        return to_plain(self.document)

    def named(self, tensors: Iterable[ModelTensor], matched_with: str) -> OomReport:
        """Return the report with a model's tensors named beside the sizes."""
        return replace(self, document=with_names(self.document, tensors, matched_with))

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the document."""
        write_text(Path(path), json.dumps(self.plain, indent=1, allow_nan=False) + "\n")

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page."""
        from analyzer.oom.sheet.render import render_sheet  # its assets are read only here

        write_text(Path(path), render_sheet(self.plain, self.cases))


def read_oom_log(stream: BinaryIO, name: str) -> OomReport:
    """Read a log and explain it.

    Args:
        stream: Its bytes: plain text, gzip, UTF-16, a notebook, JSON lines of a container.
        name: What to call it.

    Raises:
        InputError: its packing is damaged from the start.
    """
    document, cases = build_account(hear(stream, name), name)
    return OomReport(document, cases)
