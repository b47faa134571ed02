"""``sweep.json``: every cell of a sweep. ``docs/sweep.schema.json`` is generated from these types."""

from __future__ import annotations

from typing import Final

from msgspec import field

from analyzer.model.contract.fields import Name, ReportRecord, Signed, Text, Total, Word
from analyzer.model.contract.report.limit_figures import Fits
from analyzer.model.contract.report.writing import build_schema

SWEEP_VERSION: Final = 1


class SweepQuestion(ReportRecord, frozen=True, kw_only=True):
    """The parameters of one cell.

    Attributes:
        target: The model or step.
        batch_size: Its batch size.
        card: The card; ``cpu`` for this machine's allocator.
        remedy: A change of the step; empty for none.
        mode, optimizer, dtype_policy, jit: As for ``analyze estimate``.
        limit_bytes: The allocator's limit; None for the card's own.
    """

    target: Text
    batch_size: Total
    card: Name
    remedy: Name = ""
    mode: Name = ""
    optimizer: Name = ""
    dtype_policy: Name = ""
    jit: bool | None = None
    limit_bytes: Total | None = None


class SweepCell(ReportRecord, frozen=True, kw_only=True):
    """The estimate of one cell.

    Attributes:
        question: Its parameters.
        requested_bytes, allocated_bytes: Predicted peak of the steady step; None on failure.
        low_bytes, high_bytes: Range of the requested peak; None if there is none.
        need_bytes: The number that is compared with the limit; None if not computed.
        limit_bytes: The limit; None without one.
        margin_bytes: Limit minus need.
        fits: Whether it fits; None without an answer.
        op: The op at the peak.
        failed: Why there is no estimate; empty on success.
    """

    schema_version: int = SWEEP_VERSION
    question: SweepQuestion
    requested_bytes: Total | None = None
    allocated_bytes: Total | None = None
    low_bytes: Total | None = None
    high_bytes: Total | None = None
    need_bytes: Total | None = None
    limit_bytes: Total | None = None
    margin_bytes: Signed | None = None
    fits: Fits = None
    op: Text = ""
    failed: Text = ""


class SweepFile(ReportRecord, frozen=True, kw_only=True):
    """A sweep.

    Attributes:
        name: Name of its configuration.
        cells: In the order of models, cards, remedies and batch sizes.
        versions: Versions of the libraries and of this package.
    """

    schema_version: int = SWEEP_VERSION
    name: Text
    cells: tuple[SweepCell, ...]
    versions: dict[Word, Word] = field(default_factory=dict)


def sweep_schema_text() -> str:
    """Return the JSON Schema of ``sweep.json``, ``docs/sweep.schema.json``."""
    return build_schema("Output of analyze sweep (sweep.json)", SweepFile)
