"""``sweep.json``: every cell of a sweep. ``docs/sweep.schema.json`` is made of these types."""

from __future__ import annotations

from typing import Final

from msgspec import field

from analyzer.model.contract.fields import Name, ReportRecord, Signed, Text, Total, Word
from analyzer.model.contract.report.limit_figures import Fits
from analyzer.model.contract.report.writing import build_schema

SWEEP_VERSION: Final = 1


class SweepQuestion(ReportRecord, frozen=True, kw_only=True):
    """What one cell asks.

    Attributes:
        target: The model or step.
        batch_size: Its batch.
        card: The card; ``cpu`` for this machine's own allocator.
        remedy: The change that is made to the step; empty for none.
        mode, optimizer, dtype_policy, jit: How the step is made, as for ``analyze estimate``.
        limit_bytes: What the allocator may use; None for the card's own limit.
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
    """One cell of a sweep: an estimate.

    Attributes:
        schema_version: Which form of sweep it is of.
        question: What it is about.
        requested_bytes, allocated_bytes: The peak of the steady step, predicted; None where it failed.
        low_bytes, high_bytes: The range of the requested peak; None where there is none.
        need_bytes: What is held against the limit; None where it was not worked out.
        limit_bytes: The limit; None without one.
        margin_bytes: The limit less the need.
        fits: Whether it fits; None where it cannot be told.
        op: The op at the peak.
        failed: Why there is no estimate; empty where there is one.
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
        schema_version: Which form of sweep it is.
        name: Its configuration's name.
        cells: In the order of the configuration: models, cards, remedies, batches.
        versions: Of what made it.
    """

    schema_version: int = SWEEP_VERSION
    name: Text
    cells: tuple[SweepCell, ...]
    versions: dict[Word, Word] = field(default_factory=dict)


def sweep_schema_text() -> str:
    """Return the JSON Schema of ``sweep.json``, ``docs/sweep.schema.json``."""
    return build_schema("What analyze sweep writes into sweep.json", SweepFile)
