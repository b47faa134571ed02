"""Findings about tensors that stay alive: for the backward pass, after their last use or step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import LOW, Analysis, Instants, saved_without, severity_of
from analyzer.explain.buffer_words import (
    buffer_row,
    describe_buffer,
    describe_largest,
    is_retained,
    why_alive,
)
from analyzer.model.choice import Category
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.report.peak_figures import RetainedTensor
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

SEGMENTS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # numbers of segments to try

_EVIDENCE_ROWS: Final = 20
_EVIDENCE: Final = [
    "name",
    "layer",
    "shape",
    "dtype",
    "requested_bytes",
    "waits_for",
    "byte_seconds",
]


def retained_rows(analysis: Analysis) -> list[RetainedTensor]:
    """Return the activations alive at the peak that wait for the backward pass, largest first."""
    kept = analysis.alive[is_retained(analysis.alive)]
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


def find_retained(analysis: Analysis) -> Iterator[Finding]:
    """Report the activations kept for the backward pass, and how to reduce them."""
    rows = retained_rows(analysis)
    total = sum(row.requested_bytes for row in rows)
    peak = analysis.peak.requested_bytes
    if not total or total < LOW * peak:
        return
    found = find_recomputation(analysis)
    saves = max(found.saves_bytes, found.half_saves_bytes)
    yield Finding(
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
    return f"{detail}Both numbers assume the same order of ops."


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """The cut of the forward pass that saves most; ``saves_bytes`` is 0 if none lowers the peak.

    ``half_saves_bytes`` is the saving if the activations are half as large, as with half the batch.
    """

    saves_bytes: int
    segments: int
    half_saves_bytes: int


def find_recomputation(analysis: Analysis) -> Recomputation:
    """Return the cut of the steady step's forward pass that saves most.

    ``tf.recompute_grad`` cuts it into segments. Of each one only the first activation, its input, is
    kept; the others are freed at its end and computed again when the backward pass needs one of them.
    The order of the ops stays the same; temporaries of the second forward pass are not counted.
    """
    rows = analysis.rows
    inside = (rows["born"] >= analysis.first) & (rows["born"] <= analysis.last)
    chosen = inside & is_retained(rows) & (rows["variable"] == "")
    kept = rows[chosen].sort_values("born", kind="stable")
    if kept.empty:
        return Recomputation(saves_bytes=0, segments=0, half_saves_bytes=0)
    sizes, born, dies = (
        kept[name].to_numpy(dtype=np.int64) for name in ("requested_bytes", "born", "dies")
    )
    best, segments = 0, 0
    for count in (count for count in SEGMENTS if count <= len(kept)):
        saved = saved_without(analysis, *_absences(sizes, born, dies, count))
        if saved > best:
            best, segments = saved, count
    half = saved_without(analysis, sizes // 2, born, dies)
    return Recomputation(saves_bytes=best, segments=segments, half_saves_bytes=half)


def _absences(
    sizes: Instants, born: Instants, dies: Instants, count: int
) -> tuple[Instants, Instants, Instants]:
    """Return sizes and times of absence if the forward pass is cut into ``count`` segments.

    The segments hold about equally many bytes. A segment is back one instant before the first of its
    activations dies, because then the backward pass works on it.
    """
    before = np.cumsum(sizes) - sizes
    segment = before * count // max(int(sizes.sum()), 1)
    starts = np.flatnonzero(np.diff(segment, prepend=-1))
    ends = np.append(starts[1:], len(sizes))
    gone_from, gone_until = np.empty_like(born), np.empty_like(born)
    for start, end in zip(starts, ends, strict=True):
        gone_from[start:end] = born[end - 1] + 1
        gone_until[start:end] = dies[start:end].min() - 1
    dropped = sizes.copy()
    dropped[starts] = 0
    return dropped, gone_from, gone_until


def find_overdue(analysis: Analysis) -> Iterator[Finding]:
    """Report tensors that are alive at the peak after their last use."""
    events, instant = analysis.recording.events, analysis.peak.requested_instant
    has_times = analysis.step is not None and analysis.step.start_ps is not None
    if not has_times or not 0 <= instant < len(events):
        return
    times = events["time_ps"].to_numpy()
    overdue: list[EvidenceRow] = []
    gone: list[tuple[int, int, int]] = []  # bytes, from, until
    alive = analysis.alive[
        (analysis.alive["variable"] == "")
        & ~analysis.alive["category"].isin((Category.INPUT.value, Category.CONSTANT.value))
    ].sort_values("requested_bytes", ascending=False, kind="stable")
    for index, row in alive.iterrows():
        use = analysis.uses.get(int(index))
        if use is None or use.last_use_ps is None or use.last_use_ps >= times[instant]:
            continue
        after = int(np.searchsorted(times, use.last_use_ps))
        gone.append((int(row["requested_bytes"]), after, int(row["dies"])))
        late_s = (int(times[instant]) - use.last_use_ps) / 1e12
        overdue.append(describe_buffer(row, last_use=use.waits_for, overdue_s=late_s))
    total = sum(size_bytes for size_bytes, _, _ in gone)
    saves = saved_without(analysis, *zip(*gone, strict=True)) if gone else 0
    if not overdue or saves < LOW * analysis.peak.requested_bytes:
        return
    yield Finding(
        id="overdue-tensors",
        severity=severity_of(saves, analysis.peak.requested_bytes),
        title=f"{format_bytes(total)} of the peak are held by tensors that no later op uses",
        detail=f"All ops that use these {len(overdue)} tensors have finished, but something still "
        "holds a reference: the function's frame (arguments and return values), a loop, a list, or "
        "a Python name. Delete the reference after the last use.",
        saves_bytes=saves,
        evidence=tuple(overdue[:_EVIDENCE_ROWS]),
    )


def find_survivors(analysis: Analysis) -> Iterator[Finding]:
    """Report tensors of the steady step that outlive it and are no variables."""
    step = analysis.step
    if step is None or analysis.recording.watch is not None:  # ``kept_objects`` knows the names
        return
    rows = analysis.rows
    born_in = (rows["born"] >= step.first) & (rows["born"] <= step.last)
    left = rows[born_in & (rows["dies"] > step.last) & (rows["variable"] == "")]
    total = int(left["requested_bytes"].sum())
    if total < max(LOW * analysis.peak.requested_bytes, 4096):
        return
    saves = _saved_by_freeing(analysis)
    yield Finding(
        id="alive-after-step",
        severity=severity_of(saves, analysis.peak.requested_bytes),
        title=f"{format_bytes(total)} of the step's tensors outlive the step",
        detail=f"{len(left)} tensors made in step {step.index} are alive after it and are no "
        "variables. Usually they are the step's return values, which Python holds until the next "
        "step returns. Return less, or reduce it inside the step (a mean instead of all "
        "predictions).",
        saves_bytes=saves or None,
        evidence=describe_largest(left),
    )


def _saved_by_freeing(analysis: Analysis) -> int:
    """Return how far the peak falls if each step frees its tensors at its end."""
    rows, steps = analysis.rows, analysis.recording.steps
    ends = rows["step"].map({step.index: step.last for step in steps})
    left = rows[(ends.notna() & (rows["dies"] > ends) & (rows["variable"] == "")).fillna(False)]
    gone_from = ends[left.index].to_numpy(dtype=np.int64) + 1
    return saved_without(analysis, left["requested_bytes"].to_numpy(), gone_from, left["dies"])


def find_growth(analysis: Analysis) -> Iterator[Finding]:
    """Report memory that grows from step to step."""
    steps = analysis.full_steps
    if len(steps) < 3 or analysis.recording.watch is not None:  # ``leaks`` knows the names
        return
    ends = [analysis.line.at(step.last)[0] for step in steps]
    rises = [after - before for before, after in zip(ends[1:], ends[2:], strict=False)]
    if not rises or min(rises) <= 0:
        return
    rows = analysis.rows
    last, before = steps[-1], steps[-2]
    new = rows[
        (rows["born"] > before.last) & (rows["born"] <= last.last) & (rows["dies"] > last.last)
    ]
    rise = sum(rises) // len(rises)
    yield Finding(
        id="growth-per-step",
        severity=Severity.HIGH if rise >= 2**20 else Severity.LOW,
        title=f"Memory grows by {format_bytes(rise)} a step",
        detail="Tensors that are alive after a step are not freed by the next one. Usual causes: a "
        "list that collects tensors, a metric that is never reset, a function that is traced again "
        "each time. Store numbers instead of tensors: .numpy() or float().",
        saves_bytes=rise,
        evidence=describe_largest(new),
    )
