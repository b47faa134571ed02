"""Sizes as logs print them, and bytes of elements.

TensorFlow prints ``74.16MiB`` for every size from 77,757,440 to 77,767,679 bytes. A printed size is
therefore read as a ``Range``.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

from analyzer.model.contract.fields import ITEM_BYTES, MOST_AXES, numpy_name
from analyzer.model.ranges import Range
from analyzer.model.units import GRANULE_BYTES, round_up

_UNITS: Final = "KMGTPE"
_PRINTED: Final = re.compile(r"(-?)(\d+(?:\.\d+)?)\s?([KMGTPE]?)(?:i?B|BYTES)?", re.IGNORECASE)
_LONGEST: Final = 40  # characters of a number
_MOST: Final = 1 << 62  # bytes; the sum of two is still a signed 64-bit number
MOST_BYTES: Final = 1 << 44  # of a chunk, or of all chunks of one size; more is a damaged line

ITEM_SIZES: Final = (4, 2, 1, 8, 16)
"""Element sizes to try if the log has no type (TensorFlow 1.4 and before); the likeliest first."""


def _match_size(text: str | None) -> tuple[str, str, str] | None:
    """Return sign, digits and unit of a printed size; None if it is none."""
    match = _PRINTED.fullmatch((text or "").strip().replace(",", "")[:_LONGEST])
    return None if match is None else (match[1], match[2], match[3].upper())


def parse_size(text: str | None) -> Range | None:
    """Return the range of sizes that TensorFlow prints as ``text``; None if it is not a size.

    A number without a unit, or in bytes, is exact.
    """
    parts = _match_size(text)
    if parts is None:
        return None
    sign, digits, unit = parts
    if not unit:
        return None if "." in digits else Range.exactly(min(int(sign + digits), _MOST))
    decimals = len(digits.partition(".")[2])
    half = 0.5 / 10**decimals
    low = max(math.ceil((float(digits) - half) * 1024 - 1e-6), 0)
    high = math.floor((float(digits) + half) * 1024 + 1e-6)
    # C rounds ties to the even digit.
    low += f"{low / 1024:.{decimals}f}" != digits
    high -= f"{high / 1024:.{decimals}f}" != digits
    if float(digits) >= 1:  # less than 1 and more than 1024 are printed in other units
        low, high = max(low, 1024), min(high, 1024 * 1024 - 1)
    scale = 1024 ** _UNITS.index(unit)
    low, high = min(low * scale, _MOST), min(high * scale + scale - 1, _MOST)
    size = Range(low, max(low, high))
    return Range(-size.high, -size.low) if sign else size


def parse_rounded(text: str) -> Range | None:
    """Return the range of sizes that programs other than TensorFlow print as ``text``, else None.

    Units are binary (PyTorch, Ray and PaddlePaddle print GB for GiB), decimals rounded to the nearest.
    """
    parts = _match_size(text)
    if parts is None:
        return None
    _, digits, unit = parts
    scale = 1024 ** (_UNITS.index(unit) + 1) if unit else 1
    decimals = len(digits.partition(".")[2])
    value, half = Fraction(digits) * scale, Fraction(scale, 2 * 10**decimals) if decimals else 0
    low, high = math.ceil(value - half), math.floor(value + half)
    return Range(min(low, _MOST), min(max(low, high), _MOST))


def parse_count(text: str) -> int:
    """Return a number of bytes or things; 16 TiB for a larger one, which is damage."""
    return min(int(text), MOST_BYTES)


def parse_shape(text: str) -> tuple[int, ...] | None:
    """Return the axes of a shape such as ``5, 4``; None if no tensor can have them."""
    axes = [axis for axis in text.replace(" ", "").split(",") if axis]
    if len(axes) > MOST_AXES or any(len(axis) > 18 or not axis.isdigit() for axis in axes):
        return None
    shape = tuple(map(int, axes))
    return shape if math.prod(shape) * max(ITEM_SIZES) <= _MOST else None


def round_up_request(size_bytes: int) -> int:
    """Return the chunk size that the allocator looks for: a multiple of 256, at least 256."""
    return max(round_up(size_bytes), GRANULE_BYTES)


def difference(whole: Range | None, part: Range | None) -> Range | None:
    """Return the difference, at least 0; None if one of the two is not known."""
    return None if whole is None or part is None else (whole - part).at_least(0)


def possible_bytes(shape: tuple[int, ...], dtype: str) -> list[int]:
    """Return the sizes that a tensor may have: one for a known type, one per element size without.

    A type without a fixed size, such as a string, gives none.
    """
    elements = math.prod(shape)
    if not dtype:
        return [elements * size for size in ITEM_SIZES]
    item = ITEM_BYTES.get(numpy_name(dtype))
    return [] if item is None else [math.ceil(elements * item)]
