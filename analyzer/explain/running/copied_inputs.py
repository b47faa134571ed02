"""Copies of what a step is fed: cast, turned round or scaled, beside what came in."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.explain.running.evidence_rows import first_source, tensor_rows
from analyzer.explain.running.staying_bytes import left_over
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.graph.tensor_roles import MOVES, SCALES
from analyzer.model.recording.records import Finding, Severity, Step
from analyzer.model.units import format_bytes
from analyzer.tracing.measure.attribution import HOST_COPY_ROLE

_LEAST_BYTES: Final = 1 << 20
_SHARE: Final = 0.1
"""Share of the peak from which copies are told."""

_MUCH: Final = 0.25
_ROWS: Final = 8
_NEXT: Final = "IteratorGetNext"
_ITEM_BYTES: Final = (1, 2, 4, 8)


def find_input_copies(analysis: Analysis, watch: WatchNote) -> list[Finding]:
    """Report what the peak holds of the step's inputs once more."""
    if analysis.step is None:
        return []
    rows = _copies(analysis, analysis.step).sort_values("requested_bytes", ascending=False)
    size_bytes = int(rows["requested_bytes"].sum())
    peak = analysis.peak.requested_bytes
    if size_bytes < max(_LEAST_BYTES, _SHARE * peak):
        return []
    made = [str(row["op_type"] or row["op"]) for row in rows.to_dict("records")]
    where = first_source(rows)
    where = where or _line_of_holder(analysis, watch, rows) or watch.where
    return [
        Finding(
            id="input-copies",
            severity=Severity.MEDIUM if size_bytes >= _MUCH * peak else Severity.LOW,
            title=f"{format_bytes(size_bytes)} of the peak are copies of what the step is fed, made by "
            f"{', '.join(dict.fromkeys(made[:_ROWS]))}" + (f" ({where})" if where else ""),
            detail="Each has as many elements as what came in. Bring the data into "
            "the type, order and scale that the layers take before the step: in tf.data's map, "
            "where what came in is let go, or once for the whole set.",
            evidence=tensor_rows(
                rows.head(_ROWS), lambda row: f"copy, {row['dtype']} {row['shape']}"
            ),
        )
    ]


def _line_of_holder(analysis: Analysis, watch: WatchNote, rows: pd.DataFrame) -> str:
    """Return the line that binds a name to the result of one of the ops that made ``rows``, or empty."""
    left = left_over(analysis)
    made = left.loc[left["op"].isin(set(rows["op"])), "address"].astype("int64")
    addresses = set(made)
    return next((one.where for one in watch.held if addresses.intersection(one.addresses)), "")


def _copies(analysis: Analysis, step: Step) -> pd.DataFrame:
    """Return the copies that a step made and that are alive at the peak, by graph or by elements."""
    alive = analysis.alive[(analysis.alive["step"] == step.index).fillna(False)]
    by_graph = {index for index, use in analysis.uses.items() if use.copied_by}
    fed = analysis.rows[(analysis.rows["role"] == HOST_COPY_ROLE) | (analysis.rows["op"] == _NEXT)]
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
