"""Data in memory: constants, tensors alive in all steps, tf.data stages; the program's figures."""

from collections.abc import Iterator
from typing import Final

from msgspec import structs

from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import TEXTS, evidence_row
from analyzer.explain.running.leaks import find_filling, growth_words
from analyzer.explain.running.slope import find_own_peak, measure_growth
from analyzer.model.contract.report.subject import (
    MOST_READINGS,
    HostKind,
    ProgramFigures,
    TrendFigures,
)
from analyzer.model.contract.watch_note import DataStage, LargeConstant, WatchNote
from analyzer.model.recording.records import Finding, Recording, Severity
from analyzer.model.units import format_bytes

_LEAST_BYTES: Final = 8 << 20
_LEAST_RATIO: Final = 0.1  # data is reported above both: bytes, and a share of the peak
_LEAST_HOST: Final = 4  # data on the host is reported above this multiple of the limit
_MANY: Final = 8  # batches in the first axis from which on a tensor seems to be a data set
_ROWS_OF_DATA: Final = 1000  # the same limit in rows, if the batch size is unknown

_LEAST_STEPS: Final = 50  # steps from which on the host's growth is divided by kind
_OF_THE_WATCH: Final = ("step", "where", "steps", "warmup", "ended", "whole_run", "micro_batches")


def find_data(analysis: Analysis, watch: WatchNote, growth: TrendFigures) -> Iterator[Finding]:
    """Report data sets that are constants or fully in memory, and stages with large buffers."""
    least = max(_LEAST_BYTES, _LEAST_RATIO * analysis.peak.allocated_bytes)
    batch = analysis.recording.step_config.batch_size
    fewest = _MANY * batch if batch else _ROWS_OF_DATA
    for one in watch.constants:
        shape = one.shape or ()
        is_set = one.copies == 1 and len(shape) > 1 and shape[0] >= fewest
        if one.size_bytes >= least and (one.kind == "graph" or (one.kind == "held" and is_set)):
            yield _report(one, is_on_card=analysis.recording.device.kind == "gpu")
    filled = find_filling_stage(analysis.recording, watch, growth)
    for stage in watch.stages:
        if stage is filled or _stage_bytes(stage) >= _LEAST_HOST * least:
            yield _stage(stage, growth_words(growth) if stage is filled else "")


def find_filling_stage(
    recording: Recording, watch: WatchNote, growth: TrendFigures
) -> DataStage | None:
    """Return the stage whose filling may explain all growth; None if none is large enough.

    On the CPU, stages allocate in the same allocator as the steps.
    """
    if growth.trend != "grows" or recording.device.kind == "gpu":
        return None
    grown_bytes = growth.per_step_bytes * (growth.last_step - growth.first_step)
    largest = max(watch.stages, key=_stage_bytes, default=None)
    return None if largest is None or _stage_bytes(largest) < grown_bytes else largest


def _report(one: LargeConstant, *, is_on_card: bool) -> Finding:
    """Return the finding about a large array by its kind."""
    size, size_bytes = format_bytes(one.size_bytes), one.size_bytes
    array = f"{one.dtype}, shape {list(one.shape or ()) or 'unknown'}"
    row = evidence_row(array, name=one.name, where=one.where, count=one.copies, size=size_bytes)
    severity = Severity.HIGH
    if one.kind == "graph":
        copies = f"{one.copies} graphs" if one.copies > 1 else "a graph"
        id_, title = "data-constant", f"{size} of data are a constant of {copies}"
    else:
        severity = Severity.HIGH if is_on_card else Severity.MEDIUM
        where = "on the card" if is_on_card else "in TensorFlow's memory"
        id_, title = "data-held", f"{size} of data stay {where}: {one.name} holds the whole set"
    return Finding(
        id=id_,
        severity=severity,
        title=f"{title} ({one.where})",
        detail=TEXTS[id_].format(array=array),
        saves_bytes=one.size_bytes * one.copies,
        saves_kind="allocated",
        evidence=(row,),
    )


def _stage_bytes(one: DataStage) -> int:
    return (one.elements or 0) * (one.element_bytes or 0)


def _stage(one: DataStage, slope: str) -> Finding:
    """Report a stage; ``slope`` is not empty if memory grows because the stage is filling."""
    size_bytes = _stage_bytes(one)
    filling = f"{slope} The growth ends when the stage is full. " if slope else ""
    return Finding(
        id="data-stage",
        severity=Severity.MEDIUM if slope else Severity.LOW,
        title=f"The tf.data stage {one.kind} {'is filling and ' if slope else ''}holds up to "
        f"{format_bytes(size_bytes)} on the host ({one.where})",
        detail=f"{one.elements} elements of {format_bytes(one.element_bytes or 0)}. {filling}"
        f"{TEXTS['data-stage-' + one.kind]}",
        evidence=(evidence_row(one.kind, where=one.where, count=one.elements, size=size_bytes),),
    )


def program_figures(recording: Recording) -> ProgramFigures | None:
    """Return the report's figures on a program's steps; None if its own steps were not traced."""
    watch = recording.watch
    if watch is None:
        return None
    growth = measure_growth(recording, watch)
    device, readings = growth.device, watch.readings
    if find_filling(watch, device) or find_filling_stage(recording, watch, device):
        device = structs.replace(device, trend="fills")
    elif device.trend == "grows" and watch.step_objects > 1 and not watch.models:
        device = structs.replace(device, trend="cannot tell")
    stride = -(-len(readings) // (MOST_READINGS - 1)) or 1
    return ProgramFigures(
        **{name: getattr(watch, name) for name in _OF_THE_WATCH},
        device=device,
        host=growth.host,
        host_kinds=_measure_host_kinds(recording, watch),
        readings=(*readings[:-1:stride], *readings[-1:]),  # evenly spaced, with the last one
        own_peak_bytes=find_own_peak(recording),
    )


def _measure_host_kinds(recording: Recording, watch: WatchNote) -> tuple[HostKind, ...]:
    """Return the growth of each kind over all steps, the largest first; none below 50 steps.

    Graphs count as TensorFlow saves them, which is less than they take. Variables of models count on
    the CPU. A stage of ``tf.data`` counts with its whole buffer. The rest of the process is unknown.
    """
    steps, traced = watch.steps, max(len(recording.steps), 1)
    if steps < _LEAST_STEPS:
        return ()
    models = [one for one in watch.models if one.alive and recording.device.kind == "cpu"]
    totals = {
        "functions": sum(one.graph_bytes * max(one.alive - 1, 0) for one in watch.functions),
        "graphs": sum(
            one.graph_bytes * max(one.traces - one.objects, 0) for one in watch.functions
        ),
        "models": sum(one.size_bytes * (one.alive - 1) // one.alive for one in models),
        "arrays": sum(one.size_bytes for one in watch.on_host if not one.removes) * steps // traced,
        "data pipeline": sum(map(_stage_bytes, watch.stages)),
    }
    rows = (
        HostKind(kind=kind, per_step_bytes=total / steps, total_bytes=total)
        for kind, total in totals.items()
        if total
    )
    return tuple(sorted(rows, key=lambda row: -row.total_bytes))
