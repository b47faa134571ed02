"""Models kept from a loop, results that Python holds into the next step, and 64-bit numbers."""

from __future__ import annotations

from typing import Final

import pandas as pd

from analyzer.explain.analysis import PERSISTENT, Analysis
from analyzer.explain.running.evidence_rows import evidence_row, first_source, tensor_rows
from analyzer.explain.running.staying_bytes import left_over, staying
from analyzer.model.contract.watch_note import HeldTensors, LiveModels, WatchNote
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

_LEAST_BYTES: Final = 8 << 20
_SHARE: Final = 0.2
"""What Python holds of the step before is told from this share of the peak on, whatever holds it."""

_NAMED_SHARE: Final = 0.1
"""The same of what the names of the program are known to hold: there is a line to change."""

_DATA: Final = ("", "IteratorGetNext")
"""Ops whose results are the data of a loop."""

_WIDE_SHARE: Final = 0.05
_WIDE_BYTES: Final = 1 << 20
_ROWS: Final = 8
_MADE_DENSE: Final = "UnsortedSegmentSum"


def find_models(watch: WatchNote) -> list[Finding]:
    """Report models of one line of which several are alive."""
    return [_models(one) for one in watch.models]


def _models(one: LiveModels) -> Finding:
    by = f", kept by {one.holder}" if one.holder else ""
    return Finding(
        id="models-kept",
        severity=Severity.MEDIUM,
        title=f"{one.alive} models made at {one.where} are alive ({format_bytes(one.size_bytes)} "
        f"of variables{by})",
        detail="Each keeps its weights, its optimizer's slots and the graphs of its functions. "
        "Between two models of a search or of folds: del model, then "
        "keras.utils.clear_session(); or a process for each.",
        saves_bytes=one.size_bytes * (one.alive - 1) // one.alive,
        saves_kind="allocated",
        evidence=(evidence_row("made", where=one.where, count=one.alive, size=one.size_bytes),),
    )


def find_held_over(analysis: Analysis, watch: WatchNote) -> list[Finding]:
    """Report what names of the program hold of the step before when the peak is reached."""
    if analysis.step is None:
        return []
    alive = analysis.alive
    old = alive[
        alive["step"].notna()
        & (alive["step"].fillna(-1) < analysis.step.index)
        & ~alive["category"].isin(PERSISTENT)
    ]
    growing = [one.held for one in staying(analysis, watch)]
    bound = [held for held in watch.held if held not in growing]
    names, named_bytes = _names_that_hold(analysis, old, bound)
    peak, size_bytes = analysis.peak.requested_bytes, int(old["requested_bytes"].sum())
    if size_bytes < max(_LEAST_BYTES, _SHARE * peak):
        size_bytes = named_bytes
        if named_bytes < max(_WIDE_BYTES, _NAMED_SHARE * peak):
            return []
    names = (names or bound)[:_ROWS]
    by = f", held by {names[0].holder} ({names[0].where})" if names else ""
    shown = ", ".join(f"{held.holder} ({held.where})" for held in names[:3])
    return [
        Finding(
            id="held-over",
            severity=Severity.LOW,
            title=f"{format_bytes(size_bytes)} of the step before are alive at the peak{by}",
            detail="A name keeps its tensors until it is bound anew, which in a loop is one step later. "
            + (f"Held after a step: {shown}. " if shown else "")
            + "`del` them at the end of the step, or make the step a function: its names end with it.",
            saves_bytes=size_bytes,
            evidence=tuple(
                evidence_row(
                    "held by",
                    name=held.holder,
                    where=held.where,
                    count=held.count,
                    size=held.size_bytes,
                )
                for held in names
            ),
        )
    ]


def _names_that_hold(
    analysis: Analysis, old: pd.DataFrame, bound: list[HeldTensors]
) -> tuple[list[HeldTensors], int]:
    """Return the names that hold after the last step what ``old`` was before it, and its bytes.

    It is known by its op and size. What a loop draws from its data is left out: the name of it is bound
    anew before the step begins.

    Args:
        analysis: The recording.
        old: Rows of the step before that are alive at the peak.
        bound: Names that are bound anew in each step.
    """
    left = left_over(analysis)
    left = left[~left["op"].isin(_DATA)]
    made = dict(
        zip(
            left["address"].astype("int64"),
            zip(left["op"].astype(str), left["requested_bytes"], strict=True),
            strict=True,
        )
    )
    of_old = list(zip(old["op"].astype(str), old["requested_bytes"], strict=True))
    names = [held for held in bound if any(made.get(one) in of_old for one in held.addresses)]
    known = {made[one] for held in names for one in held.addresses if one in made}
    return names, int(old.loc[[one in known for one in of_old], "requested_bytes"].sum())


def find_wide_numbers(analysis: Analysis) -> list[Finding]:
    """Report tensors of float64 that take a good part of the peak."""
    wide = analysis.alive[analysis.alive["dtype"].astype(str) == "float64"]
    size_bytes = int(wide["requested_bytes"].sum())
    if size_bytes < max(_WIDE_BYTES, _WIDE_SHARE * analysis.peak.requested_bytes):
        return []
    largest = wide.sort_values("requested_bytes", ascending=False).head(_ROWS)
    source = first_source(largest)
    at = f" ({source})" if source else ""
    return [
        Finding(
            id="float64",
            severity=Severity.MEDIUM,
            title=f"{format_bytes(size_bytes)} of the peak are float64{at}",
            detail="NumPy's default is float64 and TensorFlow keeps it. float32 takes half: "
            "array.astype('float32'), tf.constant(x, tf.float32), dtype= where data is read.",
            saves_bytes=size_bytes // 2,
            evidence=tensor_rows(largest, lambda row: "float64"),
        )
    ]


def find_dense_gradients(analysis: Analysis) -> list[Finding]:
    """Report gradients of looked-up tables that are as large as the tables.

    A look-up's gradient is a few rows (``IndexedSlices``); where something needs it as a tensor,
    TensorFlow sums the rows into one of the table's shape (``UnsortedSegmentSum``,
    ``_indexed_slices_to_tensor`` in ``indexed_slices.py``).
    """
    alive = analysis.alive
    kinds = alive["op_type"].astype(str).where(alive["op_type"] != "", alive["op"].astype(str))
    parameters = set(alive.loc[alive["category"] == "parameter", "shape"].astype(str)) - {""}
    dense = alive[kinds.str.startswith(_MADE_DENSE) & alive["shape"].astype(str).isin(parameters)]
    size_bytes = int(dense["requested_bytes"].sum())
    if size_bytes < max(_WIDE_BYTES, _WIDE_SHARE * analysis.peak.requested_bytes):
        return []
    source = first_source(dense)
    at = f" ({source})" if source else ""
    return [
        Finding(
            id="dense-gradient",
            severity=Severity.MEDIUM,
            title=f"{format_bytes(size_bytes)} of the peak are dense gradients of looked-up tables{at}",
            detail="A look-up gives a gradient of a few rows, and something asks for it as a "
            "tensor of the table's shape: adding it to another gradient (accumulation), clipping by the "
            "global norm, mixed precision's scaling, or an optimizer without a sparse update.",
            saves_bytes=size_bytes,
            evidence=tensor_rows(dense.head(_ROWS), lambda row: f"dense, {row['shape']}"),
        )
    ]
