"""The sizes of what is in use, told as a story: which few chunks, or which many, fill the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from analyzer.model.units import format_bytes
from analyzer.oom.log_records import Mishap

_FEW: Final = 8
"""So many chunks at most are called a few."""
_MOST_OF_IT: Final = 0.5  # share of the bytes in use that the largest chunks are told to hold
_MANY: Final = 50  # chunks of one size that are a crowd
_ALL_BUT: Final = 0.6
"""A crowd of one size that holds as much of what is in use looks like a list that only grows."""


@dataclass(frozen=True, slots=True)
class SizeCrowd:
    """All chunks of one size.

    Attributes:
        size_bytes: Bytes of each.
        count: How many.
        is_asked: Whether it is the size that the failed request would have had.
    """

    size_bytes: int
    count: int
    is_asked: bool = False

    @property
    def total_bytes(self) -> int:
        """Bytes of all of them."""
        return self.size_bytes * self.count


def crowds_of(mishap: Mishap, rounded_bytes: int | None) -> list[SizeCrowd]:
    """Return the sizes in use, those that hold most first; empty where the log lists none."""
    rows: Sequence[tuple[int, int]] = mishap.histogram or mishap.dump.census
    if not rows:
        counted = Counter(piece.size_bytes for piece in mishap.dump.pieces if piece.is_used)
        rows = list(counted.items())
    merged: Counter[int] = Counter()
    for size_bytes, count in rows:
        merged[size_bytes] += count
    found = [SizeCrowd(size, count, size == rounded_bytes) for size, count in merged.items()]
    return sorted(found, key=lambda crowd: (-crowd.total_bytes, crowd.size_bytes))


def growing_crowd(crowds: Sequence[SizeCrowd], in_use_bytes: int | None) -> SizeCrowd | None:
    """Return the crowd of one size that fills most of the pool; None where there is none."""
    if not crowds or not in_use_bytes:
        return None
    first = crowds[0]
    is_most = first.total_bytes >= _ALL_BUT * in_use_bytes
    return first if first.count >= _MANY and is_most else None


def stories(crowds: Sequence[SizeCrowd], in_use_bytes: int | None) -> list[str]:
    """Tell the sizes in sentences, each with its figures."""
    if not crowds or not in_use_bytes:
        return []
    told: list[str] = []
    few = _few(crowds, in_use_bytes)
    if few is not None:
        told.append(few)
    asked = next((crowd for crowd in crowds if crowd.is_asked), None)
    if asked is not None:
        hold = "holds" if asked.count == 1 else "hold"
        told.append(
            f"{_chunks(asked.count)} of the asked size ({asked.size_bytes:,} bytes) {hold} "
            f"{format_bytes(asked.total_bytes)}, {_share(asked.total_bytes, in_use_bytes)} of what "
            "is in use."
        )
    many = growing_crowd(crowds, in_use_bytes)
    if many is not None and not many.is_asked:
        told.append(
            f"{_chunks(many.count)} of one size ({many.size_bytes:,} bytes) hold "
            f"{format_bytes(many.total_bytes)}, {_share(many.total_bytes, in_use_bytes)} of what is "
            "in use."
        )
    return told


def _few(crowds: Sequence[SizeCrowd], in_use_bytes: int) -> str | None:
    """Say how few chunks hold half of what is in use; None where they are many."""
    held = count = 0
    for crowd in sorted(crowds, key=lambda crowd: -crowd.size_bytes):
        taken = min(crowd.count, _FEW - count)
        for _ in range(taken):
            held, count = held + crowd.size_bytes, count + 1
            if held >= _MOST_OF_IT * in_use_bytes:
                sizes = "chunk holds" if count == 1 else "largest chunks hold"
                amount = "One" if count == 1 else f"The {count}"
                return (
                    f"{amount} {sizes} {format_bytes(held)} of the {format_bytes(in_use_bytes)} in "
                    f"use ({_share(held, in_use_bytes)})."
                )
    return None


def _chunks(count: int) -> str:
    return "One chunk" if count == 1 else f"{count:,} chunks"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "0%"
