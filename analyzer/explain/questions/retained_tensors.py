"""Findings about tensors that stay alive: for the backward pass, after their last use or step."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import LOW, Analysis, saved_without, severity_of
from analyzer.explain.buffer_words import (
    describe_buffer,
    describe_largest,
    is_retained,
)
from analyzer.model.choice import Category
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

_EVIDENCE_ROWS: Final = 20


def _describe_retained(analysis: Analysis, rows: pd.DataFrame) -> Iterator[EvidenceRow]:
    """Yield the buffers, each with its last reader."""
    for index, row in rows.iterrows():
        use = analysis.uses.get(int(index))
        yield describe_buffer(row, waits_for="" if use is None else use.waits_for)


def find_retained(analysis: Analysis) -> Iterator[Finding]:
    """Report the activations kept for the backward pass, and how to reduce them."""
    rows = analysis.alive[is_retained(analysis.alive)]
    rows = rows.sort_values("requested_bytes", ascending=False)
    total, peak = int(rows["requested_bytes"].sum()), analysis.peak.requested_bytes
    if analysis.recording.step_config.infers or not total or total < LOW * peak:
        return

    saves = _save_by_half(analysis)
    details = [f"{len(rows)} tensors of the forward pass wait for the backward pass."]
    if saves:
        details.append(
            f"Half the batch size lowers the peak by about {format_bytes(saves)} for "
            "these tensors alone, if the order of ops stays the same."
        )

    yield Finding(
        id="retained-activations",
        severity=severity_of(saves, peak),
        title=f"{format_bytes(total)} of activations wait for the backward pass "
        f"({total / peak:.0%} of the peak)",
        detail=" ".join(details),
        saves_bytes=saves or None,
        evidence=tuple(_describe_retained(analysis, rows.head(_EVIDENCE_ROWS))),
    )


def _save_by_half(analysis: Analysis) -> int:
    """Return how far the peak falls if the step's activations are half as large."""
    rows = analysis.rows
    inside = rows["born"].between(analysis.first, analysis.last)
    kept = rows[inside & is_retained(rows) & (rows["variable"] == "")]
    half = kept["requested_bytes"].to_numpy(dtype=np.int64) // 2
    return saved_without(analysis, half, kept["born"], kept["dies"])


def find_overdue(analysis: Analysis) -> Iterator[Finding]:
    """Report tensors that are alive at the peak after their last use."""
    instant = analysis.peak.requested_instant
    times = analysis.recording.events["time_ps"].to_numpy()
    if (
        analysis.step is None
        or analysis.step.start_ps is None
        or not 0 <= instant < len(times)
    ):
        return

    alive = analysis.alive[
        (analysis.alive["variable"] == "")
        & ~analysis.alive["category"].isin(
            (Category.INPUT.value, Category.CONSTANT.value)
        )
    ].sort_values("requested_bytes", ascending=False, kind="stable")

    used = {
        row: use.last_use_ps for row, use in analysis.uses.items() if use.last_use_ps
    }
    overdue = alive[
        [used.get(int(row), times[instant]) < times[instant] for row in alive.index]
    ]
    if overdue.empty:
        return

    gone_from = np.searchsorted(times, [used[int(row)] for row in overdue.index])
    saves = saved_without(
        analysis, overdue["requested_bytes"], gone_from, overdue["dies"]
    )
    if saves < LOW * analysis.peak.requested_bytes:
        return

    total = format_bytes(int(overdue["requested_bytes"].sum()))

    yield Finding(
        id="overdue-tensors",
        severity=severity_of(saves, analysis.peak.requested_bytes),
        title=f"{total} of the peak are held by tensors that no later op uses",
        detail=(
            f"All ops that use these {len(overdue)} tensors have finished, but "
            "something still holds a reference: the function's frame (arguments and "
            "return values), a loop, a list, or a Python name. Delete the reference "
            "after the last use."
        ),
        saves_bytes=saves,
        evidence=tuple(
            describe_buffer(
                row,
                last_use=analysis.uses[int(index)].waits_for,
                overdue_s=(int(times[instant]) - used[int(index)]) / 1e12,
            )
            for index, row in overdue.head(_EVIDENCE_ROWS).iterrows()
        ),
    )


def find_growth(analysis: Analysis) -> Iterator[Finding]:
    """Report memory that grows from step to step."""
    steps, rows = analysis.full_steps, analysis.rows
    if (
        len(steps) < 3 or analysis.recording.watch is not None
    ):  # ``leaks`` knows the names
        return

    rises = np.diff([analysis.line.at(step.last)[0] for step in steps[1:]])
    if rises.min() <= 0:
        return

    last, rise = steps[-1].last, int(rises.mean())
    new = rows[
        (rows["born"] > steps[-2].last) & (rows["born"] <= last) & (rows["dies"] > last)
    ]

    yield Finding(
        id="growth-per-step",
        severity=Severity.HIGH if rise >= 2**20 else Severity.LOW,
        title=f"Memory grows by {format_bytes(rise)} a step",
        detail=(
            "Tensors that are alive after a step are not freed by the next one. Usual"
            " causes: a list that collects tensors, a metric that is never reset, a "
            "function that is traced again each time. Store numbers instead of "
            "tensors: .numpy() or float()."
        ),
        saves_bytes=rise,
        evidence=describe_largest(new),
    )
