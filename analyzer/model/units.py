"""Sizes as text, and ranges of uncertain sizes. Sizes are whole bytes everywhere in the package."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from analyzer.model.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# TensorFlow's allocator rounds every request up to a multiple of this
# (``BFCAllocator::kMinAllocationSize``, ``xla/tsl/framework/bfc_allocator.h``).
GRANULE_BYTES = 256

_Sizes = TypeVar("_Sizes", int, "NDArray[np.int64]")

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_FACTORS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def round_up(size_bytes: _Sizes) -> _Sizes:
    """Return a size, or an array of sizes, rounded up to a multiple of 256 bytes."""
    return -(-size_bytes // GRANULE_BYTES) * GRANULE_BYTES


def format_option_bytes(size_bytes: int) -> str:
    """Return an exact size as an option takes it: ``300MiB`` or ``314572801B``."""
    if size_bytes % (1 << 20):
        return f"{size_bytes}B"

    return f"{size_bytes >> 20}MiB"


def format_bytes(size_bytes: int | float) -> str:
    """Return a size in the largest binary unit in which it is at least 1: ``1.50 KiB``, ``1023 B``."""
    sign = "-" if size_bytes < 0 else ""
    size = abs(float(size_bytes))
    unit = 0

    # 1023.995 KiB would be rounded to 1024.00 KiB, so compare after rounding.
    while unit + 1 < len(_BINARY) and round(size, 2 if unit else 0) >= 1024:
        size /= 1024
        unit += 1

    digits = 0 if unit == 0 else 2 if size < 100 else 1

    return f"{sign}{size:.{digits}f} {_BINARY[unit]}"


def signed_bytes(size_bytes: int | float) -> str:
    """Return a difference of sizes with its sign: ``+1.50 KiB``."""
    return f"{'-' if size_bytes < 0 else '+'}{format_bytes(round(abs(size_bytes)))}"


def parse_bytes(text: str) -> int:
    """Return the bytes of a text such as ``10GiB`` (binary) or ``10GB`` (decimal)."""
    match = _SIZE.fullmatch(text)
    number, unit = match.groups() if match else ("", "")

    if match is None or unit.lower() not in _FACTORS:
        raise InputError(
            f"{text!r} is not a size.",
            "Write it as 10GiB, 512MiB or 16GB.",
        )

    if not unit and float(number):
        raise InputError(
            f"{text!r} is a size without a unit.",
            f"Write it as {text.strip()}GiB or {text.strip()}MiB.",
        )

    return round(float(number) * _FACTORS[unit.lower()])


def times(count: int) -> str:
    """Return a count as words: ``once``, ``1,204 times``."""
    return "once" if count == 1 else f"{count:,} times"


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Whole bytes from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"a range from {self.low} to {self.high} bytes")

    @classmethod
    def exactly(cls, size_bytes: int) -> Range:
        """Return the range of a size that is known to the byte."""
        return cls(size_bytes, size_bytes)

    @classmethod
    def spanning(cls, sizes: Iterable[int]) -> Range:
        """Return the smallest range that contains all sizes, at least one."""
        ordered = sorted(sizes)
        return cls(ordered[0], ordered[-1])

    @property
    def is_exact(self) -> bool:
        """Whether low and high are equal."""
        return self.low == self.high

    @property
    def middle(self) -> int:
        """The middle, rounded down."""
        return (self.low + self.high) // 2

    @property
    def width(self) -> int:
        """The difference between high and low."""
        return self.high - self.low

    def __str__(self) -> str:
        """Return the size; with "about" if its digits are uncertain."""
        shown = format_bytes(self.middle)
        if format_bytes(self.low) == format_bytes(self.high):
            return shown

        return f"about {shown}"

    def __contains__(self, size_bytes: int) -> bool:
        return self.low <= size_bytes <= self.high

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Range) -> Range:
        return Range(self.low - other.high, self.high - other.low)

    def widened(self, below: int, above: int) -> Range:
        """Return the range with ``below`` taken from low, down to 0, and ``above`` added to high."""
        return Range(max(self.low - below, 0), self.high + above)

    def including(self, *sizes: int) -> Range:
        """Return the smallest range that contains this one and the sizes."""
        return Range(min(self.low, *sizes), max(self.high, *sizes))

    def at_least(self, floor: int) -> Range:
        """Return the range with both ends raised to ``floor`` if they are below it."""
        return Range(max(self.low, floor), max(self.high, floor))

    def intersection(self, other: Range) -> Range | None:
        """Return the part common to both ranges, or None if they do not overlap."""
        low = max(self.low, other.low)
        high = min(self.high, other.high)
        return Range(low, high) if low <= high else None


@dataclass(frozen=True)
class BoundedBytes:
    """A size with the range that contains it."""

    bytes: int
    range: Range

    @classmethod
    def around(cls, size_bytes: int, low_bytes: int, high_bytes: int) -> BoundedBytes:
        """Return a size with its range, widened if the size is outside."""
        low = min(size_bytes, max(low_bytes, 0))
        return cls(size_bytes, Range(low, max(size_bytes, high_bytes)))

    @classmethod
    def exactly(cls, size_bytes: int) -> BoundedBytes:
        """Return a size that is known to the byte."""
        return cls(size_bytes, Range.exactly(size_bytes))

    @classmethod
    def largest(cls, sizes: Iterable[BoundedBytes]) -> BoundedBytes:
        """Return the largest size with the largest bounds."""
        rows = [(size.bytes, size.range.low, size.range.high) for size in sizes]
        size_bytes, low, high = map(max, zip(*rows, strict=True))
        return cls(size_bytes, Range(low, high))

    def __add__(self, other: BoundedBytes) -> BoundedBytes:
        return BoundedBytes(self.bytes + other.bytes, self.range + other.range)

    def __str__(self) -> str:
        shown, low, high = map(
            format_bytes,
            (self.bytes, self.range.low, self.range.high),
        )

        if low == high:
            return shown

        return f"{shown} ({low} to {high})"


def list_first(names: Sequence[str], most: int) -> str:
    """Return the first names, and the number of the others."""
    left = len(names) - most
    shown = ", ".join(names[:most])
    return f"{shown} and {left} more" if left > 0 else shown
