"""Types of the records' fields; limits far above real values keep sums and products in 64 bits."""

import math
import os
from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

# a path that a caller gives
StrPath = str | os.PathLike[str]

MOST_BYTES = 1 << 50  # limit of the size of one buffer: 1 PiB
# limit of a number of repetitions: steps, constants, compilations
MOST_EVENTS = 1_000_000
# limit of the axes of a tensor (``MaxDimensions`` in ``tensor_shape.h``)
MOST_AXES = 254
MOST_TOTAL = (
    1 << 62
) - 1  # limit of a sum, so that the sum of two such still fits 64 bits
Bytes = Annotated[int, Meta(ge=0, le=MOST_BYTES)]  # a size in bytes
Count = Annotated[int, Meta(ge=0, le=MOST_EVENTS)]  # a number of repetitions
Index = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]  # a position in a list
Threads = Annotated[int, Meta(ge=0, le=4096)]  # a number of threads; 0 if unknown
Address = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]  # a memory address
Axis = Annotated[int, Meta(ge=-1, le=MOST_BYTES)]  # the size of an axis; -1 if unknown

# the sizes of a tensor's axes
Shape = Annotated[
    tuple[Axis, ...],
    Meta(max_length=MOST_AXES),
]

# the name of an op, a tensor, a type, a device
Name = Annotated[
    str,
    Meta(max_length=1 << 16),
]

# a message, or the text of an environment variable
Text = Annotated[
    str,
    Meta(max_length=1 << 20),
]

# a sum of bytes, or a number of items
Total = Annotated[
    int,
    Meta(ge=0, le=MOST_TOTAL),
]

# a difference of two totals
Signed = Annotated[
    int,
    Meta(ge=-MOST_TOTAL, le=MOST_TOTAL),
]

# The state just after a row of the events table; -1 is the state before the first event.
Instant = Annotated[int, Meta(ge=-1, le=(1 << 40))]

Cell = bool | Signed | float | Text | None  # null for a number that JSON does not have
EvidenceRow = dict[Name, Cell]  # by column; all rows of a finding have the same columns


Lengths = dict[Name, Total]  # by path in the document, such as ``layers``


class ReportRecord(Struct, frozen=True):
    """A part of a report."""


# A capture copies variables of at most this many elements into new buffers before the first step. A
# variable made from a Python number may share NumPy's memory on the CPU, which no allocator counts.
# Whether it does depends on the address that NumPy got, so the capture and the prediction exclude it.
SMALL_ELEMENTS = 64

# Bytes of one element (``tensorflow/core/framework/types.proto``). A string is a ``TF_TString``,
# which stores up to 22 characters and points to longer text. Resources and variants have no fixed
# size.
ITEM_BYTES: dict[str, int] = {
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
    "string": 24,
}


def numpy_name(dtype: str) -> str:
    """Return NumPy's name of a type in a message (``DataTypeString`` in ``types.cc``)."""
    return {"float": "float32", "half": "float16", "double": "float64"}.get(
        dtype,
        dtype,
    )


def tensor_bytes(dtype: str, shape: tuple[int, ...] | None) -> int | None:
    """Return the bytes of a tensor's elements; None if the shape or the element size is unknown."""
    item_bytes = ITEM_BYTES.get(dtype)
    if item_bytes is None or shape is None or any(axis < 0 for axis in shape):
        return None

    return item_bytes * math.prod(shape)


def check_size(dtype: str, shape: tuple[int, ...] | None) -> None:
    """Raise a ValueError if a tensor has more than ``MOST_BYTES`` bytes or elements."""
    elements = math.prod(max(axis, 1) for axis in shape or ())
    if elements * ITEM_BYTES.get(dtype, 1) > MOST_BYTES:
        raise ValueError(f"a tensor of shape {list(shape or ())[:8]} fits no computer")


class TwoSizes(ReportRecord, frozen=True, kw_only=True):
    """Bytes that live tensors requested, and bytes of the chunks that hold them."""

    requested_bytes: Total
    allocated_bytes: Total


class Choice(str, Enum):
    """An enumeration whose members are strings, like ``enum.StrEnum`` of Python 3.11."""

    def __str__(self) -> str:
        return str(self.value)


class Category(Choice):
    """The purpose of a buffer, in the order in which charts and tables list it."""

    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer_state"
    GRADIENT = "gradient"
    ACTIVATION = "activation"
    KV_CACHE = "kv_cache"
    INPUT = "input"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    CONSTANT = "constant"
    UNATTRIBUTED = "unattributed"
