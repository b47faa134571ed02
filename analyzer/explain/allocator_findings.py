"""Findings from a replay through the simulated allocator: failure and settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from analyzer.explain.analysis import severity_of
from analyzer.explain.buffer_words import name_of
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.recording.records import Finding, Recording, Severity
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator import (
    BfcOptions,
    FailedRequest,
    Remedy,
    from_recording,
    remedies,
    replay,
)

_MOST_ROWS: Final = 10  # of evidence
_LEAST_RATIO: Final = 0.02  # share of the lowest limit that a setting must save

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


def find_allocator(recording: Recording, options: BfcOptions) -> list[Finding]:
    """Replay a recording under ``options`` and return all findings.

    Raises:
        TraceError: the recording cannot be replayed.
    """
    sequence = from_recording(recording)
    failure = replay(sequence, options).failure
    steps = tuple((step.first, step.last) for step in recording.steps if step.last >= step.first)
    found = _find_remedies(remedies(sequence, options, steps=steps))
    if failure is None:
        return list(found)
    return [_describe_failure(failure, options, recording.allocations), *found]


def _describe_failure(failure: FailedRequest, options: BfcOptions, rows: pd.DataFrame) -> Finding:
    """Return the finding of a request that fails, and whether free memory is fragmented."""
    limit = format_bytes(options.memory_limit_bytes)
    free, asked = map(format_bytes, (failure.free_bytes, failure.requested_bytes))
    name = name_of(rows.iloc[failure.row].to_dict()) if failure.row >= 0 else "a tensor"
    why = (
        f"Only {free} of the pool are free: the live tensors need more than this limit. Reduce "
        "the batch size or the number of live tensors."
    )
    if failure.free_bytes >= failure.rounded_bytes:
        why = (
            f"Free memory is fragmented: {free} are free, and the largest chunk has "
            f"{format_bytes(failure.largest_free_bytes)}. Use fixed shapes, or restart from a "
            "checkpoint."
        )
    return Finding(
        id="does-not-fit",
        severity=Severity.HIGH,
        title=f"Out of memory under {limit}: {asked} for {name}",
        detail=why,
    )


def _find_remedies(ways: tuple[Remedy, ...]) -> Iterator[Finding]:
    """Report allocator settings that need a lower limit, best first."""
    base = ways[0].minimum_limit_bytes
    better = [way for way in ways[1:] if way.limit_saved_bytes >= _LEAST_RATIO * base]
    if not better:
        return
    better.sort(key=lambda way: -way.limit_saved_bytes)
    evidence: tuple[EvidenceRow, ...] = tuple(
        {
            "way": _WAYS[way.id].format(setting=way.setting),
            "limit_bytes": way.minimum_limit_bytes,
            "saves_bytes": way.limit_saved_bytes,
            "peak_pool_bytes": way.peak_pool_bytes,
        }
        for way in better[:_MOST_ROWS]
    )
    saves = better[0].limit_saved_bytes
    yield Finding(
        id="allocator-remedies",
        severity=severity_of(saves, base),
        title=f"To lower the limit by {format_bytes(saves)}, {evidence[0]['way']}",
        detail="Each row is a replay of the same allocations. The saving lowers the memory limit, "
        "not the requested peak. The waste of cuda_malloc_async's driver pool is not counted.",
        saves_bytes=saves,
        saves_kind="limit",
        evidence=evidence,
    )
