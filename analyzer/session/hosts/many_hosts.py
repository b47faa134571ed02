"""All hosts of a run to one report: each read by itself, compared, the worst of them explained."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from msgspec import structs

from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.report.run_figures import (
    DevicePeak,
    DevicePlace,
    HostRow,
    HostsFigures,
)
from analyzer.model.errors import TraceError
from analyzer.model.units import times
from analyzer.report.result import Result
from analyzer.session.engines.work import WorkEngine
from analyzer.session.opening import is_estimate, open_result
from analyzer.tracing.parse.logdir import find_traces

_FAR_DEVIATIONS: Final = 3 * 1.4826
"""Median absolute deviations beyond which a device is an outlier: three standard deviations, where the
spread is normal."""

_FAR_SHARE: Final = 0.01
"""What differs by less than this share of the median is no outlier, however narrow the spread."""

_SMALL_BYTES: Final = 4 << 20
"""Traces of so many bytes together are read sooner than a process is started."""

_WORKER_BYTES: Final = 400 << 20
_BYTES_PER_BYTE: Final = 2
"""What reading takes: a process with its libraries, and twice the trace (measured on traces of 200 MiB
and 2 GiB)."""


def open_hosts(
    path: Path,
    *,
    allocator: str = "",
    what_if: WhatIf | None = None,
    search: bool = True,
    engine: WorkEngine | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Result:
    """Read and explain the run at ``path``; of several hosts, compare all and explain the worst.

    Args:
        path: A trace file, a run folder or a logdir.
        allocator: The allocator to look at; empty for the devices' own.
        what_if: Settings of the allocator to replay under.
        search: Search the minimum limit too.
        engine: Where the hosts' traces are read; None for this process.
        progress: Called with the stage and the share done, 0 to 1.

    Raises:
        TraceError: no host's trace can be read.
        InputError: no scheduler answers.
    """
    files = [] if is_estimate(path) else find_traces(path)
    if len(files) < 2:
        return open_result(
            path, allocator=allocator, what_if=what_if, search=search, progress=progress
        )
    report = progress or (lambda stage, share: None)
    rows = read_hosts(
        files, allocator, engine or WorkEngine(), lambda share: report(_READ, 0.8 * share)
    )
    figures = compared(rows)
    worst = next(row for row in rows if row.host == figures.worst.host and row.devices)
    result = open_result(
        next(file for file in files if file.name == worst.file),
        allocator=figures.worst.allocator,
        what_if=what_if,
        search=search,
        progress=lambda stage, share: report(stage, 0.8 + 0.2 * share),
    )
    target = structs.replace(result.report.target, text=str(path))
    read = sum(not row.failed for row in rows)
    which = "" if read == len(rows) else f" that could be read, of {len(rows)}"
    about = f"The figures are of {worst.host}, the worst of {read} hosts{which}."
    warnings = (about, *result.report.warnings, *_unread(rows))
    whole = structs.replace(result.report, hosts=figures, target=target, warnings=warnings)
    return replace(result, report=whole, folder=path if path.is_dir() else None)


_READ: Final = "reading the hosts' traces"


def read_hosts(
    files: Sequence[Path], allocator: str, engine: WorkEngine, progress: Callable[[float], None]
) -> tuple[HostRow, ...]:
    """Return a row for each trace, in the order of ``files``, wherever they were read.

    Args:
        files: The traces.
        allocator: The allocator to look at; empty for the devices' own.
        engine: Where they are read.
        progress: Called with the share done, 0 to 1.

    Raises:
        InputError: no scheduler answers.
    """
    from analyzer.session.hosts.host_row import host_of, host_row

    asked = [(os.path.abspath(file), allocator) for file in files]
    rows: dict[int, HostRow] = {}
    for place, row in _fitting(engine, files).run(host_row, asked):
        rows[place] = row or HostRow(
            host=host_of(files[place]),
            file=files[place].name,
            failed="The process that read it died, each time; it may be short of memory.",
        )
        progress(len(rows) / len(files))
    return tuple(rows[place] for place in range(len(files)))


def _fitting(engine: WorkEngine, files: Sequence[Path]) -> WorkEngine:
    """Return an engine with as many processes as the traces are worth and the memory holds."""
    sizes = sorted((file.stat().st_size for file in files), reverse=True)
    if engine.scheduler or engine.workers < 2 or sum(sizes) < _SMALL_BYTES:
        return engine if engine.scheduler else WorkEngine()
    free = _free_bytes()
    workers, needed = 0, 0
    for size in sizes[: engine.workers]:
        needed += _WORKER_BYTES + _BYTES_PER_BYTE * size
        workers += needed <= free or not workers
    return WorkEngine(workers=workers)


def _free_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 1 << 62


def compared(rows: Sequence[HostRow]) -> HostsFigures:
    """Return the hosts beside each other.

    Args:
        rows: One for each host.

    Raises:
        TraceError: none of them could be read.
    """
    devices = [(row.host, device) for row in rows for device in row.devices]
    if not devices:
        raise TraceError(
            f"None of the {len(rows)} hosts' traces can be read; of {rows[0].host}: "
            f"{rows[0].failed.removesuffix('.')}.",
            hint="Copy them again or retrace.",
        )
    sizes = sorted(device.allocated_bytes for _, device in devices)
    middle = int(median(sizes))
    deviation = median(abs(size - middle) for size in sizes)
    far = max(_FAR_DEVIATIONS * deviation, _FAR_SHARE * middle)
    places = [_place(host, device, middle) for host, device in devices]
    outliers = [place for place in places if abs(place.differs_bytes) > far]
    return HostsFigures(
        worst=_place(*_worst(devices), middle),
        devices=len(devices),
        least_bytes=sizes[0],
        median_bytes=middle,
        most_bytes=sizes[-1],
        outliers=tuple(sorted(outliers, key=lambda place: -abs(place.differs_bytes))),
        rows=tuple(rows),
    )


def _place(host: str, device: DevicePeak, middle: int) -> DevicePlace:
    return DevicePlace(
        host=host,
        allocator=device.allocator,
        allocated_bytes=device.allocated_bytes,
        differs_bytes=device.allocated_bytes - middle,
    )


def _worst(devices: Sequence[tuple[str, DevicePeak]]) -> tuple[str, DevicePeak]:
    """Return the device with the least room; where a limit is not known, the one that holds most."""
    if all(device.limit_bytes is not None for _, device in devices):
        return min(devices, key=lambda one: (one[1].limit_bytes or 0) - one[1].allocated_bytes)
    return max(devices, key=lambda one: one[1].allocated_bytes)


def _unread(rows: Sequence[HostRow]) -> list[str]:
    """Return what to say of the hosts whose traces are missing in the figures, or damaged."""
    said = []
    failed = [row for row in rows if row.failed]
    if failed:
        said.append(
            f"The traces of {len(failed)} of {len(rows)} hosts cannot be read and are in no figure: "
            f"{_names(failed)}. {failed[0].host}: {failed[0].failed}"
        )
    damaged = [row for row in rows if row.damaged]
    if damaged:
        said.append(f"Hosts whose traces are damaged: {_names(damaged)} ({times(len(damaged))}).")
    return said


def _names(rows: Sequence[HostRow]) -> str:
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return ", ".join(row.host for row in rows[:5]) + more
