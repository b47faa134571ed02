"""Findings about the peak: its op, its largest tensor, several gradients of one variable.

Accumulated gradients: unless one micro-batch waits for the previous one, the executor may run all
backward passes first and add up afterwards, so the gradients of all micro-batches are alive together.
The same happens to a weight with several uses, whose partial gradients wait for one ``AddN``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from analyzer.explain.analysis import PERSISTENT, Analysis
from analyzer.explain.buffer_words import buffer_row, describe_buffer, why_alive
from analyzer.explain.questions.savings import LOW, MEDIUM, saved_without, severity_of
from analyzer.model.choice import Category
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.report.peak_figures import BufferRow
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

_ROWS: Final = 10
_GRADIENT_ROWS: Final = 20
_LARGE_RATIO: Final = 0.2
"""Share of the peak from which on a single tensor is reported."""


def find_peak_owner(analysis: Analysis) -> list[Finding]:
    """Report the op at the peak, and the layers and source lines with the most live bytes."""
    alive = analysis.alive
    total = analysis.peak.requested_bytes
    if alive.empty or not total:
        return []
    op, layer, source = peak_op(analysis)
    moving = alive[~alive["category"].isin(PERSISTENT)]
    layers = _sums(moving, "layer")
    sources = _sums(moving, "source")
    where = f"in {op}" if op else "outside named ops"
    if layer:
        where += f" (layer {layer})"
    detail = f"Source line: {source}. " if source else ""
    if len(layers):
        detail += (
            f"Layer {layers.index[0]} holds the most at the peak: "
            f"{format_bytes(int(layers.iloc[0]))} of activations, gradients and temporaries."
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
    """Return op, layer and source line of the allocation at the requested peak."""
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
    """Report a single tensor that is a large share of the peak, and the saving of half of it.

    ``retained_tensors`` reports activations kept for the backward pass.
    """
    skipped = {*PERSISTENT, Category.WORKSPACE.value}
    if analysis.recording.step_config.mode != "infer":
        skipped.add(Category.ACTIVATION.value)
    alive = analysis.alive[~analysis.alive["category"].isin(skipped) & ~_is_sum(analysis.alive)]
    peak = analysis.peak.requested_bytes
    if alive.empty:
        return []
    row = alive.loc[alive["requested_bytes"].idxmax()]
    size = int(row["requested_bytes"])
    saves = saved_without(analysis, [size // 2], [row["born"]], [row["dies"]])
    if not size or size < _LARGE_RATIO * peak or saves < MEDIUM * peak:
        return []
    described = buffer_row(row, BufferRow)
    made = f"{described.op_type} {described.op}".strip() or "an op without a name"
    return [
        Finding(
            id="large-tensor",
            severity=severity_of(saves, peak),
            title=f"One tensor is {size / peak:.0%} of the peak: {described.name} "
            f"({format_bytes(size)})",
            detail=f"Category {described.category.replace('_', ' ')}, shape "
            f"{described.shape or 'unknown'}, type {described.dtype or 'unknown'}, made by {made}. "
            f"{_halving_words(analysis, described.shape)} lowers the peak to "
            f"{format_bytes(peak - saves)}.",
            saves_bytes=saves,
            evidence=(describe_buffer(row),),
        )
    ]


def _is_sum(alive: pd.DataFrame) -> pd.Series[bool]:
    """Return which row is the sum of all memory from before the trace, and no tensor."""
    unknown = alive["category"] == Category.UNATTRIBUTED.value
    return unknown & alive["address"].isna() & (alive["born"] < 0)


def _halving_words(analysis: Analysis, shape: str) -> str:
    """Return the change that makes a tensor half as large."""
    batch = analysis.recording.step_config.batch_size
    if batch and shape.strip("[]").split(",")[0] == str(batch):
        return "Its first axis is the batch: half the batch size"
    return "Processing it in two halves, one after the other,"


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


def find_gradient_copies(analysis: Analysis) -> list[Finding]:
    """Report variables with more than one live gradient at the peak."""
    copies = sorted(_gradient_copies(analysis), key=lambda one: -one.requested_bytes)
    peak = analysis.peak.requested_bytes
    saves = _saved_with_one_gradient(analysis, copies) if copies else 0
    if not copies or saves < LOW * peak:
        return []
    total = sum(one.requested_bytes for one in copies)
    largest, others = copies[0], len(copies) - 1
    size = f"{format_bytes(total)} ({total / peak:.0%} of the peak)"
    if others:
        size = f"with {others} other variable{'s' * (others > 1)} {size}"
    return [
        Finding(
            id="gradient-copies",
            severity=severity_of(saves, peak),
            title=f"{largest.each} gradients of {largest.variable} are alive together: {size}",
            detail="They come from several micro-batches or several uses of one weight, and none waits "
            "until the previous one is added. Keep one gradient at a time: put "
            "tf.control_dependencies on the last assign_add around the next micro-batch, use a "
            "tf.while_loop with parallel_iterations=1, or call the tf.function for each micro-batch. "
            "The saving assumes that each gradient is freed at the birth of the next one.",
            saves_bytes=saves,
            evidence=tuple(_gradient_rows(analysis, copies)),
        )
    ]


def _gradient_copies(analysis: Analysis) -> Iterator[GradientCopies]:
    """Yield the variables with more live gradients at the peak than variables of that shape."""
    alive = analysis.alive
    is_variable = alive["variable"] != ""
    parameters = alive[is_variable & (alive["category"] == Category.PARAMETER.value)]
    owners: dict[tuple[str, str, str], set[str]] = {}
    for row in parameters.to_dict("records"):
        owners.setdefault(_gradient_key(row), set()).add(str(row["variable"]))
    gradients = alive[~is_variable & (alive["category"] == Category.GRADIENT.value)]
    places: dict[tuple[str, str, str], list[int]] = {}
    for place, row in enumerate(gradients.to_dict("records")):
        places.setdefault(_gradient_key(row), []).append(place)
    for key, chosen in places.items():
        variables = owners.get(key, set())
        each = len(chosen) // max(len(variables), 1)
        if variables and each > 1:
            rows = gradients.iloc[chosen].sort_values("born", kind="stable")
            yield GradientCopies(variable=" and ".join(sorted(variables)), each=each, rows=rows)


def _gradient_key(row: Mapping[Any, Any]) -> tuple[str, str, str]:
    """Return the key of a gradient and its variable: layer, shape and type."""
    return str(row["layer"]), str(row["shape"]), str(row["dtype"])


def _saved_with_one_gradient(analysis: Analysis, copies: list[GradientCopies]) -> int:
    """Return the saving if each gradient is freed at the birth of the variable's next one."""
    gone = []
    for one in copies:
        variables = len(one.rows) // one.each  # with the same layer and shape
        later = one.rows["born"].to_numpy()[variables:]
        for row, born in zip(one.rows.to_dict("records"), later, strict=False):
            gone.append((int(row["requested_bytes"]), int(born), int(row["dies"])))
    sizes, gone_from, gone_until = zip(*gone, strict=True)
    return saved_without(analysis, sizes, gone_from, gone_until)


def _gradient_rows(analysis: Analysis, copies: list[GradientCopies]) -> Iterator[EvidenceRow]:
    left = _GRADIENT_ROWS
    for one in copies:
        for index, row in one.rows.head(left).iterrows():
            left -= 1
            yield {
                **describe_buffer(row),
                "of": one.variable,
                "why_alive": why_alive(row, analysis.uses.get(int(index))),
            }
