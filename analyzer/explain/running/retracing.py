"""Functions that TensorFlow traces again and again, and graphs that are kept of each time."""

from __future__ import annotations

from typing import Final

from analyzer.explain.running.evidence_rows import evidence_row
from analyzer.explain.running.slope import growth_of
from analyzer.explain.running.staying_bytes import growth_words
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.watch_note import TracedFunction, WatchNote
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

_FEW: Final = 4
"""Traces of one function after its first that are no matter: a last, smaller batch, train and infer."""

_SHARE: Final = 0.1
"""Share of the calls from which they are."""

_OBJECTS: Final = 5
"""tf.function objects of one definition from which on they are taken to be made in a loop."""

_ROWS: Final = 20


def find_retracing(watch: WatchNote) -> list[Finding]:
    """Report functions that are traced in many of their calls, or made anew again and again."""
    found = []
    slope = growth_words(growth_of(watch.readings, watch.warmup))
    for one in watch.functions:
        if one.is_keras and watch.models:
            continue  # the models are told of, and each has its own
        again = one.traces - one.objects
        if one.objects >= _OBJECTS and one.traces >= _SHARE * one.calls:
            found.append(_made_anew(one, slope))
        elif again > _FEW and again >= _SHARE * one.calls:
            found.append(_traced_anew(one, slope))
    return found


def _traced_anew(one: TracedFunction, slope: str) -> Finding:
    last = one.retraces[-1].changed if one.retraces else ""
    why = f" Last time: {last}." if last else ""
    hint = (
        "Pass numbers as tensors (tf.constant(rate)) or keep them in a tf.Variable; give open "
        "axes with input_signature=[tf.TensorSpec([None, …])] or reduce_retracing=True, or pad "
        "to a few lengths."
    )
    return Finding(
        id="retraced",
        severity=Severity.HIGH,
        title=f"`{one.name}` was traced {one.traces} times in {one.calls} calls ({_place(one)})",
        detail=f"Each time TensorFlow runs the Python code, makes a graph of {one.nodes} nodes "
        f"and keeps it: {_kept(one)} of host memory as it would be saved, and more in the "
        f"executor.{why} {slope} {hint}",
        evidence=_rows(one),
    )


def _made_anew(one: TracedFunction, slope: str) -> Finding:
    kept = one.alive >= _OBJECTS
    held = f", {one.alive} of them kept" if kept else ""
    by = f" by {one.holder}" if kept and one.holder else ""
    return Finding(
        id="functions-made-anew",
        severity=Severity.HIGH if kept else Severity.MEDIUM,
        title=f"{one.objects} tf.functions were made of `{one.name}` ({_place(one)}){held}{by}",
        detail=f"Each is traced and has a graph of its own ({one.nodes} nodes, {_kept(one)} as "
        f"it would be saved), and the executor's beside it. {slope} Make the tf.function once, "
        "outside the loop, and pass what differs as a tensor.",
        evidence=_rows(one),
    )


def _place(one: TracedFunction) -> str:
    called = f"called at {one.called_at}" if one.called_at else ""
    if one.is_keras:
        return called
    return ", ".join(part for part in (one.where, called) if part)


def _kept(one: TracedFunction) -> str:
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
