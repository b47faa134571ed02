"""The base of the report's records, and the types of their fields."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from analyzer.model.contract.fields import Name, Text

MOST_TOTAL: Final = (1 << 62) - 1
"""Bytes, or things, that a sum may come to: a sum of two such still fits 64 bits."""

Total = Annotated[int, Meta(ge=0, le=MOST_TOTAL)]
"""Bytes, or a number of things, summed over as many as there are."""

Signed = Annotated[int, Meta(ge=-MOST_TOTAL, le=MOST_TOTAL)]
"""A difference of two totals."""

Instant = Annotated[int, Meta(ge=-1, le=(1 << 40))]
"""A row of the events: the state just after it; -1 is the state before the first one."""

Picoseconds = Annotated[int, Meta(ge=-MOST_TOTAL, le=MOST_TOTAL)]
"""A time on the trace's clock."""

Cell = bool | Signed | float | Text | None
"""A value in a table of evidence. A number that JSON does not have is null."""

EvidenceRow = dict[Name, Cell]
"""One row of a finding's evidence, by column; a finding's rows have the same columns."""


class ReportRecord(Struct, frozen=True):
    """A part of a report."""
