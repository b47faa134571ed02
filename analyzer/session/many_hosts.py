"""Open a trace of one or many hosts: each host is read alone, and the worst one is explained."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import structs

from analyzer.explain.replay_settings import NOTHING_ASKED, WhatIf
from analyzer.model.contract.report_file import HostRow
from analyzer.model.errors import AnalyzerError, TraceError
from analyzer.report.result import Result
from analyzer.session.opening import Progress, is_estimate, open_result, report_nothing
from analyzer.session.work_engine import WorkEngine
from analyzer.tracing.parse.logdir import find_traces

_SMALL_BYTES: Final = (
    4 << 20
)  # traces of this size are read faster than a process starts
_DIED: Final = "The process that read it died; it may be short of memory."


def open_hosts(
    path: Path,
    *,
    engine: WorkEngine | None = None,
    host: str = "",
    allocator: str = "",
    what_if: WhatIf = NOTHING_ASKED,
    search: bool = True,
    progress: Progress = report_nothing,
) -> Result:
    """Open a trace; if it has several hosts, compare all and explain the one with the least room.

    Without ``engine`` this process reads the traces. An empty ``host`` stands for all. A TraceError
    says that no host's trace can be read.
    """
    open_one = partial(open_result, what_if=what_if, search=search, progress=progress)
    files = [] if host or is_estimate(path) else find_traces(path)
    if len(files) < 2:
        return open_one(path, host=host, allocator=allocator)

    progress("reading the hosts' traces", 0.0)
    rows = read_hosts(files, allocator, engine or WorkEngine())
    worst = rows[0]

    if worst.failed:
        raise TraceError(
            f"None of the {len(files)} hosts' traces can be read; {worst.host}: "
            f"{worst.failed.removesuffix('.')}.",
            hint="Copy the traces once more, or repeat the capture.",
        )

    file = next(one for one in files if one.name == worst.file)
    result = open_one(file, allocator=worst.allocator)
    whole = structs.replace(
        result.report,
        hosts=rows,
        target=structs.replace(result.report.target, text=str(path)),
        warnings=(*_list_warnings(rows), *result.report.warnings),
    )

    return replace(result, report=whole, folder=path if path.is_dir() else None)


def read_hosts(
    files: Sequence[Path], allocator: str, engine: WorkEngine
) -> tuple[HostRow, ...]:
    """Return a row for each device of each trace, the one with the least room first."""
    if sum(file.stat().st_size for file in files) < _SMALL_BYTES:
        engine = replace(engine, workers=1)

    requests = [(os.path.abspath(file), allocator) for file in files]
    rows: list[HostRow] = []

    for place, found in engine.run(read_host, requests):
        rows += [_make_row(files[place], failed=_DIED)] if found is None else found

    are_limits_known = all(row.limit_bytes for row in rows if not row.failed)

    def order(row: HostRow) -> tuple[bool, int, str]:
        limit_bytes = row.limit_bytes if are_limits_known else 0

        over_bytes = (row.allocated_bytes or 0) - (limit_bytes or 0)
        return bool(row.failed), -over_bytes, row.host

    return tuple(sorted(rows, key=order))


def read_host(request: tuple[str, str]) -> list[HostRow]:
    """Return a row for each device of a trace (path, allocator), or why it cannot be read.

    Runs in a worker.
    """
    from analyzer.explain.analysis import analyse
    from analyzer.model.recording.timeline import device_allocators
    from analyzer.tracing.measure.measured_recording import open_measured

    path, allocator = Path(request[0]), request[1]
    try:
        recording = open_measured(path, allocator=allocator)
    except AnalyzerError as error:
        return [_make_row(path, failed=str(error).replace(f"{path} ", "It ", 1))]
    except MemoryError:
        return [_make_row(path, failed="There is not enough host memory to read it.")]

    integrity = recording.integrity
    is_damaged = integrity is not None and bool(integrity.damages)
    rows = []

    for name in [allocator] if allocator else device_allocators(recording.events):
        peak = analyse(replace(recording, allocator=name)).peak
        last = recording.events[recording.events["allocator"] == name].iloc[-1]
        available = int(last["available_bytes"])
        row = _make_row(
            path,
            allocator=name,
            requested_bytes=peak.requested_bytes,
            allocated_bytes=peak.allocated_bytes,
            limit_bytes=int(last["in_use_bytes"]) + available if available else None,
            damaged=is_damaged,
        )
        rows.append(row)

    return rows


def _make_row(path: Path, **fields: object) -> HostRow:
    row = HostRow(host=path.name.split(".xplane")[0], file=path.name)
    return structs.replace(row, **fields)


def _list_warnings(rows: Sequence[HostRow]) -> list[str]:
    """Return which host the figures are of, and which hosts could not be read."""
    names = {row.host for row in rows}
    failed = [row for row in rows if row.failed]
    of_all = f" that could be read, of {len(names)}" if failed else ""
    count = len(names) - len(failed)
    warnings = [
        f"The figures are of {rows[0].host}, the worst of {count} hosts{of_all}."
    ]

    if failed:
        listed = ", ".join(row.host for row in failed[:5])
        warnings.append(
            f"Hosts that are in no figure: {listed}. {failed[0].host}: {failed[0].failed}"
        )

    return warnings
