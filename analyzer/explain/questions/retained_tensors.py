"""Findings about tensors that stay alive: for the backward pass, after their last use or step."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import buffer_row, describe_buffer, why_alive
from analyzer.explain.questions.recomputation import Recomputation, find_recomputation
from analyzer.explain.questions.savings import LOW, saved_without, severity_of
from analyzer.model.choice import Category
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.report.peak_figures import RetainedTensor
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes, format_seconds

_EVIDENCE_ROWS: Final = 20
_EVIDENCE: Final = (
    "name",
    "layer",
    "shape",
    "dtype",
    "requested_bytes",
    "waits_for",
    "byte_seconds",
)


def retained_rows(analysis: Analysis) -> list[RetainedTensor]:
    """Return the activations alive at the peak that wait for the backward pass, largest first."""
    kept = analysis.alive[analysis.alive["category"] == Category.ACTIVATION.value]
    if analysis.recording.step_config.mode == "infer":
        return []
    kept = kept.sort_values("requested_bytes", ascending=False)
    return [_retained(analysis, int(index), row) for index, row in kept.iterrows()]


def _retained(analysis: Analysis, index: int, row: pd.Series[Any]) -> RetainedTensor:
    use = analysis.uses.get(index)
    held_s = None
    if not pd.isna(row["born_ps"]) and not pd.isna(row["dies_ps"]):
        held_s = (int(row["dies_ps"]) - int(row["born_ps"])) / 1e12
    return buffer_row(
        row,
        RetainedTensor,
        waits_for=use.waits_for if use is not None else "",
        why_alive=why_alive(row, use),
        held_s=held_s,
        byte_seconds=None if held_s is None else int(row["requested_bytes"]) * held_s,
        born=int(row["born"]),
        dies=int(row["dies"]),
    )


def find_retained(analysis: Analysis, rows: list[RetainedTensor]) -> list[Finding]:
    """Report the activations kept for the backward pass, and how to reduce them."""
    total = sum(row.requested_bytes for row in rows)
    peak = analysis.peak.requested_bytes
    if not total or total < LOW * peak:
        return []
    found = find_recomputation(analysis)
    saves = max(found.saves_bytes, found.half_saves_bytes)
    return [
        Finding(
            id="retained-activations",
            severity=severity_of(saves, peak),
            title=f"{format_bytes(total)} of activations wait for the backward pass "
            f"({total / peak:.0%} of the peak)",
            detail=_retained_detail(rows, found),
            saves_bytes=saves or None,
            evidence=tuple(
                {key: getattr(row, key) for key in _EVIDENCE} for row in rows[:_EVIDENCE_ROWS]
            ),
        )
    ]


def _retained_detail(rows: list[RetainedTensor], found: Recomputation) -> str:
    detail = f"{len(rows)} tensors of the forward pass wait for the backward pass. "
    if found.half_saves_bytes:
        detail += (
            f"Half the batch size lowers the peak by about {format_bytes(found.half_saves_bytes)} for "
            "these tensors alone. "
        )
    if found.saves_bytes:
        detail += (
            f"Recomputing them in {found.segments} segments lowers it by "
            f"{format_bytes(found.saves_bytes)}: put tf.recompute_grad or keras.RematScope around the "
            "layers of each segment. "
        )
    else:
        detail += "Recomputing them does not help: they are in use at the peak. "
    detail += "Both numbers assume the same order of ops."
    longest = max(rows, key=lambda row: row.byte_seconds or -1.0, default=None)
    if longest is not None and longest.held_s is not None:
        detail += (
            f" The largest product of bytes and time is {longest.name}: "
            f"{format_bytes(longest.requested_bytes)} for {format_seconds(longest.held_s)}."
        )
    return detail


def find_overdue(analysis: Analysis) -> list[Finding]:
    """Report tensors that are alive at the peak after their last use."""
    peak_ps = _time_of(analysis, analysis.peak.requested_instant)
    if peak_ps is None:
        return []
    overdue: list[EvidenceRow] = []
    gone: list[tuple[int, int, int]] = []  # bytes, from, until
    times = analysis.recording.events["time_ps"].to_numpy()
    for index, row in analysis.alive.iterrows():
        use = analysis.uses.get(int(index))
        if (
            use is None
            or use.last_use_ps is None
            or row["variable"]
            or use.last_use_ps >= peak_ps
            or row["category"] in (Category.INPUT.value, Category.CONSTANT.value)
        ):
            continue
        after = int(np.searchsorted(times, use.last_use_ps))
        gone.append((int(row["requested_bytes"]), after, int(row["dies"])))
        overdue.append(
            describe_buffer(
                row, last_use=use.waits_for, overdue_s=(peak_ps - use.last_use_ps) / 1e12
            )
        )
    total = sum(size_bytes for size_bytes, _, _ in gone)
    saves = saved_without(analysis, *zip(*gone, strict=True)) if gone else 0
    if not overdue or saves < LOW * analysis.peak.requested_bytes:
        return []
    order = sorted(range(len(gone)), key=lambda place: -gone[place][0])
    return [
        Finding(
            id="overdue-tensors",
            severity=severity_of(saves, analysis.peak.requested_bytes),
            title=f"{format_bytes(total)} of the peak are held by tensors that no later op uses",
            detail=f"All ops that use these {len(overdue)} tensors have finished, but something still "
            "holds a reference: the function's frame (arguments and return values), a loop, a list, or "
            "a Python name. Delete the reference after the last use.",
            saves_bytes=saves,
            evidence=tuple(overdue[place] for place in order[:_EVIDENCE_ROWS]),
        )
    ]


def _time_of(analysis: Analysis, instant: int) -> int | None:
    events = analysis.recording.events
    if instant < 0 or instant >= len(events) or analysis.step is None:
        return None
    return int(events["time_ps"].iloc[instant]) if analysis.step.start_ps is not None else None


def find_survivors(analysis: Analysis) -> list[Finding]:
    """Report tensors of the steady step that outlive it and are no variables."""
    step = analysis.step
    if step is None:
        return []
    rows = analysis.rows
    born_in = (rows["born"] >= step.first) & (rows["born"] <= step.last)
    left = rows[born_in & (rows["dies"] > step.last) & (rows["variable"] == "")]
    total = int(left["requested_bytes"].sum())
    if total < max(LOW * analysis.peak.requested_bytes, 4096):
        return []
    saves = _saved_by_freeing(analysis)
    left = left.sort_values("requested_bytes", ascending=False)
    return [
        Finding(
            id="alive-after-step",
            severity=severity_of(saves, analysis.peak.requested_bytes),
            title=f"{format_bytes(total)} of the step's tensors outlive the step",
            detail=f"{len(left)} tensors made in step {step.index} are alive after it and are no "
            "variables. Usually they are the step's return values, which Python holds until the next "
            "step returns. Return less, or reduce it inside the step (a mean instead of all "
            "predictions).",
            saves_bytes=saves or None,
            evidence=tuple(describe_buffer(row) for _, row in left.head(_EVIDENCE_ROWS).iterrows()),
        )
    ]


def _saved_by_freeing(analysis: Analysis) -> int:
    """Return how far the peak falls if each step frees its tensors at its end."""
    rows, steps = analysis.rows, analysis.recording.steps
    ends = rows["step"].map({step.index: step.last for step in steps})
    left = rows[(ends.notna() & (rows["dies"] > ends) & (rows["variable"] == "")).fillna(False)]
    gone_from = ends[left.index].to_numpy(dtype=np.int64) + 1
    return saved_without(analysis, left["requested_bytes"].to_numpy(), gone_from, left["dies"])


def find_growth(analysis: Analysis) -> list[Finding]:
    """Report memory that grows from step to step."""
    steps = [step for step in analysis.recording.steps if step.last >= step.first]
    if len(steps) < 3:
        return []
    ends = [analysis.line.at(step.last)[0] for step in steps]
    rises = [after - before for before, after in zip(ends[1:], ends[2:], strict=False)]
    if not rises or min(rises) <= 0:
        return []
    rows = analysis.rows
    last, before = steps[-1], steps[-2]
    new = rows[
        (rows["born"] > before.last) & (rows["born"] <= last.last) & (rows["dies"] > last.last)
    ].sort_values("requested_bytes", ascending=False)
    rise = sum(rises) // len(rises)
    return [
        Finding(
            id="growth-per-step",
            severity=Severity.HIGH if rise >= 2**20 else Severity.LOW,
            title=f"Memory grows by {format_bytes(rise)} a step",
            detail="Tensors that are alive after a step are not freed by the next one. Usual causes: a "
            "list that collects tensors, a metric that is never reset, a function that is traced again "
            "each time. Store numbers instead of tensors: .numpy() or float().",
            saves_bytes=rise,
            evidence=tuple(describe_buffer(row) for _, row in new.head(_EVIDENCE_ROWS).iterrows()),
        )
    ]
