"""Which op, layer and source line own the peak."""

from __future__ import annotations

import pandas as pd

from analyzer.findings.analysis import PERSISTENT, Analysis
from analyzer.findings.words import describe_buffer
from analyzer.model import Category, Finding, Severity
from analyzer.units import format_bytes

_ROWS = 10


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
    evidence = [
        {"layer": str(name), "requested_bytes": int(size)}
        for name, size in layers.head(_ROWS).items()
    ] + [
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
    """Report a single tensor that is a large share of the peak."""
    alive = analysis.alive[~analysis.alive["category"].isin(PERSISTENT)]
    if alive.empty:
        return []
    row = alive.loc[alive["requested_bytes"].idxmax()]
    share = row["requested_bytes"] / max(analysis.peak.requested_bytes, 1)
    if share < 0.1 or str(row["category"]) == Category.PARAMETER:
        return []
    described = describe_buffer(row)
    return [
        Finding(
            id="large-tensor",
            severity=Severity.MEDIUM if share < 0.3 else Severity.HIGH,
            title=f"One tensor is {share:.0%} of the peak: {described['name']} "
            f"({format_bytes(described['requested_bytes'])})",
            detail=f"Its category is {described['category']}; shape {described['shape'] or 'unknown'}, "
            f"type {described['dtype'] or 'unknown'}. Splitting or shrinking this one tensor lowers the "
            "peak by up to its size.",
            saves_bytes=described["requested_bytes"],
            evidence=(described,),
        )
    ]
