"""Conversion between byte counts and text. Sizes are whole bytes everywhere in the package."""

from __future__ import annotations

import re
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
            hint="Write it as 10GiB, 512MiB or 16GB.",
        )

    if not unit and float(number):
        raise InputError(
            f"{text!r} is a size without a unit.",
            hint=f"Write it as {text.strip()}GiB or {text.strip()}MiB.",
        )

    return round(float(number) * _FACTORS[unit.lower()])


def format_seconds(seconds: float) -> str:
    """Return a duration in seconds or milliseconds."""
    if seconds >= 1:
        return f"{seconds:.2f} s"

    return f"{seconds * 1000:.1f} ms"


def times(count: int) -> str:
    """Return a count as words: ``once``, ``1,204 times``."""
    return "once" if count == 1 else f"{count:,} times"
