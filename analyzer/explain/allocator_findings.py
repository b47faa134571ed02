"""Findings from a replay through the simulated allocator: failure and settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from analyzer.explain.analysis import severity_of
from analyzer.explain.buffer_words import name_of
from analyzer.model.recording.records import Finding, Recording, Severity
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator import (
    BfcOptions,
    Engine,
    Remedy,
    Replay,
    from_recording,
    remedies,
    replay,
    unserved,
)

_MOST_ROWS: Final = 10  # of evidence
_LEAST_RATIO: Final = 0.02
"""Share of the lowest limit that a setting must save."""

_WAYS: Final = {
    "restart": "restart from a checkpoint",
    "fixed-shapes": "use the shapes of the largest step in every step",
    "fragmentation-fraction": (
        "set GPUOptions.experimental.internal_fragmentation_fraction to {setting}"
    ),
    "growth": "turn memory growth on (set_memory_growth)",
    "no-growth": "turn memory growth off (set_memory_growth), so that the pool is one region",
    "cuda-malloc-async": "set TF_GPU_ALLOCATOR=cuda_malloc_async",
}


def find_allocator(
    recording: Recording, options: BfcOptions, *, engine: Engine = Engine.AUTO
) -> list[Finding]:
    """Replay a recording under ``options`` and return all findings.

    Raises:
        TraceError: the recording cannot be replayed.
    """
    sequence = from_recording(recording)
    result = replay(sequence, options, engine=engine)
    steps = tuple((step.first, step.last) for step in recording.steps if step.last >= step.first)
    ways = remedies(sequence, options, steps=steps, engine=engine)
    failure = () if result.failure is None else _find_failure(result, recording.allocations)
    return [*failure, *_find_remedies(ways)]


def _find_failure(result: Replay, rows: pd.DataFrame) -> Iterator[Finding]:
    """Report the request that fails in a replay, and the free chunks that are too small."""
    missing = unserved(result)
    limit = format_bytes(result.options.memory_limit_bytes)
    asked = format_bytes(missing.requested_bytes)
    if missing.free_bytes >= missing.rounded_bytes:
        why = (
            f"Free memory is fragmented: {format_bytes(missing.free_bytes)} are free in "
            f"{missing.n_free} chunks, the largest has {format_bytes(missing.largest_free_bytes)}. Use "
            "fixed shapes, or restart from a checkpoint."
        )
    else:
        why = (
            f"Only {format_bytes(missing.free_bytes)} of the pool are free: the live tensors need more "
            "than this limit. Reduce the batch size or the number of live tensors."
        )
    yield Finding(
        id="does-not-fit",
        severity=Severity.HIGH,
        title=f"Out of memory under {limit}: {asked} for {_name(rows, missing.row)}",
        detail=why,
        evidence=tuple(
            {
                "free_bytes": chunk.size_bytes,
                "below": _name(rows, chunk.below_row),
                "below_bytes": chunk.below_bytes,
                "above": _name(rows, chunk.above_row),
                "above_bytes": chunk.above_bytes,
            }
            for chunk in missing.chunks[:_MOST_ROWS]
        ),
    )


def _find_remedies(ways: tuple[Remedy, ...]) -> Iterator[Finding]:
    """Report allocator settings that need a lower limit, best first."""
    base, others = ways[0], ways[1:]
    threshold = _LEAST_RATIO * base.minimum_limit_bytes
    better = [way for way in others if (way.limit_saved_bytes or 0) >= threshold]
    better.sort(key=lambda way: -(way.limit_saved_bytes or 0))
    if not better:
        return
    best = better[0]
    how = _WAYS[best.id].format(setting=best.setting)
    yield Finding(
        id="allocator-remedies",
        severity=severity_of(best.limit_saved_bytes or 0, base.minimum_limit_bytes),
        title=f"To lower the limit by {format_bytes(best.limit_saved_bytes or 0)}, {how}",
        detail="Each row is a replay of the same allocations. The saving lowers the memory limit, "
        "not the requested peak. The waste of cuda_malloc_async's driver pool is not counted.",
        saves_bytes=best.limit_saved_bytes,
        saves_kind="limit",
        evidence=tuple(
            {
                "way": _WAYS[way.id].format(setting=way.setting),
                "limit_bytes": way.minimum_limit_bytes,
                "saves_bytes": way.limit_saved_bytes,
                "peak_pool_bytes": way.peak_pool_bytes,
            }
            for way in better[:_MOST_ROWS]
        ),
    )


def _name(rows: pd.DataFrame, row: int) -> str:
    """Return the name of the buffer of a row; empty if there is no row."""
    return name_of(rows.iloc[row].to_dict()) if row >= 0 else ""
