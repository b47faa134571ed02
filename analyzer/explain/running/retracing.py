"""Functions that TensorFlow traces many times, and their graphs that stay in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from analyzer.explain.buffer_words import evidence_row
from analyzer.explain.running.leaks import growth_words
from analyzer.model.contract.report.subject import TrendFigures
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


def find_retracing(watch: WatchNote, growth: TrendFigures) -> Iterator[Finding]:
    """Report functions that are traced in many of their calls, or created many times."""
    for one in watch.functions:
        if one.is_keras and watch.models:
            continue  # reported with the models: each model has its own functions
        repeats = one.traces - one.objects
        if one.objects >= _OBJECTS and one.traces >= _CALLS_RATIO * one.calls:
            yield _report(one, growth_words(growth), is_created=True)
        elif repeats > _FEW and repeats >= _CALLS_RATIO * one.calls:
            yield _report(one, growth_words(growth), is_created=False)


def _report(one: TracedFunction, slope: str, *, is_created: bool) -> Finding:
    size = format_bytes(one.graph_bytes)
    if one.constant_bytes:
        size += f", {format_bytes(one.constant_bytes)} of it constants"
    call = f"called at {one.called_at}" if one.called_at else ""
    place = ", ".join(part for part in ("" if one.is_keras else one.where, call) if part)
    is_kept = one.alive >= _OBJECTS or not is_created
    if is_created:
        holder = f", held by {one.holder}" if one.holder else ""
        kept = f"; {one.alive} are still alive{holder}" if is_kept else ""
        title = f"{one.objects} tf.functions were created from `{one.name}` ({place}){kept}"
        detail = (
            f"Each one is traced and has its own graph ({one.nodes} nodes, {size} when saved) and its "
            f"own executor. {slope} Create the tf.function once, outside the loop, and pass the values "
            "that change as tensors."
        )
    else:
        title = f"TensorFlow traced `{one.name}` {one.traces} times in {one.calls} calls ({place})"
        last = one.retraces[-1] if one.retraces else None
        reason = f" Last reason: {last.changed}." if last is not None and last.changed else ""
        detail = (
            f"Each trace runs the Python code and stores a graph of {one.nodes} nodes: {size} of host "
            f"memory when saved, and more in the executor.{reason} {slope} "
            f"{_HINTS['object' if last is None else last.cause]}"
        )
    return Finding(
        id="functions-made-anew" if is_created else "retraced",
        severity=Severity.HIGH if is_kept else Severity.MEDIUM,
        title=title,
        detail=detail,
        evidence=(
            evidence_row(
                "defined", name=one.name, where=one.where, count=one.traces, size=one.graph_bytes
            ),
            *(
                evidence_row(f"call {retrace.call}", name=retrace.changed, where=one.called_at)
                for retrace in one.retraces[-_ROWS:]
            ),
        ),
    )
