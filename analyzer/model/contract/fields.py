"""Types of the fields of a record, with the limits that every reader may rely on.

The limits are far beyond what a computer can hold, and small enough that sums and products of what was
read stay within 64 bits and loops over a count end.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

MOST_BYTES: Final = 1 << 50
"""The largest buffer that is believed: 1 PiB."""

MOST_EVENTS: Final = 1_000_000
"""The largest number of repetitions that is believed: steps asked for, constants kept, compilations."""

MOST_AXES: Final = 254
"""Axes of a tensor (``tensor_shape.h``: ``MaxDimensions``)."""

Bytes = Annotated[int, Meta(ge=0, le=MOST_BYTES)]
"""A size in bytes."""

Count = Annotated[int, Meta(ge=0, le=MOST_EVENTS)]
"""How often something is done."""

Index = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
"""A place in a list."""

Threads = Annotated[int, Meta(ge=0, le=4096)]
"""A number of threads; 0 where the note does not say."""

Integer = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A whole number as a protobuf holds it."""

Address = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""An address in memory."""

Axis = Annotated[int, Meta(ge=-1, le=MOST_BYTES)]
"""The size of an axis; -1 where it is not known."""

Shape = Annotated[tuple[Axis, ...], Meta(max_length=MOST_AXES)]
"""The sizes of a tensor's axes."""

Name = Annotated[str, Meta(max_length=1 << 16)]
"""The name of an op, a tensor, a variable, a scope or a function."""

Word = Annotated[str, Meta(max_length=1 << 16)]
"""A short text: a type, a version, a device, an optimizer."""

Text = Annotated[str, Meta(max_length=1 << 20)]
"""A message, or the text of an environment variable."""


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
