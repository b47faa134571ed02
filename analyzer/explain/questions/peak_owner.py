"""Findings about the peak: its op, its largest tensor, several gradients of one variable.

Accumulated gradients: unless one micro-batch waits for the previous one, the executor may run all
backward passes first and add up afterwards, so the gradients of all micro-batches are alive together.
The same happens to a weight with several uses, whose partial gradients wait for one ``AddN``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pandas as pd

from analyzer.explain.analysis import (
    LOW,
    MEDIUM,
    PERSISTENT,
    Analysis,
    saved_without,
    severity_of,
)
from analyzer.explain.buffer_words import (
    buffer_row,
    describe_buffer,
    is_passing,
    is_retained,
    why_alive,
)
from analyzer.model.choice import Category
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.report.peak_figures import BufferRow
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

_ROWS: Final = 10
_GRADIENT_ROWS: Final = 20
_LARGE_RATIO: Final = 0.2
"""Share of the peak from which on a single tensor is reported."""


def find_peak_owner(analysis: Analysis) -> Iterator[Finding]:
    """Report the op at the peak, and the layers and source lines with the most live bytes."""
    alive = analysis.alive
    total = analysis.peak.requested_bytes
    if alive.empty or not total:
        return
    op, layer, source = peak_op(analysis)
    where = f"in {op}" if op else "outside named ops"
    if layer:
        where += f" (layer {layer})"
    detail = f"Source line: {source}. " if source else ""
    moving = alive[~alive["category"].isin(PERSISTENT)]
    evidence: list[EvidenceRow] = []
    for column in ("layer", "source"):
        named = moving[moving[column] != ""].groupby(column, observed=True)["requested_bytes"]
        sums = named.sum().sort_values(ascending=False)
        if column == "layer" and len(sums):
            detail += (
                f"Layer {sums.index[0]} holds the most at the peak: "
                f"{format_bytes(int(sums.iloc[0]))} of activations, gradients and temporaries."
            )
        evidence += [
            {column: str(name), "requested_bytes": int(size)}
            for name, size in sums.head(_ROWS).items()
        ]
    yield Finding(
        id="peak-owner",
        severity=Severity.INFO,
        title=f"The peak of {format_bytes(total)} is reached {where}",
        detail=detail,
        evidence=tuple(evidence),
    )


def peak_op(analysis: Analysis) -> tuple[str, str, str]:
    """Return op, layer and source line of the allocation at the requested peak."""
    born = analysis.rows[analysis.rows["born"] == analysis.peak.requested_instant]
    if born.empty:
        return "", "", ""
    row = born.iloc[0]
    return str(row["op"]), str(row["layer"]), str(row["source"])


def find_largest(analysis: Analysis) -> Iterator[Finding]:
    """Report a single tensor that is a large share of the peak, and the saving of half of it.

    ``retained_tensors`` reports activations kept for the backward pass.
    """
    alive, peak = analysis.alive, analysis.peak.requested_bytes
    is_skipped = alive["category"].isin({*PERSISTENT, Category.WORKSPACE.value})
    if analysis.recording.step_config.mode != "infer":
        is_skipped |= is_retained(alive)
    is_skipped |= (  # the sum of all memory from before the trace, no tensor
        (alive["category"] == Category.UNATTRIBUTED.value)
        & alive["address"].isna()
        & (alive["born"] < 0)
    )
    alive = alive[~is_skipped]
    if alive.empty:
        return
    row = alive.loc[alive["requested_bytes"].idxmax()]
    size = int(row["requested_bytes"])
    saves = saved_without(analysis, [size // 2], [row["born"]], [row["dies"]])
    if not size or size < _LARGE_RATIO * peak or saves < MEDIUM * peak:
        return
    described = buffer_row(row, BufferRow)
    made = f"{described.op_type} {described.op}".strip() or "an op without a name"
    batch = analysis.recording.step_config.batch_size
    half = (
        "Its first axis is the batch: half the batch size"
        if batch and described.shape.strip("[]").split(",")[0] == str(batch)
        else "Processing it in two halves, one after the other,"
    )
    yield Finding(
        id="large-tensor",
        severity=severity_of(saves, peak),
        title=f"One tensor is {size / peak:.0%} of the peak: {described.name} ({format_bytes(size)})",
        detail=f"Category {described.category.replace('_', ' ')}, shape "
        f"{described.shape or 'unknown'}, type {described.dtype or 'unknown'}, made by {made}. "
        f"{half} lowers the peak to {format_bytes(peak - saves)}.",
        saves_bytes=saves,
        evidence=(describe_buffer(row),),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCopies:
    """Gradients of one variable that are alive at the peak.

    Attributes:
        variable: Its path; several, joined, if variables of one layer share a shape.
        each: Number of gradients for each variable.
        rows: Their rows of the allocations table, in order of birth.
    """

    variable: str
    each: int
    rows: pd.DataFrame

    @property
    def requested_bytes(self) -> int:
        """Requested bytes of all of them."""
        return int(self.rows["requested_bytes"].sum())


def find_gradient_copies(analysis: Analysis) -> Iterator[Finding]:
    """Report variables with more than one live gradient at the peak."""
    copies = sorted(_gradient_copies(analysis), key=lambda one: -one.requested_bytes)
    peak = analysis.peak.requested_bytes
    saves = _saved_with_one_gradient(analysis, copies) if copies else 0
    if not copies or saves < LOW * peak:
        return
    total = sum(one.requested_bytes for one in copies)
    largest, others = copies[0], len(copies) - 1
    size = f"{format_bytes(total)} ({total / peak:.0%} of the peak)"
    if others:
        size = f"with {others} other variable{'s' * (others > 1)} {size}"
    yield Finding(
        id="gradient-copies",
        severity=severity_of(saves, peak),
        title=f"{largest.each} gradients of {largest.variable} are alive together: {size}",
        detail="They come from several micro-batches or several uses of one weight, and none waits "
        "until the previous one is added. Keep one gradient at a time: put tf.control_dependencies "
        "on the last assign_add around the next micro-batch, use a tf.while_loop with "
        "parallel_iterations=1, or call the tf.function for each micro-batch. The saving assumes "
        "that each gradient is freed at the birth of the next one.",
        saves_bytes=saves,
        evidence=tuple(_gradient_rows(analysis, copies)),
    )


def _gradient_copies(analysis: Analysis) -> Iterator[GradientCopies]:
    """Yield the variables with more live gradients at the peak than variables of that shape."""
    alive = analysis.alive
    is_variable, category = alive["variable"] != "", alive["category"]
    key = ["layer", "shape", "dtype"]  # which a gradient and its variable share
    parameters = alive[is_variable & (category == Category.PARAMETER.value)]
    owners = parameters.groupby(key, observed=True)["variable"].unique().to_dict()
    gradients = alive[~is_variable & (category == Category.GRADIENT.value) & ~is_passing(alive)]
    for shared, rows in gradients.groupby(key, observed=True, sort=False):
        variables = sorted(map(str, owners.get(shared, ())))
        each = len(rows) // max(len(variables), 1)
        if variables and each > 1:
            rows = rows.sort_values("born", kind="stable")
            yield GradientCopies(variable=" and ".join(variables), each=each, rows=rows)


def _saved_with_one_gradient(analysis: Analysis, copies: list[GradientCopies]) -> int:
    """Return the saving if each gradient is freed at the birth of the variable's next one."""
    gone = []
    for one in copies:
        variables = len(one.rows) // one.each  # with the same layer and shape
        later = one.rows["born"].to_numpy()[variables:]
        sizes, dies = one.rows["requested_bytes"], one.rows["dies"]
        gone += list(zip(sizes, later, dies, strict=False))
    return saved_without(analysis, *zip(*gone, strict=True))


def _gradient_rows(analysis: Analysis, copies: list[GradientCopies]) -> Iterator[EvidenceRow]:
    rows = [(one, index, row) for one in copies for index, row in one.rows.iterrows()]
    for one, index, row in rows[:_GRADIENT_ROWS]:
        alive = why_alive(row, analysis.uses.get(int(index)))
        yield {**describe_buffer(row), "of": one.variable, "why_alive": alive}
