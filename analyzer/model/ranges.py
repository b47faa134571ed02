"""A range of bytes for an uncertain size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Whole bytes from ``low`` to ``high``, both included.

    Raises:
        ValueError: low is larger than high.
    """

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
    def around(cls, size_bytes: int, below: int, above: int) -> Range:
        """Return the range from ``size_bytes - below`` to ``size_bytes + above``."""
        return cls(size_bytes - below, size_bytes + above)

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

    def __contains__(self, size_bytes: int) -> bool:
        return self.low <= size_bytes <= self.high

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Range) -> Range:
        """Return the range of the difference: the least is low minus the other's high."""
        return Range(self.low - other.high, self.high - other.low)

    def shifted(self, by_bytes: int) -> Range:
        """Return the range with the same number added to both ends."""
        return Range(self.low + by_bytes, self.high + by_bytes)

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
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Range(low, high) if low <= high else None
