"""Findings about the scratch memory of convolutions: workspaces, layout copies, trials of algorithms."""

from __future__ import annotations

from typing import Final

from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import describe_buffer
from analyzer.explain.questions.savings import LOW, saved_without, severity_of
from analyzer.model.choice import Category
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.recording.schema import TRIAL_ROLE
from analyzer.model.recording.timeline import alive_at
from analyzer.model.units import format_bytes

_EVIDENCE_ROWS: Final = 20


def find_workspaces(analysis: Analysis) -> list[Finding]:
    """Report workspaces that are alive at the peak, and the most that smaller ones can save."""
    alive, peak = analysis.alive, analysis.peak.requested_bytes
    at_peak = alive[(alive["category"] == Category.WORKSPACE.value) & (alive["role"] != TRIAL_ROLE)]
    total = int(at_peak["requested_bytes"].sum())
    if not total or total < LOW * peak:
        return []
    rows = analysis.rows
    own = rows[rows["category"] == Category.WORKSPACE.value]
    saves = saved_without(analysis, own["requested_bytes"], own["born"], own["dies"])
    row = at_peak.loc[at_peak["requested_bytes"].idxmax()]
    limit_mib = max(int(row["requested_bytes"]) // 2 >> 20, 1)
    algorithm = str(row["role"]).partition(", ")[2]
    using = f" with the algorithm {algorithm}" if algorithm else ""
    layer = f" of layer {row['layer']}" if row["layer"] else ""
    return [
        Finding(
            id="workspace",
            severity=severity_of(saves, peak),
            title=f"Workspaces of convolutions take {format_bytes(total)} "
            f"({total / peak:.0%} of the peak)",
            detail=f"The largest is {format_bytes(int(row['requested_bytes']))} in {row['op']}{layer}"
            f"{using}. cuDNN's fastest algorithm may need more memory than a slower one. Start with "
            f"TF_CUDNN_WORKSPACE_LIMIT_IN_MB={limit_mib} (by default 4096, and 8192 in newer "
            "releases) to exclude it. Without any "
            f"workspace the peak falls to {format_bytes(peak - saves)}.",
            saves_bytes=saves or None,
            evidence=tuple(
                describe_buffer(each) for _, each in at_peak.head(_EVIDENCE_ROWS).iterrows()
            ),
        )
    ]


def find_layout_copies(analysis: Analysis) -> list[Finding]:
    """Report copies of tensors into the layout of cuDNN that are alive at the peak."""
    alive, peak = analysis.alive, analysis.peak.requested_bytes
    copies = alive[alive["role"] == "layout copy"]
    total = int(copies["requested_bytes"].sum())
    saves = saved_without(analysis, copies["requested_bytes"], copies["born"], copies["dies"])
    if saves < LOW * peak or not saves:
        return []
    return [
        Finding(
            id="layout-copies",
            severity=severity_of(saves, peak),
            title=f"Layout copies of convolutions take {format_bytes(total)} at the peak",
            detail="The op copies a tensor into the layout that cuDNN's kernel needs. float16 on tensor "
            "cores uses channels-last without a copy; float32 uses channels-first "
            "(keras.config.set_image_data_format).",
            saves_bytes=saves,
            evidence=tuple(
                describe_buffer(each) for _, each in copies.head(_EVIDENCE_ROWS).iterrows()
            ),
        )
    ]


def find_trials(analysis: Analysis) -> list[Finding]:
    """Report trials of algorithms that lift the highest peak of the trace."""
    instant = analysis.peak_ever.requested_instant
    alive = alive_at(analysis.rows, instant)
    trials = alive[alive["role"] == TRIAL_ROLE]
    total = int(trials["requested_bytes"].sum())
    steps = analysis.recording.steps
    step = next((one for one in steps if one.first <= instant <= one.last), None)
    if not total or step is None or total < LOW * analysis.peak_ever.requested_bytes:
        return []
    why = (
        "The first call of each convolution tries cuDNN's algorithms."
        if step is steps[0]
        else "A new input shape, such as a smaller last batch, starts new trials: "
        "dataset.batch(n, drop_remainder=True) avoids them."
    )
    return [
        Finding(
            id="algorithm-trials",
            severity=Severity.INFO,
            title=f"Trials of algorithms request {format_bytes(total)} at the highest peak of step "
            f"{step.index}",
            detail=f"{why} TensorFlow skips a trial that finds no memory. TF_CUDNN_USE_AUTOTUNE=0 turns "
            "trials off, and TF_CUDNN_WORKSPACE_LIMIT_IN_MB limits them.",
            evidence=tuple(
                describe_buffer(each) for _, each in trials.head(_EVIDENCE_ROWS).iterrows()
            ),
        )
    ]
