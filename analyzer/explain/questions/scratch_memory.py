"""Findings about memory that ops and the allocator take beside tensors.

Workspaces, layout copies and trials of algorithms of convolutions, and unused space in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analyzer.explain.analysis import LOW, Analysis, saved_without, severity_of
from analyzer.explain.buffer_words import describe_buffer, describe_largest
from analyzer.model.choice import Category
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.recording.schema import COPY_ROLE, TRIAL_ROLE
from analyzer.model.recording.timeline import alive_at
from analyzer.model.units import format_bytes


def find_workspaces(analysis: Analysis) -> Iterator[Finding]:
    """Report workspaces that are alive at the peak, and the most that smaller ones can save."""
    alive, peak = analysis.alive, analysis.peak.requested_bytes
    at_peak = alive[_is_workspace(alive) & (alive["role"] != TRIAL_ROLE)]
    total = int(at_peak["requested_bytes"].sum())
    if not total or total < LOW * peak:
        return
    own = analysis.rows[_is_workspace(analysis.rows)]
    saves = saved_without(analysis, own["requested_bytes"], own["born"], own["dies"])
    row = at_peak.loc[at_peak["requested_bytes"].idxmax()]
    size = int(row["requested_bytes"])
    algorithm = str(row["role"]).partition(", ")[2]
    using = f" with the algorithm {algorithm}" if algorithm else ""
    layer = f" of layer {row['layer']}" if row["layer"] else ""
    yield Finding(
        id="workspace",
        severity=severity_of(saves, peak),
        title=f"Workspaces of convolutions take {format_bytes(total)} ({total / peak:.0%} of the peak)",
        detail=f"The largest is {format_bytes(size)} in {row['op']}{layer}{using}. cuDNN's fastest "
        "algorithm may need more memory than a slower one. Start with "
        f"TF_CUDNN_WORKSPACE_LIMIT_IN_MB={max(size // 2 >> 20, 1)} (by default 4096, and 8192 in newer "
        "releases) to exclude it. Without any workspace the peak falls to "
        f"{format_bytes(peak - saves)}.",
        saves_bytes=saves or None,
        evidence=describe_largest(at_peak),
    )


def _is_workspace(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which buffers an algorithm needs, other than layout copies."""
    return (rows["category"] == Category.WORKSPACE.value) & (rows["role"] != COPY_ROLE)


def find_layout_copies(analysis: Analysis) -> Iterator[Finding]:
    """Report copies of tensors into the layout of cuDNN that are alive at the peak."""
    alive, peak = analysis.alive, analysis.peak.requested_bytes
    copies = alive[alive["role"] == COPY_ROLE]
    saves = saved_without(analysis, copies["requested_bytes"], copies["born"], copies["dies"])
    if saves < LOW * peak or not saves:
        return
    total = int(copies["requested_bytes"].sum())
    yield Finding(
        id="layout-copies",
        severity=severity_of(saves, peak),
        title=f"Layout copies of convolutions take {format_bytes(total)} at the peak",
        detail="The op copies a tensor into the layout that cuDNN's kernel needs. float16 on tensor "
        "cores uses channels-last without a copy; float32 uses channels-first "
        "(keras.config.set_image_data_format).",
        saves_bytes=saves,
        evidence=describe_largest(copies),
    )


def find_trials(analysis: Analysis) -> Iterator[Finding]:
    """Report trials of algorithms that lift the highest peak of the trace."""
    instant = analysis.peak_ever.requested_instant
    alive = alive_at(analysis.rows, instant)
    trials = alive[alive["role"] == TRIAL_ROLE]
    total = int(trials["requested_bytes"].sum())
    steps = analysis.recording.steps
    step = next((one for one in steps if one.first <= instant <= one.last), None)
    if not total or step is None or total < LOW * analysis.peak_ever.requested_bytes:
        return
    why = (
        "The first call of each convolution tries cuDNN's algorithms."
        if step is steps[0]
        else "A new input shape, such as a smaller last batch, starts new trials: "
        "dataset.batch(n, drop_remainder=True) avoids them."
    )
    yield Finding(
        id="algorithm-trials",
        severity=Severity.INFO,
        title=f"Trials of algorithms request {format_bytes(total)} at the highest peak of step "
        f"{step.index}",
        detail=f"{why} TensorFlow skips a trial that finds no memory. TF_CUDNN_USE_AUTOTUNE=0 turns "
        "trials off, and TF_CUDNN_WORKSPACE_LIMIT_IN_MB limits them.",
        evidence=describe_largest(trials),
    )


def find_internal_waste(analysis: Analysis) -> Iterator[Finding]:
    """Report unsplit chunks and rounding at the allocated peak."""
    waste, peak = analysis.fragmentation, analysis.peak.allocated_bytes
    if not waste.internal_bytes or not peak:
        return
    alive = alive_at(analysis.rows, waste.instant)
    lost = alive["allocated_bytes"] - alive["requested_bytes"]
    worst = alive.assign(waste_bytes=lost)[lost > 0].sort_values("waste_bytes", ascending=False)
    yield Finding(
        id="internal-fragmentation",
        severity=severity_of(waste.unsplit_bytes, peak),
        title=f"{format_bytes(waste.internal_bytes)} of the allocated peak are unused space inside "
        f"chunks ({waste.internal_bytes / peak:.1%})",
        detail=f"{format_bytes(waste.unsplit_bytes)} are in chunks that were not split because they are "
        f"smaller than twice the request, {format_bytes(waste.rounding_bytes)} come from rounding to "
        "256 B. Use the same tensor sizes in every step, so that freed chunks can be reused, or set "
        "GPUOptions.experimental.internal_fragmentation_fraction, so that the allocator splits more "
        "chunks.",
        saves_bytes=waste.unsplit_bytes or None,
        saves_kind="allocated",
        evidence=tuple(
            describe_buffer(row, waste_bytes=int(row["waste_bytes"]))
            for row in worst.head(10).to_dict("records")
        ),
    )
