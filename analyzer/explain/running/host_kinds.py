"""The growth of a program's host memory by the kind of object that it keeps."""

from __future__ import annotations

from typing import Final

from analyzer.model.contract.report.subject import HostKind
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.recording.records import Recording

_LEAST_STEPS: Final = 50


def measure_host_kinds(recording: Recording, watch: WatchNote) -> tuple[HostKind, ...]:
    """Return the growth of each kind over all steps, the largest first; none below 50 steps.

    Graphs count as TensorFlow saves them, which is less than they take. Variables of models count on
    the CPU. A stage of ``tf.data`` counts with its whole buffer. The rest of the process is unknown.
    """
    steps = watch.steps
    if steps < _LEAST_STEPS:
        return ()
    traced = max(len(recording.steps), 1)
    arrays = sum(one.size_bytes for one in watch.on_host if not one.removes)
    is_cpu = recording.device.kind == "cpu"
    totals = {
        "functions": sum(one.graph_bytes * max(one.alive - 1, 0) for one in watch.functions),
        "graphs": sum(
            one.graph_bytes * max(one.traces - one.objects, 0) for one in watch.functions
        ),
        "models": sum(
            one.size_bytes * (one.alive - 1) // one.alive for one in watch.models if one.alive
        )
        * is_cpu,
        "arrays": arrays * steps // traced,
        "data pipeline": sum(
            (one.elements or 0) * (one.element_bytes or 0) for one in watch.stages
        ),
    }
    rows = [
        HostKind(kind=kind, per_step_bytes=total / steps, total_bytes=total)
        for kind, total in totals.items()
        if total
    ]
    return tuple(sorted(rows, key=lambda row: -row.total_bytes))
