"""The types of the records' fields, with the limits that are checked when a record is read.

The limits are far above real values and small enough that sums and products stay within 64 bits and
that loops over a count end.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

MOST_BYTES: Final = 1 << 50
"""Limit of the size of one buffer: 1 PiB."""

MOST_EVENTS: Final = 1_000_000
"""Limit of a number of repetitions: steps, constants, compilations."""

MOST_AXES: Final = 254
"""Limit of the number of axes of a tensor (``tensor_shape.h``: ``MaxDimensions``)."""

MOST_TOTAL: Final = (1 << 62) - 1
"""Limit of a sum, so that the sum of two such still fits 64 bits."""

Bytes = Annotated[int, Meta(ge=0, le=MOST_BYTES)]
"""A size in bytes."""

Count = Annotated[int, Meta(ge=0, le=MOST_EVENTS)]
"""A number of repetitions."""

Index = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
"""A position in a list."""

Threads = Annotated[int, Meta(ge=0, le=4096)]
"""A number of threads; 0 if unknown."""

Integer = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A signed integer of 64 bits."""

Address = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""A memory address."""

Axis = Annotated[int, Meta(ge=-1, le=MOST_BYTES)]
"""The size of an axis; -1 if unknown."""

Shape = Annotated[tuple[Axis, ...], Meta(max_length=MOST_AXES)]
"""The sizes of a tensor's axes."""

Name = Annotated[str, Meta(max_length=1 << 16)]
"""The name of an op, a tensor, a variable, a scope or a function."""

Word = Annotated[str, Meta(max_length=1 << 16)]
"""A short text: a type, a version, a device, an optimizer."""

Text = Annotated[str, Meta(max_length=1 << 20)]
"""A message, or the text of an environment variable."""

Total = Annotated[int, Meta(ge=0, le=MOST_TOTAL)]
"""A sum of bytes, or a number of items."""

Signed = Annotated[int, Meta(ge=-MOST_TOTAL, le=MOST_TOTAL)]
"""A difference of two totals."""

Instant = Annotated[int, Meta(ge=-1, le=(1 << 40))]
"""The state just after a row of the events table; -1 is the state before the first event."""

Picoseconds = Annotated[int, Meta(ge=-MOST_TOTAL, le=MOST_TOTAL)]
"""A time on the trace's clock."""

Cell = bool | Signed | float | Text | None
"""A value in a finding's evidence; null for a number that JSON does not have."""

EvidenceRow = dict[Name, Cell]
"""One row of a finding's evidence, by column; all rows of a finding have the same columns."""


class ReportRecord(Struct, frozen=True):
    """A part of a report."""
