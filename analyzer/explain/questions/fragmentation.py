"""Fragmentation: bytes that the allocator holds and no tensor uses.

*Internal*: a chunk is larger than its tensor, because sizes are rounded up to 256 bytes and a free chunk
smaller than twice the request is not split. *External*: free bytes outside the largest free chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.buffer_words import describe_buffer
from analyzer.explain.questions.savings import severity_of
from analyzer.model.recording.records import Finding, Recording, Severity
from analyzer.model.recording.timeline import alive_at, main_allocator_rows
from analyzer.model.units import format_bytes, round_up

_VARYING_RATIO: Final = 0.05
"""Share of the largest buffer that sizes must vary by."""

_MUCH_RATIO: Final = 0.25
"""Share of the free bytes outside the largest chunk from which on a rise has medium severity."""

_EVIDENCE_ROWS: Final = 10


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Waste at one instant.

    Attributes:
        instant: The instant.
        rounding_bytes: Lost by rounding sizes up to 256 bytes.
        unsplit_bytes: Lost in chunks that were not split.
        free_bytes: Free in the pool; None if the pool's size is unknown.
        largest_free_bytes: The largest free chunk; None if unknown.
        reported_ratio: (free - largest free) / free, as TensorFlow reports it at that instant.
    """

    instant: int
    rounding_bytes: int
    unsplit_bytes: int
    free_bytes: int | None
    largest_free_bytes: int | None
    reported_ratio: float | None

    @property
    def internal_bytes(self) -> int:
        """Allocated minus requested bytes."""
        return self.rounding_bytes + self.unsplit_bytes

    @property
    def external_bytes(self) -> int | None:
        """Free bytes outside the largest free chunk; None if unknown."""
        if self.free_bytes is None or self.largest_free_bytes is None:
            return None
        return self.free_bytes - self.largest_free_bytes


def measure_fragmentation(
    recording: Recording, rows: pd.DataFrame, instant: int, pool_bytes: int | None = None
) -> Fragmentation:
    """Return the waste at an event.

    The largest free chunk follows from TensorFlow's ratio if the pool's size is known.

    Args:
        recording: The recording of the events.
        rows: The allocations of its main allocator.
        instant: Index of the event.
        pool_bytes: Bytes of the pool at that event; None if unknown.
    """
    alive = rows[(rows["born"] <= instant) & (rows["dies"] > instant)]
    requested = alive["requested_bytes"].to_numpy()
    allocated = alive["allocated_bytes"].to_numpy()
    whole = round_up(requested)
    ratio = None
    if 0 <= instant < len(recording.events):
        ratio = float(recording.events["fragmentation"].iloc[instant])
    free = None if pool_bytes is None else pool_bytes - int(allocated.sum())
    largest = None
    if free is not None and ratio is not None:
        largest = round(free * (1 - ratio)) if np.isfinite(ratio) else free
    return Fragmentation(
        instant=instant,
        rounding_bytes=int((np.minimum(whole, np.maximum(allocated, requested)) - requested).sum()),
        unsplit_bytes=int(np.maximum(allocated - whole, 0).sum()),
        free_bytes=free,
        largest_free_bytes=largest,
        reported_ratio=ratio,
    )


def find_internal_waste(
    recording: Recording, fragmentation: Fragmentation, allocated_peak_bytes: int
) -> list[Finding]:
    """Report unsplit chunks and rounding at the allocated peak."""
    waste = fragmentation.internal_bytes
    if not waste or not allocated_peak_bytes:
        return []
    share = waste / allocated_peak_bytes
    alive = alive_at(main_allocator_rows(recording), fragmentation.instant)
    lost = alive["allocated_bytes"] - alive["requested_bytes"]
    worst = alive.assign(waste_bytes=lost).nlargest(_EVIDENCE_ROWS, "waste_bytes")
    evidence = [
        describe_buffer(row, waste_bytes=int(row["waste_bytes"]))
        for _, row in worst.iterrows()
        if row["waste_bytes"] > 0
    ]
    return [
        Finding(
            id="internal-fragmentation",
            severity=severity_of(fragmentation.unsplit_bytes, allocated_peak_bytes),
            title=f"{format_bytes(waste)} of the allocated peak are unused space inside chunks "
            f"({share:.1%})",
            detail=(
                f"{format_bytes(fragmentation.unsplit_bytes)} are in chunks that were not split because "
                "they are smaller than twice the request, "
                f"{format_bytes(fragmentation.rounding_bytes)} come from rounding to 256 B. Use the "
                "same tensor sizes in every step, so that freed chunks can be reused, or set "
                "GPUOptions.experimental.internal_fragmentation_fraction, so that the allocator splits "
                "more chunks."
            ),
            saves_bytes=fragmentation.unsplit_bytes or None,
            saves_kind="allocated",
            evidence=tuple(evidence),
        )
    ]


def find_trend(recording: Recording) -> list[Finding]:
    """Report fragmentation that rises from step to step, and sizes that vary between steps."""
    steps = [step for step in recording.steps if step.last >= step.first]
    if len(steps) < 3:
        return []
    events = recording.events
    chosen = (events["allocator"] == recording.allocator).to_numpy()
    ratios = []
    for step in steps[1:]:
        inside = chosen[step.first : step.last + 1]
        ratios.append(
            float(np.nanmax(events["fragmentation"].to_numpy()[step.first : step.last + 1][inside]))
            if inside.any()
            else 0.0
        )
    findings = []
    rising = all(after > before + 0.01 for before, after in zip(ratios, ratios[1:], strict=False))
    if len(ratios) >= 3 and rising:
        much = ratios[-1] >= _MUCH_RATIO
        findings.append(
            Finding(
                id="fragmentation-trend",
                severity=Severity.MEDIUM if much else Severity.LOW,
                title=f"Fragmentation rises in every step, from {ratios[0]:.0%} to {ratios[-1]:.0%}",
                detail="The free chunks get smaller, so a long run may run out of memory although "
                "enough is free. Use fixed shapes, or pad to a few sizes.",
                evidence=tuple(
                    {"step": step.index, "fragmentation_ratio": round(ratio, 4)}
                    for step, ratio in zip(steps[1:], ratios, strict=True)
                ),
            )
        )
    findings.extend(_find_varying_sizes(recording))
    return findings


def _find_varying_sizes(recording: Recording) -> list[Finding]:
    """Report ops whose output size differs from step to step."""
    rows = main_allocator_rows(recording)
    chosen = (rows["step"].fillna(-1) >= 1) & (rows["op"] != "")
    later = rows.loc[chosen, ["op", "step", "requested_bytes"]]
    if later.empty:
        return []
    sizes = later.groupby(["op", "step"], observed=True)["requested_bytes"].max().unstack("step")
    spread = (sizes.max(axis=1) - sizes.min(axis=1)).fillna(0)
    varying = spread[(spread > 0) & (sizes.notna().sum(axis=1) >= 2)].nlargest(_EVIDENCE_ROWS)
    if varying.empty:
        return []
    total = int(spread[spread > 0].sum())
    if total < _VARYING_RATIO * int(rows["requested_bytes"].max()):
        return []
    return [
        Finding(
            id="varying-sizes",
            severity=Severity.MEDIUM,
            title=f"Output sizes differ from step to step in {int((spread > 0).sum())} ops",
            detail="Varying sizes leave free chunks that fit no later request, and they make "
            "tf.functions retrace. Pad batches to a fixed shape or to a few buckets, and drop the last "
            "partial batch (drop_remainder=True).",
            evidence=tuple(
                {
                    "op": str(op),
                    "smallest_bytes": int(sizes.loc[op].min()),
                    "largest_bytes": int(sizes.loc[op].max()),
                }
                for op in varying.index
            ),
        )
    ]
