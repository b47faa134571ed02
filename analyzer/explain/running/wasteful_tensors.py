"""Tensors that could be smaller or absent: float64, dense gradients, copies of the input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import first_source, in_brackets, tensor_rows
from analyzer.explain.running.leaks import tensors_left
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.graph.host_copies import MOVES, SCALES
from analyzer.model.recording.records import Finding, Severity, Step
from analyzer.model.units import format_bytes
from analyzer.tracing.measure.attribution import HOST_COPY_ROLE

_LEAST_BYTES: Final = 1 << 20
_LEAST_RATIO: Final = 0.05
"""float64 and dense gradients are reported above both: bytes, and a share of the peak."""

_COPIES_RATIO: Final = 0.1
_MANY_COPIES_RATIO: Final = 0.25
"""Shares of the peak above which input copies are reported, and have medium severity."""

_ROWS: Final = 8
_DENSE_OP: Final = "UnsortedSegmentSum"
_LOADER: Final = "IteratorGetNext"
_ITEM_BYTES: Final = (1, 2, 4, 8)


def find_wide_numbers(analysis: Analysis) -> Iterator[Finding]:
    """Report float64 tensors that are a large part of the peak."""
    wide = analysis.alive[analysis.alive["dtype"].astype(str) == "float64"]
    size_bytes = int(wide["requested_bytes"].sum())
    if size_bytes < max(_LEAST_BYTES, _LEAST_RATIO * analysis.peak.requested_bytes):
        return
    largest = wide.sort_values("requested_bytes", ascending=False).head(_ROWS)
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
        evidence=tensor_rows(dense.head(_ROWS), lambda row: f"dense, {row['shape']}"),
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
        f"{', '.join(dict.fromkeys(makers[:_ROWS]))}{in_brackets(where)}",
        detail="Each copy has as many elements as the input. Convert type, order and scale before "
        "the step: in the map of tf.data, which frees the original, or once for the whole data "
        "set.",
        evidence=tensor_rows(rows.head(_ROWS), lambda row: f"copy, {row['dtype']} {row['shape']}"),
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
    fed = fed[fed["requested_bytes"] >= _LEAST_BYTES // _ROWS]
    fed_sizes = {
        (step, int(size) * item // other)
        for step, size in set(zip(fed["step"], fed["requested_bytes"], strict=True))
        for item in _ITEM_BYTES
        for other in _ITEM_BYTES
    }
    moved = alive["op"].isin(MOVES | SCALES) & (alive["requested_bytes"] >= _LEAST_BYTES // _ROWS)
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
