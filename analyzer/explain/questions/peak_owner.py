"""Findings about the peak: its op, its largest tensor, and tensors that could be smaller or absent.

Accumulated gradients: unless one micro-batch waits for the previous one, the executor may run all
backward passes first and add up afterwards, so the gradients of all micro-batches are alive together.
The same happens to a weight with several uses, whose partial gradients wait for one ``AddN``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
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
    first_source,
    in_brackets,
    is_passing,
    is_retained,
    tensor_rows,
    why_alive,
)
from analyzer.explain.running.leaks import tensors_left
from analyzer.model.choice import Category
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.report.peak_figures import BufferRow
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.graph.host_copies import MOVES, SCALES
from analyzer.model.recording.records import Finding, Severity, Step
from analyzer.model.units import format_bytes
from analyzer.tracing.measure.attribution import HOST_COPY_ROLE

_ROWS: Final = 10
_GRADIENT_ROWS: Final = 20
_LARGE_RATIO: Final = 0.2  # share of the peak from which on a single tensor is reported


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
    """Gradients of one variable that are alive at the peak."""

    variable: str  # its path; several, joined, if variables of one layer share a shape
    each: int  # number of gradients for each variable
    rows: pd.DataFrame  # their rows of the allocations table, in order of birth

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


_LEAST_BYTES: Final = 1 << 20
_LEAST_RATIO: Final = 0.05
"""float64 and dense gradients are reported above both: bytes, and a share of the peak."""

_COPIES_RATIO: Final = 0.1
_MANY_COPIES_RATIO: Final = 0.25
"""Shares of the peak above which input copies are reported, and have medium severity."""

_TENSORS: Final = 8
_DENSE_OP: Final = "UnsortedSegmentSum"
_LOADER: Final = "IteratorGetNext"
_ITEM_BYTES: Final = (1, 2, 4, 8)


def find_wide_numbers(analysis: Analysis) -> Iterator[Finding]:
    """Report float64 tensors that are a large part of the peak."""
    wide = analysis.alive[analysis.alive["dtype"].astype(str) == "float64"]
    size_bytes = int(wide["requested_bytes"].sum())
    if size_bytes < max(_LEAST_BYTES, _LEAST_RATIO * analysis.peak.requested_bytes):
        return
    largest = wide.sort_values("requested_bytes", ascending=False).head(_TENSORS)
    yield Finding(
        id="float64",
        severity=Severity.MEDIUM,
        title=f"{format_bytes(size_bytes)} of the peak are float64"
        f"{in_brackets(first_source(largest))}",
        detail="NumPy's default is float64, and TensorFlow keeps the type. Use float32, which "
        "takes half: array.astype('float32'), tf.constant(x, tf.float32), or dtype= when the data "
        "is read.",
        saves_bytes=size_bytes // 2,
        evidence=tensor_rows(largest, lambda row: "float64"),
    )


def find_dense_gradients(analysis: Analysis) -> Iterator[Finding]:
    """Report gradients of embedding tables that are as large as the tables.

    The gradient of a lookup has few rows (``IndexedSlices``). If an op needs it as a tensor, TensorFlow
    sums the rows into a tensor of the table's shape (``UnsortedSegmentSum``,
    ``_indexed_slices_to_tensor`` in ``indexed_slices.py``).
    """
    alive = analysis.alive
    kinds = alive["op_type"].astype(str).where(alive["op_type"] != "", alive["op"].astype(str))
    parameters = set(alive.loc[alive["category"] == "parameter", "shape"].astype(str)) - {""}
    dense = alive[kinds.str.startswith(_DENSE_OP) & alive["shape"].astype(str).isin(parameters)]
    size_bytes = int(dense["requested_bytes"].sum())
    if size_bytes < max(_LEAST_BYTES, _LEAST_RATIO * analysis.peak.requested_bytes):
        return
    yield Finding(
        id="dense-gradient",
        severity=Severity.MEDIUM,
        title=f"{format_bytes(size_bytes)} of the peak are dense gradients of embedding tables"
        f"{in_brackets(first_source(dense))}",
        detail="The gradient of a lookup has few rows, but something converts it to a tensor of "
        "the table's shape: gradient accumulation, clipping by the global norm, the loss scaling "
        "of mixed precision, or an optimizer without a sparse update. Keep the gradient sparse, "
        "or use an optimizer with a sparse update.",
        saves_bytes=size_bytes,
        evidence=tensor_rows(dense.head(_TENSORS), lambda row: f"dense, {row['shape']}"),
    )


def find_input_copies(analysis: Analysis, watch: WatchNote) -> Iterator[Finding]:
    """Report copies of the step's inputs that are alive at the peak."""
    if analysis.step is None:
        return
    rows = _find_copies(analysis, analysis.step).sort_values("requested_bytes", ascending=False)
    size_bytes = int(rows["requested_bytes"].sum())
    peak = analysis.peak.requested_bytes
    if size_bytes < max(_LEAST_BYTES, _COPIES_RATIO * peak):
        return
    makers = [str(row["op_type"] or row["op"]) for row in rows.to_dict("records")]
    where = first_source(rows) or _line_of_holder(analysis, watch, rows) or watch.where
    yield Finding(
        id="input-copies",
        severity=Severity.MEDIUM if size_bytes >= _MANY_COPIES_RATIO * peak else Severity.LOW,
        title=f"{format_bytes(size_bytes)} of the peak are copies of the input, made by "
        f"{', '.join(dict.fromkeys(makers[:_TENSORS]))}{in_brackets(where)}",
        detail="Each copy has as many elements as the input. Convert type, order and scale before "
        "the step: in the map of tf.data, which frees the original, or once for the whole data "
        "set.",
        evidence=tensor_rows(
            rows.head(_TENSORS), lambda row: f"copy, {row['dtype']} {row['shape']}"
        ),
    )


def _line_of_holder(analysis: Analysis, watch: WatchNote, rows: pd.DataFrame) -> str:
    """Return the line of a name that holds the result of an op of ``rows``; empty if none does."""
    left = tensors_left(analysis)
    addresses = set(left.loc[left["op"].isin(set(rows["op"])), "address"].astype("int64"))
    return next((one.where for one in watch.held if addresses.intersection(one.addresses)), "")


def _find_copies(analysis: Analysis, step: Step) -> pd.DataFrame:
    """Return a step's copies that are alive at the peak, known by the graph or by their size."""
    alive = analysis.alive[(analysis.alive["step"] == step.index).fillna(False)]
    by_graph = {index for index, use in analysis.uses.items() if use.copied_by}
    fed = analysis.rows[
        (analysis.rows["role"] == HOST_COPY_ROLE) | (analysis.rows["op"] == _LOADER)
    ]
    fed = fed[fed["requested_bytes"] >= _LEAST_BYTES // _TENSORS]
    fed_sizes = {
        (step, int(size) * item // other)
        for step, size in set(zip(fed["step"], fed["requested_bytes"], strict=True))
        for item in _ITEM_BYTES
        for other in _ITEM_BYTES
    }
    moved = alive["op"].isin(MOVES | SCALES) & (
        alive["requested_bytes"] >= _LEAST_BYTES // _TENSORS
    )
    like_fed = np.array(
        [
            bool(is_moved) and (step, int(size)) in fed_sizes
            for is_moved, step, size in zip(
                moved, alive["step"], alive["requested_bytes"], strict=True
            )
        ],
        dtype=bool,
    )
    return alive[alive.index.isin(by_graph) | like_fed]
