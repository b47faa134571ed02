"""Ranges of bytes for uncertain sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from analyzer.model.units import format_bytes


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
        """Return the range with ``below`` taken from low and ``above`` added to high."""
        return Range(self.low - below, self.high + above)

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


@dataclass(frozen=True, slots=True)
class BoundedBytes:
    """A size with the range that contains it."""

    bytes: int
    range: Range

    @classmethod
    def around(cls, size_bytes: int, low_bytes: int, high_bytes: int) -> BoundedBytes:
        """Return a size with its range, widened if the size is outside."""
        low = min(size_bytes, max(low_bytes, 0))
        high = max(size_bytes, high_bytes)
        return cls(size_bytes, Range(low, high))

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

        return shown if low == high else f"{shown} ({low} to {high})"
