"""``sweep.json``: every cell of a sweep. ``docs/sweep.schema.json`` is generated from these types."""

from __future__ import annotations

from typing import Final

from msgspec import field

from analyzer.model.contract.fields import Name, ReportRecord, Signed, Text, Total
from analyzer.model.contract.report.limit_figures import Fits

SWEEP_VERSION: Final = 1


class SweepQuestion(ReportRecord, frozen=True, kw_only=True):
    """The parameters of one cell; the card ``cpu`` is this machine's allocator."""

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
    """The predicted peak of the steady step in one cell; ``need_bytes`` is compared with the limit."""

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
    """A sweep."""

    schema_version: int = SWEEP_VERSION
    name: Text
    cells: tuple[SweepCell, ...]
    versions: dict[Name, Name] = field(default_factory=dict)
