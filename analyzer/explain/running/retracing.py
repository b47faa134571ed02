"""Functions that TensorFlow traces many times, and their graphs that stay in memory."""

from __future__ import annotations

from typing import Final

from analyzer.explain.running.evidence_rows import evidence_row
from analyzer.explain.running.leaks import growth_words
from analyzer.explain.running.slope import StepGrowth
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.watch_note import RetraceCause, TracedFunction, WatchNote
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

_FEW: Final = 4
"""Repeated traces of one function that are normal: a last, smaller batch; training and inference."""

_CALLS_RATIO: Final = 0.1
"""Share of the calls above which traces are too many."""

_OBJECTS: Final = 5
"""tf.function objects of one definition from which on a loop seems to create them."""

_ROWS: Final = 20

_HINTS: Final[dict[RetraceCause, str]] = {
    "value": "Pass numbers as tensors (tf.constant(rate)) or store them in a tf.Variable.",
    "shape": "Use input_signature=[tf.TensorSpec([None, …])] or reduce_retracing=True, or pad to a few "
    "lengths.",
    "object": "Pass the same objects in each call, and values that change as tensors.",
}
"""Advice by the kind of the argument that changed."""


def find_retracing(watch: WatchNote, growth: StepGrowth) -> list[Finding]:
    """Report functions that are traced in many of their calls, or created many times."""
    findings = []
    slope = growth_words(growth)
    for one in watch.functions:
        if one.is_keras and watch.models:
            continue  # reported with the models: each model has its own functions
        repeats = one.traces - one.objects
        if one.objects >= _OBJECTS and one.traces >= _CALLS_RATIO * one.calls:
            findings.append(_created_again(one, slope))
        elif repeats > _FEW and repeats >= _CALLS_RATIO * one.calls:
            findings.append(_retraced(one, slope))
    return findings


def _retraced(one: TracedFunction, slope: str) -> Finding:
    last = one.retraces[-1].changed if one.retraces else ""
    reason = f" Last reason: {last}." if last else ""
    return Finding(
        id="retraced",
        severity=Severity.HIGH,
        title=f"TensorFlow traced `{one.name}` {one.traces} times in {one.calls} calls "
        f"({_place(one)})",
        detail=f"Each trace runs the Python code and stores a graph of {one.nodes} nodes: "
        f"{_graph_size(one)} of host memory when saved, and more in the executor.{reason} {slope} "
        f"{_HINTS[one.retraces[-1].cause if one.retraces else 'object']}",
        evidence=_rows(one),
    )


def _created_again(one: TracedFunction, slope: str) -> Finding:
    is_kept = one.alive >= _OBJECTS
    kept = f"; {one.alive} are still alive" if is_kept else ""
    holder = f", held by {one.holder}" if is_kept and one.holder else ""
    return Finding(
        id="functions-made-anew",
        severity=Severity.HIGH if is_kept else Severity.MEDIUM,
        title=f"{one.objects} tf.functions were created from `{one.name}` ({_place(one)}){kept}"
        f"{holder}",
        detail=f"Each one is traced and has its own graph ({one.nodes} nodes, {_graph_size(one)} when "
        f"saved) and its own executor. {slope} Create the tf.function once, outside the loop, and "
        "pass the values that change as tensors.",
        evidence=_rows(one),
    )


def _place(one: TracedFunction) -> str:
    call = f"called at {one.called_at}" if one.called_at else ""
    if one.is_keras:
        return call
    return ", ".join(part for part in (one.where, call) if part)


def _graph_size(one: TracedFunction) -> str:
    size = format_bytes(one.graph_bytes)
    if one.constant_bytes:
        size += f", {format_bytes(one.constant_bytes)} of it constants"
    return size


def _rows(one: TracedFunction) -> tuple[EvidenceRow, ...]:
    return (
        evidence_row(
            "defined", name=one.name, where=one.where, count=one.traces, size=one.graph_bytes
        ),
        *(
            evidence_row(f"call {retrace.call}", name=retrace.changed, where=one.called_at)
            for retrace in one.retraces[-_ROWS:]
        ),
    )
