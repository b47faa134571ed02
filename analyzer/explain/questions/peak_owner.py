"""Which op, layer and source line own the peak."""

from __future__ import annotations

from typing import Final

import pandas as pd

from analyzer.explain.analysis import PERSISTENT, Analysis
from analyzer.explain.buffer_words import buffer_row, describe_buffer
from analyzer.explain.questions.savings import saved_without
from analyzer.explain.questions.severity import MEDIUM, severity_of
from analyzer.model.contract.categories import Category
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.report.peak_figures import BufferRow
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

_ROWS: Final = 10  # tensors told one by one
_LARGE: Final = 0.2
"""Share of the peak from which on one tensor is worth a finding."""


def find_peak_owner(analysis: Analysis) -> list[Finding]:
    """Name the op at the peak, and the layers and source lines with the most bytes alive then."""
    alive = analysis.alive
    total = analysis.peak.requested_bytes
    if alive.empty or not total:
        return []
    op, layer, source = peak_op(analysis)
    moving = alive[~alive["category"].isin(PERSISTENT)]
    layers = _sums(moving, "layer")
    sources = _sums(moving, "source")
    where = f"in {op}" if op else "outside any named op"
    if layer:
        where += f" (layer {layer})"
    detail = f"Your code: {source}. " if source else ""
    if len(layers):
        detail += (
            f"The layer with the most bytes alive then is {layers.index[0]} "
            f"({format_bytes(int(layers.iloc[0]))} of activations, gradients and temporaries)."
        )
    evidence: list[EvidenceRow] = [
        {"layer": str(name), "requested_bytes": int(size)}
        for name, size in layers.head(_ROWS).items()
    ]
    evidence += [
        {"source": str(name), "requested_bytes": int(size)}
        for name, size in sources.head(_ROWS).items()
    ]
    return [
        Finding(
            id="peak-owner",
            severity=Severity.INFO,
            title=f"The peak of {format_bytes(total)} is reached {where}",
            detail=detail,
            evidence=tuple(evidence),
        )
    ]


def peak_op(analysis: Analysis) -> tuple[str, str, str]:
    """Return op, layer and source of the allocation that reached the requested peak."""
    born = analysis.rows[analysis.rows["born"] == analysis.peak.requested_instant]
    if born.empty:
        return "", "", ""
    row = born.iloc[0]
    return str(row["op"]), str(row["layer"]), str(row["source"])


def _sums(rows: pd.DataFrame, column: str) -> pd.Series[int]:
    named = rows[rows[column] != ""]
    sums = named.groupby(column, observed=True)["requested_bytes"].sum()
    return sums.sort_values(ascending=False)


def find_largest(analysis: Analysis) -> list[Finding]:
    """Report a single tensor that is a large share of the peak, and what half of it would save.

    Activations kept for the backward pass are told together
    (``retained_tensors``).
    """
    told = {*PERSISTENT}
    if analysis.recording.step_config.mode != "infer":
        told.add(Category.ACTIVATION.value)
    alive = analysis.alive[~analysis.alive["category"].isin(told) & ~_is_sum(analysis.alive)]
    peak = analysis.peak.requested_bytes
    if alive.empty:
        return []
    row = alive.loc[alive["requested_bytes"].idxmax()]
    size = int(row["requested_bytes"])
    saves = saved_without(analysis, [size // 2], [row["born"]], [row["dies"]])
    if not size or size < _LARGE * peak or saves < MEDIUM * peak:
        return []
    described = buffer_row(row, BufferRow)
    made = f"{described.op_type} {described.op}".strip() or "an op without a name"
    return [
        Finding(
            id="large-tensor",
            severity=severity_of(saves, peak),
            title=f"One tensor is {size / peak:.0%} of the peak: {described.name} "
            f"({format_bytes(size)})",
            detail=f"Its category is {described.category.replace('_', ' ')}, its shape "
            f"{described.shape or 'unknown'}, its type {described.dtype or 'unknown'}; {made} "
            f"makes it. {_in_halves(analysis, described.shape)} the peak is "
            f"{format_bytes(peak - saves)}, by the timeline.",
            saves_bytes=saves,
            evidence=(describe_buffer(row),),
        )
    ]


def _is_sum(alive: pd.DataFrame) -> pd.Series[bool]:
    """Tell which row is no tensor: what lay there before the trace, of which no one knows the parts."""
    unknown = alive["category"] == Category.UNATTRIBUTED.value
    return unknown & alive["address"].isna() & (alive["born"] < 0)


def _in_halves(analysis: Analysis, shape: str) -> str:
    """Say how the tensor could be half as large."""
    batch = analysis.recording.step_config.batch_size
    if batch and shape.strip("[]").split(",")[0] == str(batch):
        return "Its first axis is the batch; with half of that"
    return "Made and used in two parts, one after the other,"
