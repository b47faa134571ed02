"""Waste inside the pool: bytes that the allocator holds and no tensor uses.

*Internal*: a chunk is larger than the tensor asked for, because sizes are rounded up to 256 bytes and
because a free chunk that is less than twice the request is handed out whole. *External*: free bytes
that no request as large as the largest can use, because they lie in pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.buffer_words import describe_buffer
from analyzer.explain.questions.severity import severity_of
from analyzer.model.recording.records import Finding, Recording, Severity
from analyzer.model.recording.timeline import alive_at, main_allocator_rows
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator.bfc.bfc_options import round_up_all

_WORTH_SAYING: Final = 0.05  # share of the peak below which waste is only noted
_MUCH_BROKEN: Final = 0.25
"""Share of the free bytes outside the largest piece from which on a rise is more than a note."""
_EVIDENCE_ROWS: Final = 10  # tensors told one by one


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Waste at one instant.

    Attributes:
        instant: The instant.
        rounding_bytes: Lost by rounding sizes up to 256 bytes.
        unsplit_bytes: Lost in chunks that were handed out whole.
        free_bytes: Free in the pool; None where the pool's size is not known.
        largest_free_bytes: The largest free chunk; None where not known.
        reported_ratio: (free - largest free) / free, as TensorFlow wrote it at that instant.
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
        """Free bytes outside the largest free chunk; None where not known."""
        if self.free_bytes is None or self.largest_free_bytes is None:
            return None
        return self.free_bytes - self.largest_free_bytes


def measure_fragmentation(
    recording: Recording, rows: pd.DataFrame, instant: int, pool_bytes: int | None = None
) -> Fragmentation:
    """Return the waste at ``instant``.

    The largest free chunk follows from TensorFlow's own ratio where the pool's size is known.

    Args:
        recording: Where the events are from.
        rows: The allocations of its main allocator.
        instant: Index of an event.
        pool_bytes: Bytes of the pool then; None where not known.
    """
    alive = rows[(rows["born"] <= instant) & (rows["dies"] > instant)]
    requested = alive["requested_bytes"].to_numpy()
    allocated = alive["allocated_bytes"].to_numpy()
    whole = round_up_all(requested)
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
    """Report chunks handed out whole, and rounding, at the allocated peak.

    Args:
        recording: What is looked at.
        fragmentation: The waste at the allocated peak.
        allocated_peak_bytes: The allocated peak.
    """
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
            title=f"{format_bytes(waste)} of the allocated peak is inside chunks and used by no "
            f"tensor ({share:.1%})",
            detail=(
                f"{format_bytes(fragmentation.unsplit_bytes)} are chunks handed out whole because "
                "they were less than twice the request, "
                f"{format_bytes(fragmentation.rounding_bytes)} are sizes rounded up to 256 B. "
                "Keeping tensor sizes the same from step to step lets freed chunks fit again; "
                "GPUOptions.experimental.internal_fragmentation_fraction makes the allocator split "
                "sooner."
            ),
            saves_bytes=fragmentation.unsplit_bytes or None,
            saves_kind="allocated",
            evidence=tuple(evidence),
        )
    ]


def find_trend(recording: Recording) -> list[Finding]:
    """Report fragmentation that grows from step to step, and sizes that vary between steps."""
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
        much = ratios[-1] >= _MUCH_BROKEN
        findings.append(
            Finding(
                id="fragmentation-trend",
                severity=Severity.MEDIUM if much else Severity.LOW,
                title=f"Fragmentation rises with every step, from {ratios[0]:.0%} to {ratios[-1]:.0%}",
                detail="Free memory is broken into ever smaller pieces: a long run may run out of "
                "memory although enough is free. Fixed shapes, or padding to a few sizes, stop it.",
                evidence=tuple(
                    {"step": step.index, "fragmentation_ratio": round(ratio, 4)}
                    for step, ratio in zip(steps[1:], ratios, strict=True)
                ),
            )
        )
    findings.extend(_find_varying_sizes(recording))
    return findings


def _find_varying_sizes(recording: Recording) -> list[Finding]:
    """Report ops whose output changes size from step to step."""
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
    if total < _WORTH_SAYING * int(rows["requested_bytes"].max()):
        return []
    return [
        Finding(
            id="varying-sizes",
            severity=Severity.MEDIUM,
            title=f"{_ops(int((spread > 0).sum()))} for another size in each step",
            detail="Sizes that vary break the pool into pieces that fit no later request, and make "
            "a tf.function retrace. Pad batches to a fixed shape or to a few buckets, and drop the "
            "last partial batch (drop_remainder=True).",
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


def _ops(count: int) -> str:
    return "1 op asks" if count == 1 else f"{count} ops ask"
