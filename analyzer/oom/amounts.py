"""Sizes as a log prints them: some exact, most rounded to what a human reads.

TensorFlow prints ``74.16MiB`` for every byte count from 77,757,440 to 77,767,679. What is printed
is kept as that range, so that two figures of a log can be held against each other without an
invented digit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

_UNITS: Final = "KMGTPE"
_PRINTED: Final = re.compile(r"(-?)(\d+(?:\.\d+)?)\s?([KMGTPE]?)(?:i?B)?")
_LONGEST: Final = 24  # characters of a number
_MOST: Final = (1 << 63) - 1  # bytes: the largest that a signed 64-bit number holds

SIZE: Final = r"-?\d+(?:\.\d+)?(?:[KMGTPE]?i?B|[KMGT])?"
"""A size in TensorFlow's text: ``512B``, ``1.2KiB``, ``74.16MiB``, ``7.92G``, a bare number."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A byte count of which the log gives a range, both ends included; one value where it is exact."""

    low: int
    high: int

    @property
    def is_exact(self) -> bool:
        """Whether the log gives every digit."""
        return self.low == self.high

    @property
    def middle(self) -> int:
        """The value to show: the only one, or the middle of the range."""
        return (self.low + self.high) // 2

    def within(self, other: Amount) -> Amount | None:
        """Return what both ranges allow; None where they contradict each other."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Amount(low, high) if low <= high else None

    def holds(self, size_bytes: int) -> bool:
        """Say whether the byte count may be this amount."""
        return self.low <= size_bytes <= self.high

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.low + other.low, self.high + other.high)

    def less(self, other: Amount) -> Amount:
        """Return the difference, at least 0."""
        return Amount(max(self.low - other.high, 0), max(self.high - other.low, 0))


def exactly(size_bytes: int) -> Amount:
    """Return an amount of which every digit is known."""
    return Amount(size_bytes, size_bytes)


def printed(size_bytes: int) -> str:
    """Return a byte count as TensorFlow's ``HumanReadableNumBytes`` prints it.

    Below 1 KiB all digits, then one decimal for KiB and two from MiB on, of the value divided by 1024
    without remainder until it is under a mebi of the unit (``numbers.cc``).
    """
    sign, size = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    if size < 1024:
        return f"{sign}{size}B"
    unit = 0
    while size >= 1024 * 1024 and unit + 1 < len(_UNITS):
        size //= 1024
        unit += 1
    return f"{sign}{size / 1024:.{1 if unit == 0 else 2}f}{_UNITS[unit]}iB"


def amount(text: str) -> Amount | None:
    """Return the range of byte counts that are printed as ``text``; None where it is no size.

    A number without a unit is exact, and so is one of bytes.
    """
    match = _PRINTED.fullmatch(text.strip()[:_LONGEST])
    if match is None:
        return None
    sign, digits, unit = match.groups()
    if not unit:
        return None if "." in digits else exactly(min(int(sign + digits), _MOST))
    power = _UNITS.index(unit)
    decimals = len(digits.partition(".")[2])
    half = 0.5 / 10**decimals
    low = max(math.ceil((float(digits) - half) * 1024 - 1e-6), 0)
    high = math.floor((float(digits) + half) * 1024 + 1e-6)
    # ties go to the even digit, as in C
    low += f"{low / 1024:.{decimals}f}" != digits
    high -= f"{high / 1024:.{decimals}f}" != digits
    if (
        float(digits) >= 1
    ):  # less than one is printed in the unit below, 1024 and more in the one above
        low, high = max(low, 1024), min(high, 1024 * 1024 - 1)
    scale = 1024**power
    found = (low * scale, min(high * scale + scale - 1, _MOST))
    return Amount(-found[1], -found[0]) if sign else Amount(*found)


def rounded_up(size_bytes: int) -> int:
    """Return what the allocator asks of its chunks for a request: a multiple of 256, at least 256."""
    return max((size_bytes + 255) // 256 * 256, 256)
