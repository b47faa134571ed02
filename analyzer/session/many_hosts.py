"""Open a trace of one or many hosts: each host is read alone, all are compared, the worst explained."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from msgspec import structs

from analyzer.model.contract.report_file import (
    DevicePeak,
    DevicePlace,
    HostRow,
    HostsFigures,
)
from analyzer.model.errors import AnalyzerError, TraceError
from analyzer.model.units import times
from analyzer.report.result import Result
from analyzer.session.opening import OpenOptions, is_estimate, open_result
from analyzer.session.work_engine import WorkEngine
from analyzer.tracing.parse.logdir import find_traces

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from analyzer.model.recording.records import Recording

_OUTLIER_DEVIATIONS: Final = 3 * 1.4826
"""Median absolute deviations of an outlier: three standard deviations of a normal distribution."""
_OUTLIER_SHARE: Final = (
    0.01  # of the median; a smaller difference from it is never an outlier
)

_SMALL_BYTES: Final = (
    4 << 20
)  # traces of this size are read faster than a process starts
_MOST_NAMES: Final = 5  # hosts in one warning


def open_hosts(
    path: Path, *, engine: WorkEngine | None = None, **options: Unpack[OpenOptions]
) -> Result:
    """Open a trace; if it has several hosts, compare all and explain the one with the least room.

    Without ``engine`` this process reads the traces. An empty ``host`` stands for all. A TraceError
    says that no host's trace can be read.
    """
    files = [] if options.get("host") or is_estimate(path) else find_traces(path)
    if len(files) < 2:
        return open_result(path, **options)

    report = options.get("progress") or (lambda stage, share: None)
    rows = read_hosts(
        files,
        options.get("allocator", ""),
        engine or WorkEngine(),
        lambda share: report("reading the hosts' traces", 0.8 * share),
    )
    figures = compare_hosts(rows)
    worst = next(row for row in rows if row.host == figures.worst.host and row.devices)
    options["allocator"] = figures.worst.allocator
    options["progress"] = lambda stage, share: report(stage, 0.8 + 0.2 * share)
    result = open_result(
        next(one for one in files if one.name == worst.file), **options
    )
    whole = structs.replace(
        result.report,
        hosts=figures,
        target=structs.replace(result.report.target, text=str(path)),
        warnings=(*_list_warnings(worst, rows), *result.report.warnings),
    )

    return replace(result, report=whole, folder=path if path.is_dir() else None)


def read_hosts(
    files: Sequence[Path],
    allocator: str,
    engine: WorkEngine,
    progress: Callable[[float], None],
) -> tuple[HostRow, ...]:
    """Return a row for each trace, in the order of ``files``."""
    if sum(file.stat().st_size for file in files) < _SMALL_BYTES:
        engine = replace(engine, workers=1)

    requests = [(os.path.abspath(file), allocator) for file in files]
    rows: dict[int, HostRow] = {}

    for place, row in engine.run(host_row, requests):
        rows[place] = row or HostRow(
            host=_host_of(files[place]),
            file=files[place].name,
            failed="The process that read it died each time; it may be short of memory.",
        )
        progress(len(rows) / len(files))

    return tuple(rows[place] for place in range(len(files)))


def host_row(request: tuple[str, str]) -> HostRow:
    """Return the row of a trace (path, allocator), or why it cannot be read. Runs in a worker."""
    from analyzer.model.recording.timeline import device_allocators
    from analyzer.tracing.measure.measured_recording import (
        open_measured,  # imports pandas
    )

    path, allocator = Path(request[0]), request[1]
    row = HostRow(host=_host_of(path), file=path.name)

    try:
        recording = open_measured(path, allocator=allocator).recording
        names = [allocator] if allocator else device_allocators(recording.events)
        devices = tuple(_device_peak(recording, name) for name in names)
    except AnalyzerError as error:
        return structs.replace(row, failed=str(error).replace(f"{path} ", "It ", 1))
    except MemoryError:
        return structs.replace(
            row, failed="There is not enough host memory to read it."
        )

    integrity = recording.integrity
    return structs.replace(
        row,
        devices=devices,
        events=len(recording.events),
        steps=len(recording.steps),
        damaged=integrity is not None and bool(integrity.damages),
    )


def _host_of(path: Path) -> str:
    return path.name.split(".xplane")[0]


def _device_peak(recording: Recording, allocator: str) -> DevicePeak:
    from analyzer.explain.analysis import analyse

    peak = analyse(replace(recording, allocator=allocator)).peak
    last = recording.events[recording.events["allocator"] == allocator].iloc[-1]
    available = int(last["available_bytes"])

    return DevicePeak(
        allocator=allocator,
        requested_bytes=peak.requested_bytes,
        allocated_bytes=peak.allocated_bytes,
        limit_bytes=int(last["in_use_bytes"]) + available if available else None,
    )


def compare_hosts(rows: Sequence[HostRow]) -> HostsFigures:
    """Compare the hosts: the worst device (least room, else largest peak), spread and outliers."""
    devices = [device for row in rows for device in row.devices]
    if not devices:
        raise TraceError(
            f"None of the {len(rows)} hosts' traces can be read; {rows[0].host}: "
            f"{rows[0].failed.removesuffix('.')}.",
            hint="Copy the traces once more, or repeat the capture.",
        )

    sizes = sorted(device.allocated_bytes for device in devices)
    middle = int(median(sizes))
    deviation = median(abs(size - middle) for size in sizes)
    least = max(_OUTLIER_DEVIATIONS * deviation, _OUTLIER_SHARE * middle)
    places = []
    for row in rows:
        for device in row.devices:
            place = DevicePlace(
                host=row.host,
                allocator=device.allocator,
                allocated_bytes=device.allocated_bytes,
                differs_bytes=device.allocated_bytes - middle,
            )
            places.append(place)

    limits = [device.limit_bytes for device in devices]
    if None in limits:
        limits = [0] * len(devices)

    over = []
    for device, limit_bytes in zip(devices, limits, strict=True):
        over.append(device.allocated_bytes - (limit_bytes or 0))

    outliers = [place for place in places if abs(place.differs_bytes) > least]

    return HostsFigures(
        worst=places[over.index(max(over))],
        devices=len(devices),
        least_bytes=sizes[0],
        median_bytes=middle,
        most_bytes=sizes[-1],
        outliers=tuple(sorted(outliers, key=lambda place: -abs(place.differs_bytes))),
        rows=tuple(rows),
    )


def _list_warnings(worst: HostRow, rows: Sequence[HostRow]) -> list[str]:
    """Return which host the figures are of, and warnings about unreadable or incomplete traces."""
    failed = [row for row in rows if row.failed]
    damaged = [row for row in rows if row.damaged]
    of_all = f" that could be read, of {len(rows)}" if failed else ""
    count = len(rows) - len(failed)
    warnings = [f"The figures are of {worst.host}, the worst of {count} hosts{of_all}."]

    if failed:
        warnings.append(
            f"The traces of {len(failed)} of {len(rows)} hosts cannot be read and are in no figure: "
            f"{_names(failed)}. {failed[0].host}: {failed[0].failed}"
        )

    if damaged:
        warnings.append(
            f"Hosts with incomplete traces: {_names(damaged)} ({times(len(damaged))})."
        )

    return warnings


def _names(rows: Sequence[HostRow]) -> str:
    more = f" and {len(rows) - _MOST_NAMES} more" if len(rows) > _MOST_NAMES else ""
    return ", ".join(row.host for row in rows[:_MOST_NAMES]) + more
