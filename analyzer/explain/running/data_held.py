"""Data that is held whole: constants of graphs, tensors that live through all steps, tf.data stages."""

from __future__ import annotations

from typing import Final

from analyzer.explain.analysis import Analysis
from analyzer.explain.running.evidence_rows import evidence_row
from analyzer.explain.running.slope import StepGrowth, growth_of
from analyzer.explain.running.staying_bytes import growth_words
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.watch_note import DataStage, LargeConstant, WatchNote
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

_LEAST_BYTES: Final = 8 << 20
"""Data below this is no matter."""

_SHARE: Final = 0.1
"""Share of the peak below which it is none either."""

_MANY: Final = 8
"""Batches in a tensor's first axis from which on it is taken to be a data set."""

_ROWS_OF_DATA: Final = 1000
"""The same where the batch is not known."""


def find_data(analysis: Analysis, watch: WatchNote) -> list[Finding]:
    """Report data sets that became constants or are held whole, and stages that hold much."""
    peak = analysis.peak.allocated_bytes
    least = max(_LEAST_BYTES, _SHARE * peak)
    found = [
        _constant(one) for one in watch.constants if one.kind == "graph" and one.size_bytes >= least
    ]
    batch = analysis.recording.step_config.batch_size
    found += [
        _held(one, analysis)
        for one in watch.constants
        if one.kind == "held" and one.size_bytes >= least and _is_data(one, batch)
    ]
    found += [
        _slices(one)
        for one in watch.constants
        if one.kind == "slices" and one.size_bytes >= 4 * least
    ]
    filled = stage_that_fills(analysis, watch)
    found += [
        _stage(one, _stage_bytes(one), growth_words(_growth(watch)) if one is filled else "")
        for one in watch.stages
        if one is filled or _stage_bytes(one) >= 4 * least
    ]
    return found


def stage_that_fills(analysis: Analysis, watch: WatchNote) -> DataStage | None:
    """Return the stage whose filling may be all that grows; None where none is as large.

    On the CPU what stages hold lies in the allocator of the steps' tensors.
    """
    growth = _growth(watch)
    if growth.trend != "grows" or analysis.recording.device.kind == "gpu":
        return None
    grown_bytes = growth.per_step_bytes * (growth.last_step - growth.first_step)
    largest = max(watch.stages, key=_stage_bytes, default=None)
    return None if largest is None or _stage_bytes(largest) < grown_bytes else largest


def _growth(watch: WatchNote) -> StepGrowth:
    return growth_of(watch.readings, watch.warmup)


def _is_data(one: LargeConstant, batch: int | None) -> bool:
    rows = one.shape[0] if one.shape else 0
    return len(one.shape or ()) > 1 and rows >= (_MANY * batch if batch else _ROWS_OF_DATA)


def _constant(one: LargeConstant) -> Finding:
    kept = f", in {one.copies} graphs" if one.copies > 1 else ""
    return Finding(
        id="data-constant",
        severity=Severity.HIGH,
        title=f"{format_bytes(one.size_bytes)} of data are a constant of a graph{kept} ({one.where})",
        detail=f"The {one.dtype} array of shape {_shape(one)} was met while a tf.function was "
        "traced, so TensorFlow put its values into the graph: once in the graph that is saved, "
        "once more where the executor keeps it on its device, for as long as the function "
        "lives. Feed batches instead: tf.data.Dataset.from_generator or from_tensor_slices "
        "outside the function, or pass a tensor as an argument.",
        saves_bytes=one.size_bytes * one.copies,
        saves_kind="allocated",
        evidence=(_row(one, "constant"),),
    )


def _held(one: LargeConstant, analysis: Analysis) -> Finding:
    on_card = analysis.recording.device.kind == "gpu"
    where = "on the card" if on_card else "in TensorFlow's memory"
    return Finding(
        id="data-held",
        severity=Severity.HIGH if on_card else Severity.MEDIUM,
        title=f"{format_bytes(one.size_bytes)} of data are held whole {where} by {one.name} "
        f"({one.where})",
        detail=f"Tensors of {one.dtype}, shape {_shape(one)}, live through all traced steps "
        "beside what the steps need. Keep the array in NumPy, or memory-mapped, and let tf.data "
        "bring a batch at a time; tf.device('CPU') keeps it off the card.",
        saves_bytes=one.size_bytes,
        saves_kind="allocated",
        evidence=(_row(one, "held"),),
    )


def _slices(one: LargeConstant) -> Finding:
    return Finding(
        id="data-slices",
        severity=Severity.LOW,
        title=f"A data set was made of {format_bytes(one.size_bytes)} in memory ({one.where})",
        detail=f"The pipeline holds {one.name} as tensors beside the arrays themselves, on the "
        "host. Where that is too much, read them piece by piece: from_generator, TFRecord "
        "files, numpy.memmap.",
        evidence=(_row(one, "source"),),
    )


def _stage_bytes(one: DataStage) -> int:
    return (one.elements or 0) * (one.element_bytes or 0)


def _stage(one: DataStage, size_bytes: int, slope: str) -> Finding:
    """Return what is said of a stage; with a slope, that it is being filled."""
    hints = {
        "shuffle": "Shuffle before batching and decoding (indices or file names), or with a "
        "smaller buffer.",
        "cache": "cache(filename) keeps it on disk.",
        "prefetch": "One or two elements are enough, or tf.data.AUTOTUNE.",
    }
    return Finding(
        id="data-stage",
        severity=Severity.MEDIUM if slope else Severity.LOW,
        title=f"{one.kind} {'is filling, and ' if slope else ''}holds up to "
        f"{format_bytes(size_bytes)} on the host ({one.where})",
        detail=f"{one.elements} elements of {format_bytes(one.element_bytes or 0)}. "
        + (f"{slope} That is no more than it will hold when it is full. " if slope else "")
        + hints[one.kind],
        evidence=(evidence_row(one.kind, where=one.where, count=one.elements, size=size_bytes),),
    )


def _shape(one: LargeConstant) -> str:
    return "not known" if one.shape is None else str(list(one.shape))


def _row(one: LargeConstant, what: str) -> EvidenceRow:
    return evidence_row(
        f"{what}, {one.dtype} {_shape(one)}",
        name=one.name,
        where=one.where,
        count=one.copies,
        size=one.size_bytes,
    )
