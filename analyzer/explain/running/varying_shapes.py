"""Steps of shapes that vary, and what they do to the pool."""

from __future__ import annotations

from typing import Final

import numpy as np

from analyzer.explain.analysis import Analysis
from analyzer.explain.running.evidence_rows import evidence_row
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

_SIZES: Final = 3
"""Sizes of one op's result in the traced steps from which its shape varies: a last, smaller batch is one
of two."""

_SHARE: Final = 0.1
"""Share of the largest step's peak by which the steps' peaks have to differ."""

_ROWS: Final = 8


def find_varying_shapes(analysis: Analysis, watch: WatchNote) -> list[Finding]:
    """Report steps whose tensors are of another size each time, with what each step's peak was."""
    steps = [step for step in analysis.recording.steps if step.last >= step.first]
    rows = analysis.rows
    made = rows.loc[rows["step"].notna() & (rows["op"] != ""), ["op", "step", "requested_bytes"]]
    if len(steps) < _SIZES or made.empty:
        return []
    sizes = made.groupby(["op", "step"], observed=True)["requested_bytes"].max().unstack("step")
    varied = sizes[sizes.nunique(axis=1) >= _SIZES]
    peaks = [int(analysis.line.allocated[step.first + 1 : step.last + 2].max()) for step in steps]
    if varied.empty or max(peaks) - min(peaks) < _SHARE * max(peaks):
        return []
    spread = (varied.max(axis=1) - varied.min(axis=1)).nlargest(_ROWS)
    sources = dict(zip(rows["op"].astype(str), rows["source"].astype(str), strict=True))
    where = watch.where
    at = f" ({where})" if where else ""
    return [
        Finding(
            id="varying-shapes",
            severity=Severity.MEDIUM,
            title=f"The steps' shapes vary: {_ops(len(varied))} for another size each time, and the "
            f"steps peak at {format_bytes(min(peaks))} to {format_bytes(max(peaks))}{at}",
            detail=f"A step is {watch.step}. {_of_the_pool(analysis)} A chunk that a short batch freed "
            "fits no longer one, so the pool grows to more than the largest step needs; a tf.function "
            "without open axes is traced anew for each shape. Pad to a few lengths (padded_batch, "
            "bucket_by_sequence_length), drop the last partial batch (drop_remainder=True).",
            evidence=tuple(
                evidence_row(
                    f"asks for {format_bytes(int(varied.loc[op].min()))} to "
                    f"{format_bytes(int(varied.loc[op].max()))}",
                    name=str(op),
                    where=sources.get(str(op), ""),
                    size=int(size),
                )
                for op, size in spread.items()
            ),
        )
    ]


def _ops(count: int) -> str:
    return "1 op asks" if count == 1 else f"{count} ops ask"


def _of_the_pool(analysis: Analysis) -> str:
    """Say how broken the free memory of the pool is at the worst instant of the traced steps."""
    recording = analysis.recording
    chosen = (recording.events["allocator"] == recording.allocator).to_numpy()
    ratios = recording.events["fragmentation"].to_numpy()[chosen]
    ratios = ratios[np.isfinite(ratios)]
    if not len(ratios):
        return ""
    return (
        f"Of the pool's free memory {float(ratios[-1]):.0%} lies outside the largest piece after the "
        f"traced steps, {float(ratios.max()):.0%} at worst."
    )
