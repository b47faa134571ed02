"""One host's trace to a row: what a process of the pool, or a worker of a cluster, is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from analyzer.explain.analysis import analyse
from analyzer.model.contract.report.run_figures import DevicePeak, HostRow
from analyzer.model.errors import AnalyzerError
from analyzer.model.recording.allocator_events import device_allocators
from analyzer.model.recording.records import Recording
from analyzer.tracing.measure.measured_recording import Measured, measure_trace


def host_row(asked: tuple[str, str]) -> HostRow:
    """Read one host's trace.

    Args:
        asked: The trace's path, and the allocator to look at, empty for those of all devices.

    Returns:
        Its row; one that says why where the trace cannot be read.
    """
    path, allocator = Path(asked[0]), asked[1]
    named = HostRow(host=host_of(path), file=path.name)
    try:
        measured = measure_trace(path, allocator=allocator)
        recording = measured.recording
        devices = tuple(_devices(measured, allocator))
    except AnalyzerError as error:
        return structs.replace(named, failed=str(error).replace(f"{path} ", "It ", 1))
    except MemoryError:
        return structs.replace(named, failed="There is not enough host memory to read it.")
    integrity = recording.integrity
    return structs.replace(
        named,
        devices=devices,
        events=len(recording.events),
        steps=len(recording.steps),
        damaged=integrity is not None and bool(integrity.damages),
    )


def host_of(path: Path) -> str:
    """Return the name of the host that wrote a trace file."""
    return path.name.split(".xplane")[0]


def _devices(measured: Measured, allocator: str) -> Iterator[DevicePeak]:
    recording = measured.recording
    names = [allocator] if allocator else device_allocators(recording.events)
    for name in names:
        of_device = replace(recording, allocator=name)
        peak = analyse(of_device).peak
        yield DevicePeak(
            allocator=name,
            requested_bytes=peak.requested_bytes,
            allocated_bytes=peak.allocated_bytes,
            limit_bytes=_limit_of(recording, name),
        )


def _limit_of(recording: Recording, allocator: str) -> int | None:
    events = recording.events[recording.events["allocator"] == allocator]
    last = events.iloc[-1]
    available = int(last["available_bytes"])
    return int(last["in_use_bytes"]) + available if available else None
