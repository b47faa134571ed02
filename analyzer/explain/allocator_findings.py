"""Findings from a replay through the simulated allocator: failure, pool size, settings."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from analyzer.explain.buffer_words import describe_buffer, name_of
from analyzer.explain.questions.savings import severity_of
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.recording.records import Finding, Recording, Severity
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator import (
    BfcOptions,
    Engine,
    Growth,
    Remedy,
    Replay,
    Unserved,
    from_recording,
    growth_history,
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
    rows = recording.allocations
    found = find_cautions(result)
    if result.failure is not None:
        found += find_failure(result, unserved(result), rows)
    found += find_pool_growth(result, growth_history(result), rows)
    return found + find_remedies(ways)


def find_cautions(result: Replay) -> list[Finding]:
    """Report corrections that the recording needed before its replay."""
    if not result.cautions:
        return []
    total = sum(caution.count for caution in result.cautions)
    return [
        Finding(
            id="replayed-with-cautions",
            severity=Severity.LOW,
            title=f"The replay corrected {total} events or rows of the recording",
            detail="The numbers of the replay depend on these corrections.",
            evidence=tuple(
                {"id": caution.id, "count": caution.count, "message": caution.message}
                for caution in result.cautions
            ),
        )
    ]


def find_failure(result: Replay, missing: Unserved, rows: pd.DataFrame) -> list[Finding]:
    """Report the request that fails in a replay, and the free chunks that are too small."""
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
    return [
        Finding(
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
    ]


def find_pool_growth(
    result: Replay, history: tuple[Growth, ...], rows: pd.DataFrame
) -> list[Finding]:
    """Report the regions of the pool and the requests that caused them."""
    pool, in_use = result.peak_pool_bytes, result.peak_in_use_bytes
    if not history or not pool:
        return []
    fragmented = [growth for growth in history if growth.fragmented]
    detail = (
        "If no free chunk is large enough, the allocator adds a region: 2 MiB first, then twice the "
        "last one, or more for a large request, up to the limit. It never returns a region, so "
        "nvidia-smi shows the pool and not the bytes in use."
    )
    if fragmented:
        cases = "1 case" if len(fragmented) == 1 else f"{len(fragmented)} cases"
        detail += f" In {cases} enough memory was free, but fragmented."
    return [
        Finding(
            id="pool-growth",
            severity=Severity.MEDIUM if fragmented else Severity.INFO,
            title=f"The pool grows to {format_bytes(pool)} for a peak of {format_bytes(in_use)} in use",
            detail=detail,
            evidence=tuple(_region_row(growth, rows) for growth in history),
        )
    ]


def _region_row(growth: Growth, rows: pd.DataFrame) -> EvidenceRow:
    described = describe_buffer(_row(rows, growth.row)) if growth.row >= 0 else {}
    return {
        "region": growth.number,
        "region_bytes": growth.size_bytes,
        "why": str(growth.why),
        "instant": growth.instant,
        "for": _name(rows, growth.row),
        "layer": described.get("layer", ""),
        "requested_bytes": growth.requested_bytes,
        "free_bytes": growth.free_bytes,
        "largest_free_bytes": growth.largest_free_bytes,
    }


def find_remedies(ways: tuple[Remedy, ...]) -> list[Finding]:
    """Report allocator settings that need a lower limit, best first."""
    base, others = ways[0], ways[1:]
    threshold = _LEAST_RATIO * base.minimum_limit_bytes
    better = [way for way in others if (way.limit_saved_bytes or 0) >= threshold]
    better.sort(key=lambda way: -(way.limit_saved_bytes or 0))
    if not better:
        return []
    best = better[0]
    how = _WAYS[best.id].format(setting=best.setting)
    return [
        Finding(
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
    ]


def _name(rows: pd.DataFrame, row: int) -> str:
    """Return the name of the buffer of a row; empty if there is no row."""
    return name_of(_row(rows, row)) if row >= 0 else ""


def _row(rows: pd.DataFrame, row: int) -> dict[str, Any]:
    """Return a row of the allocations table."""
    return {str(column): value for column, value in rows.iloc[row].items()}
