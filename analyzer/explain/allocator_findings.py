"""What the simulated allocator says about a recording: does it fit, why the pool is so large.

Each function takes results of ``allocator`` and returns findings; nothing is replayed
here but in ``find_allocator``, which does all of it.
"""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from analyzer.explain.buffer_words import describe_buffer, name_of
from analyzer.explain.questions.severity import severity_of
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.recording.records import Finding, Recording, Severity
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator import (
    BfcOptions,
    Engine,
    Growth,
    MinimumLimit,
    Remedy,
    Replay,
    Unserved,
    from_recording,
    growth_history,
    minimum_limit,
    remedies,
    replay,
    unserved,
)

_MOST_ROWS: Final = 10  # of evidence
_WORTH_SAYING_RATIO: Final = 0.02
"""Share of the pool or limit from which something that gives memory back is reported."""

_WAYS: Final = {
    "restart": "starting anew with what lives now, as after loading a checkpoint",
    "fixed-shapes": "giving every step the shapes of the largest one",
    "fragmentation-fraction": (
        "GPUOptions.experimental.internal_fragmentation_fraction set to {setting}"
    ),
    "growth": "letting the pool grow (set_memory_growth)",
    "no-growth": "taking one region at the start (set_memory_growth off)",
    "cuda-malloc-async": "TF_GPU_ALLOCATOR=cuda_malloc_async",
}


def find_allocator(
    recording: Recording, options: BfcOptions, *, engine: Engine = Engine.AUTO
) -> list[Finding]:
    """Replay a recording under ``options`` and report all there is to say.

    Args:
        recording: What is replayed.
        options: The limit, growth and other settings to replay under.
        engine: Which allocator replays.

    Raises:
        TraceError: the recording cannot be replayed.
    """
    sequence = from_recording(recording)
    result = replay(sequence, options, engine=engine)
    steps = tuple((step.first, step.last) for step in recording.steps if step.last >= step.first)
    ways = remedies(sequence, options, steps=steps, limits=True, engine=engine)
    rows = recording.allocations
    found = find_cautions(result)
    if result.failure is not None:
        found += find_failure(result, unserved(result), rows)
    found += find_pool_growth(result, growth_history(result), rows)
    found += find_minimum_limit(minimum_limit(sequence, options, engine=engine))
    return found + find_remedies(ways)


def find_cautions(result: Replay) -> list[Finding]:
    """Report what had to be put right in the input before it could be replayed."""
    if not result.cautions:
        return []
    total = sum(caution.count for caution in result.cautions)
    return [
        Finding(
            id="replayed-with-cautions",
            severity=Severity.LOW,
            title=f"{total} events or rows had to be put right before they could be replayed",
            detail="The replay's figures are as good as these corrections.",
            evidence=tuple(
                {"id": caution.id, "count": caution.count, "message": caution.message}
                for caution in result.cautions
            ),
        )
    ]


def find_failure(result: Replay, missing: Unserved, rows: pd.DataFrame) -> list[Finding]:
    """Report the allocation that does not fit, and the free chunks that could not serve it.

    Args:
        result: The replay that ended early.
        missing: The request that could not be served, and why.
        rows: The allocations table that the sequence was made of, to name the request's op.
    """
    limit = format_bytes(result.options.memory_limit_bytes)
    asked = format_bytes(missing.requested_bytes)
    if missing.free_bytes >= missing.rounded_bytes:
        why = (
            f"{format_bytes(missing.free_bytes)} are free, more than it asks for, but in "
            f"{missing.n_free} pieces of which the largest is "
            f"{format_bytes(missing.largest_free_bytes)}: fragmentation, not size. Fixed shapes or "
            "a restart would help."
        )
    else:
        why = (
            f"Only {format_bytes(missing.free_bytes)} of the pool are free: what lives at once is "
            "too much for this limit. A smaller batch or fewer live tensors would help."
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
    """Report why the pool is larger than what is in use: each region and what caused it.

    Args:
        result: The replay.
        history: Each region that was taken, in order.
        rows: The allocations table that the sequence was made of, to name ops.
    """
    pool, in_use = result.peak_pool_bytes, result.peak_in_use_bytes
    if not history or not pool:
        return []
    fragmented = [growth for growth in history if growth.fragmented]
    detail = (
        "A region is taken when no free chunk is large enough: 2 MiB first, then twice the last, "
        "or more for a large request, as far as the limit goes. It is kept, so that nvidia-smi "
        "shows the pool and not what is in use."
    )
    if fragmented:
        detail += f" {len(fragmented)} times enough was free, but in pieces too small."
    return [
        Finding(
            id="pool-growth",
            severity=Severity.MEDIUM if fragmented else Severity.INFO,
            title=f"The pool takes {format_bytes(pool)} for {format_bytes(in_use)} in use at most",
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


def find_minimum_limit(found: MinimumLimit) -> list[Finding]:
    """Report the smallest limit and what it consists of."""
    detail = (
        f"{format_bytes(found.requested_peak_bytes)} requested at the peak, "
        f"{format_bytes(found.rounding_bytes)} of rounding, "
        f"{format_bytes(found.unsplit_bytes)} in chunks handed out whole, "
        f"{format_bytes(found.external_bytes)} free in pieces too small."
    )
    if found.safe_bytes > found.limit_bytes:
        detail += (
            f" Not every limit above {format_bytes(found.limit_bytes)} succeeds: from "
            f"{format_bytes(found.safe_bytes)} on, all that were tried do."
        )
    return [
        Finding(
            id="minimum-limit",
            severity=Severity.INFO,
            title=f"Needs a memory limit of at least {format_bytes(found.safe_bytes)}",
            detail=detail,
            evidence=(
                {"part": "requested peak", "size_bytes": found.requested_peak_bytes},
                {"part": "rounding", "size_bytes": found.rounding_bytes},
                {"part": "unsplit chunks", "size_bytes": found.unsplit_bytes},
                {"part": "external fragmentation", "size_bytes": found.external_bytes},
                {"part": "smallest limit", "size_bytes": found.limit_bytes},
                {"part": "safe limit", "size_bytes": found.safe_bytes},
            ),
        )
    ]


def find_remedies(ways: tuple[Remedy, ...]) -> list[Finding]:
    """Report the ways of running that need a smaller limit, best first."""
    base, others = ways[0], ways[1:]
    if base.minimum_limit_bytes is None:
        return []
    threshold = _WORTH_SAYING_RATIO * base.minimum_limit_bytes
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
            title=f"{format_bytes(best.limit_saved_bytes or 0)} less memory is enough by {how}",
            detail="Each row is a replay of the same allocations. It saves memory limit, not bytes "
            "requested at the peak; what cuda_malloc_async's driver pool wastes is not counted.",
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
    """Return what to call the buffer of a source row; empty where there is none."""
    return name_of(_row(rows, row)) if row >= 0 else ""


def _row(rows: pd.DataFrame, row: int) -> dict[str, Any]:
    """Return a row of the allocations table as a dict."""
    return {str(column): value for column, value in rows.iloc[row].items()}
