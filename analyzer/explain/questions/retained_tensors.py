"""Findings about tensors that stay alive: for the backward pass, after their last use or step."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from analyzer.explain import buffer_words
from analyzer.explain.analysis import LOW, Analysis, saved_without, severity_of
from analyzer.model.choice import Category
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.report.peak_figures import BufferRow
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

SEGMENTS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # numbers of segments to try

_EVIDENCE_ROWS: Final = 20
_LEAST_BYTES: Final = 4096  # of tensors that outlive the step
_SHOWN: Final = ("name", "layer", "shape", "dtype", "requested_bytes")


def _describe_retained(analysis: Analysis, rows: pd.DataFrame) -> Iterator[EvidenceRow]:
    """Yield the last reader of each buffer, and its requested bytes times its lifetime."""
    for index, row in rows.iterrows():
        use, byte_seconds = analysis.uses.get(int(index)), None
        if not pd.isna(row["born_ps"]) and not pd.isna(row["dies_ps"]):
            held_s = (int(row["dies_ps"]) - int(row["born_ps"])) / 1e12
            byte_seconds = int(row["requested_bytes"]) * held_s
        buffer = buffer_words.buffer_row(row, BufferRow)
        named: EvidenceRow = {key: getattr(buffer, key) for key in _SHOWN}
        waits_for = "" if use is None else use.waits_for
        yield {**named, "waits_for": waits_for, "byte_seconds": byte_seconds}


def find_retained(analysis: Analysis) -> Iterator[Finding]:
    """Report the activations kept for the backward pass, and how to reduce them."""
    rows = analysis.alive[buffer_words.is_retained(analysis.alive)]
    rows = rows.sort_values("requested_bytes", ascending=False)
    total, peak = int(rows["requested_bytes"].sum()), analysis.peak.requested_bytes
    if analysis.recording.step_config.infers or not total or total < LOW * peak:
        return
    found = find_recomputation(analysis)
    saves = max(found.saves_bytes, found.half_saves_bytes)
    half, recomputed = map(format_bytes, (found.half_saves_bytes, found.saves_bytes))
    details = [f"{len(rows)} tensors of the forward pass wait for the backward pass."]
    if found.half_saves_bytes:
        details.append(
            f"Half the batch size lowers the peak by about {half} for these tensors alone."
        )
    details.append(
        f"Recomputing them in {found.segments} segments lowers it by {recomputed}: put "
        "tf.recompute_grad, keras.RematScope or jax.checkpoint around the layers of each segment."
        if found.saves_bytes
        else "Recomputing them does not help: they are in use at the peak."
    )
    details.append("Both numbers assume the same order of ops.")
    yield Finding(
        id="retained-activations",
        severity=severity_of(saves, peak),
        title=f"{format_bytes(total)} of activations wait for the backward pass "
        f"({total / peak:.0%} of the peak)",
        detail=" ".join(details),
        saves_bytes=saves or None,
        evidence=tuple(_describe_retained(analysis, rows.head(_EVIDENCE_ROWS))),
    )


class Recomputation(NamedTuple):
    """The cut of the forward pass that saves most; ``saves_bytes`` is 0 if none lowers the peak."""

    saves_bytes: int = 0
    segments: int = 0
    half_saves_bytes: int = 0  # if the activations are half as large, as with half the batch


def find_recomputation(analysis: Analysis) -> Recomputation:
    """Return the cut of the steady step's forward pass that saves most.

    ``tf.recompute_grad`` cuts it into segments of about equally many bytes. Of each one only the first
    activation, its input, is kept; the others are freed at its end and computed again one instant before
    the first of them dies, because then the backward pass works on the segment. The order of the ops
    stays the same; temporaries of the second forward pass are not counted.
    """
    rows = analysis.rows
    inside = (rows["born"] >= analysis.first) & (rows["born"] <= analysis.last)
    chosen = inside & buffer_words.is_retained(rows) & (rows["variable"] == "")
    kept = rows[chosen].sort_values("born", kind="stable")
    if kept.empty:
        return Recomputation()
    sizes, born, dies = (
        kept[name].to_numpy(dtype=np.int64) for name in ("requested_bytes", "born", "dies")
    )
    before, total = np.cumsum(sizes) - sizes, max(int(sizes.sum()), 1)
    best, segments = 0, 0
    for count in (count for count in SEGMENTS if count <= len(kept)):
        starts = np.flatnonzero(np.diff(before * count // total, prepend=-1))
        lengths = np.diff(starts, append=len(sizes))
        gone_from = np.repeat(born[starts + lengths - 1] + 1, lengths)
        gone_until = np.repeat(np.minimum.reduceat(dies, starts) - 1, lengths)
        dropped = sizes.copy()
        dropped[starts] = 0
        saved = saved_without(analysis, dropped, gone_from, gone_until)
        if saved > best:
            best, segments = saved, count
    return Recomputation(best, segments, saved_without(analysis, sizes // 2, born, dies))


def find_overdue(analysis: Analysis) -> Iterator[Finding]:
    """Report tensors that are alive at the peak after their last use."""
    instant = analysis.peak.requested_instant
    times = analysis.recording.events["time_ps"].to_numpy()
    if analysis.step is None or analysis.step.start_ps is None or not 0 <= instant < len(times):
        return
    alive = analysis.alive[
        (analysis.alive["variable"] == "")
        & ~analysis.alive["category"].isin((Category.INPUT.value, Category.CONSTANT.value))
    ].sort_values("requested_bytes", ascending=False, kind="stable")
    used = {row: use.last_use_ps for row, use in analysis.uses.items() if use.last_use_ps}
    overdue = alive[[used.get(int(row), times[instant]) < times[instant] for row in alive.index]]
    if overdue.empty:
        return
    gone_from = np.searchsorted(times, [used[int(row)] for row in overdue.index])
    saves = saved_without(analysis, overdue["requested_bytes"], gone_from, overdue["dies"])
    if saves < LOW * analysis.peak.requested_bytes:
        return
    total = format_bytes(int(overdue["requested_bytes"].sum()))
    yield Finding(
        id="overdue-tensors",
        severity=severity_of(saves, analysis.peak.requested_bytes),
        title=f"{total} of the peak are held by tensors that no later op uses",
        detail=buffer_words.TEXTS["overdue-tensors"].format(count=len(overdue)),
        saves_bytes=saves,
        evidence=tuple(
            buffer_words.describe_buffer(
                row,
                last_use=analysis.uses[int(index)].waits_for,
                overdue_s=(int(times[instant]) - used[int(index)]) / 1e12,
            )
            for index, row in overdue.head(_EVIDENCE_ROWS).iterrows()
        ),
    )


def find_survivors(analysis: Analysis) -> Iterator[Finding]:
    """Report tensors of the steady step that outlive it and are no variables."""
    step, rows = analysis.step, analysis.rows
    if step is None or analysis.recording.watch is not None:  # ``kept_objects`` knows the names
        return
    ends = rows["step"].map({step.index: step.last for step in analysis.recording.steps})
    outliving = rows[
        (ends.notna() & (rows["dies"] > ends) & (rows["variable"] == "")).fillna(False)
    ]
    left = outliving[outliving["step"] == step.index]
    total = int(left["requested_bytes"].sum())
    if total < max(LOW * analysis.peak.requested_bytes, _LEAST_BYTES):
        return
    gone_from = ends[outliving.index].to_numpy(dtype=np.int64) + 1
    saves = saved_without(analysis, outliving["requested_bytes"], gone_from, outliving["dies"])
    yield Finding(
        id="alive-after-step",
        severity=severity_of(saves, analysis.peak.requested_bytes),
        title=f"{format_bytes(total)} of the step's tensors outlive the step",
        detail=buffer_words.TEXTS["alive-after-step"].format(count=len(left), step=step.index),
        saves_bytes=saves or None,
        evidence=buffer_words.describe_largest(left),
    )


def find_growth(analysis: Analysis) -> Iterator[Finding]:
    """Report memory that grows from step to step."""
    steps, rows = analysis.full_steps, analysis.rows
    if len(steps) < 3 or analysis.recording.watch is not None:  # ``leaks`` knows the names
        return
    rises = np.diff([analysis.line.at(step.last)[0] for step in steps[1:]])
    if rises.min() <= 0:
        return
    last, rise = steps[-1].last, int(rises.mean())
    new = rows[(rows["born"] > steps[-2].last) & (rows["born"] <= last) & (rows["dies"] > last)]
    yield Finding(
        id="growth-per-step",
        severity=Severity.HIGH if rise >= 2**20 else Severity.LOW,
        title=f"Memory grows by {format_bytes(rise)} a step",
        detail=buffer_words.TEXTS["growth-per-step"],
        saves_bytes=rise,
        evidence=buffer_words.describe_largest(new),
    )
