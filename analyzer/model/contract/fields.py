"""Types of the fields of a record, with the limits that every reader may rely on.

The limits are far beyond what a computer can hold, and small enough that sums and products of what was
read stay within 64 bits and loops over a count end.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

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
