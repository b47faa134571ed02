"""The chunks in use by size, and sentences about the few or the many that fill the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from analyzer.model.contract.report.oom_file import OomSize
from analyzer.model.ranges import Range
from analyzer.oom.log_records import LoggedFailure
from analyzer.oom.log_texts import write_sentence

_FEW: Final = 8  # chunks
_MOST_OF_IT: Final = 0.5  # share of the bytes in use
_MANY: Final = 50  # chunks of one size
_DOMINANT: Final = 0.6
"""Share of the bytes in use from which many chunks of one size look like a list that grows."""


def sizes_in_use(failure: LoggedFailure, requested_bytes: int | None) -> list[OomSize]:
    """Return the sizes in use, those with most bytes first; empty if the log lists none."""
    counts: Counter[int] = Counter()
    for size_bytes, count in failure.histogram or failure.dump.summary:
        counts[size_bytes] += count
    if not counts:
        counts.update(chunk.size_bytes for chunk in failure.dump.chunks if chunk.is_used)
    sizes = [
        OomSize(size_bytes, count, size_bytes * count, size_bytes == requested_bytes)
        for size_bytes, count in counts.items()
    ]
    return sorted(sizes, key=lambda size: (-size.total_bytes, size.size_bytes))


def find_dominant_size(sizes: Sequence[OomSize], in_use_bytes: int | None) -> OomSize | None:
    """Return the size whose many chunks fill most of the pool; None if there is none."""
    if not sizes or not in_use_bytes:
        return None
    is_dominant = sizes[0].total_bytes >= _DOMINANT * in_use_bytes
    return sizes[0] if is_dominant and sizes[0].count >= _MANY else None


def describe_sizes(sizes: Sequence[OomSize], in_use_bytes: int | None) -> list[str]:
    """Return sentences about the sizes in use."""
    if not sizes or not in_use_bytes:
        return []
    few = _describe_few(sizes, in_use_bytes)
    sentences = [few] if few else []
    dominant = find_dominant_size(sizes, in_use_bytes)
    for size in sizes:
        if size.is_asked or size is dominant:
            sentence = write_sentence(
                "sizes",
                "same",
                subject="One chunk" if size.count == 1 else f"{size.count:,} chunks",
                which="the requested size" if size.is_asked else "one size",
                size_bytes=size.size_bytes,
                verb="holds" if size.count == 1 else "hold",
                total=Range.exactly(size.total_bytes),
                share=size.total_bytes / in_use_bytes,
            )
            sentences.append(sentence)
    return sentences


def _describe_few(sizes: Sequence[OomSize], in_use_bytes: int) -> str | None:
    """Return how few chunks hold half of the bytes in use; None if these are many."""
    held = count = 0
    for size in sorted(sizes, key=lambda size: -size.size_bytes):
        for _ in range(min(size.count, _FEW - count)):
            held, count = held + size.size_bytes, count + 1
            if held >= _MOST_OF_IT * in_use_bytes:
                subject = "One chunk holds" if count == 1 else f"The {count} largest chunks hold"
                figures = {"held": Range.exactly(held), "in_use": Range.exactly(in_use_bytes)}
                share = held / in_use_bytes
                return write_sentence("sizes", "few", subject=subject, share=share, **figures)
    return None
