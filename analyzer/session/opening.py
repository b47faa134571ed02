"""Open a run folder or a trace as a result, without TensorFlow.

Each of several hosts is read alone, and the worst one is explained. Modules for computing are imported
inside functions: opening a finished result needs none of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as replace_fields

from analyzer.model.contract.child_messages import (
    NOTHING_ASKED,
    WhatIf,
)
from analyzer.model.contract.report_file import (
    REPORT_JSON,
    HostRow,
    Kind,
    ReportFile,
    read_saved_report,
)
from analyzer.model.contract.run_note import read_run_file
from analyzer.model.errors import AnalyzerError, TraceError
from analyzer.model.interrupts import pause_collector
from analyzer.model.progress import report_stage
from analyzer.report.result import Result
from analyzer.tracing.parse.run_folder import (
    RUN_FILE,
    check_note,
    find_traces,
    suggest_command,
)

if TYPE_CHECKING:
    from analyzer.explain.analysis import Analysis
    from analyzer.model.recording.records import Recording


def open_result(
    path: Path,
    *,
    host: str = "",
    allocator: str = "",
    what_if: WhatIf = NOTHING_ASKED,
    search: bool = True,
) -> Result:
    """Open the trace of one host or an estimate, or raise a TraceError.

    The report is the saved one, unless a question is asked, another version saved it, or a file has
    changed. Then the step is explained again.

    Args:
        host: The start of the trace file's name; empty for the first.
        allocator: Empty for the device's own.
        search: Whether to find the least memory limit, which takes seconds for a long trace.
    """
    is_plain = not (host or allocator or what_if.is_asked)
    saved, reason = read_saved_report(path) if is_plain else (None, "")
    analyse = partial(
        analyse_path,
        path,
        host=host,
        allocator=allocator,
        what_if=what_if,
        search=search,
    )

    if saved is not None:
        return Result(cache(lambda: _check_peak(analyse(), saved, path)), saved, path)

    from analyzer.report.document import build_document

    analysis = analyse()
    report = build_document(analysis)

    if reason and report.kind is Kind.ESTIMATE:
        message = f"Predicted again: {reason}; {REPORT_JSON} in the folder may differ."
        report = replace_fields(report, notes=(message, *report.notes))

    return Result(lambda: analysis, report, path if path.is_dir() else None)


def is_estimate(path: Path) -> bool:
    """Return whether ``path`` is the folder of an estimate without a run."""
    file = path / RUN_FILE
    return file.is_file() and read_run_file(file).is_estimate


def open_estimate(path: Path, what_if: WhatIf = NOTHING_ASKED) -> Result:
    """Open the folder of an estimate, or raise a TraceError."""
    file = path / RUN_FILE
    note = read_run_file(file) if file.is_file() else None

    if note is None or not (note.is_estimate or note.simulated_card):
        check_note(path)
        hint = suggest_command(path) or "Open a trace with `analyze trace`."
        raise TraceError(
            f"{path} holds neither an estimate nor a SavedModel.",
            hint,
        )

    return open_result(path, what_if=what_if)


def _check_peak(analysis: Analysis, saved: ReportFile, path: Path) -> Analysis:
    """Return an analysis, or raise a TraceError if its peak is not that of the saved report."""
    found = analysis.peak
    sizes = found.requested_bytes, found.allocated_bytes

    if sizes != (saved.peak.requested_bytes, saved.peak.allocated_bytes):
        raise TraceError(
            f"{path} was estimated with other settings.",
            "Run `analyze estimate` for the target again, with all its options.",
        )

    return analysis


@pause_collector()
def analyse_path(
    path: Path,
    *,
    host: str = "",
    allocator: str = "",
    what_if: WhatIf = NOTHING_ASKED,
    search: bool = True,
) -> Analysis:
    """Explain a trace, or the prediction of an estimate without a run; arguments as ``open_result``."""
    if is_estimate(path):
        from analyzer.simulate.predict.predicted_recording import predict_note
        from analyzer.tracing.parse.run_folder import read_run

        recording = predict_note(
            read_run(path / RUN_FILE),
            # they apply to the card itself: they decide which chunk fits best
            limit_bytes=what_if.memory_limit_bytes,
            growth=bool(what_if.growth),
            search=search,
        )
    else:
        from analyzer.tracing.measure.measured_recording import open_measured

        recording = open_measured(path, host=host, allocator=allocator)

    report_stage("explaining")

    return explain(recording, what_if, search=search)


def explain(recording: Recording, what_if: WhatIf, *, search: bool) -> Analysis:
    """Compute peak, pool and findings of a recording; ``search`` also finds the least limit."""
    from analyzer.explain.all_findings import collect
    from analyzer.explain.analysis import analyse
    from analyzer.explain.buffer_words import with_uses
    from analyzer.explain.need import begins_with_process
    from analyzer.explain.running.step_differences import describe_uncounted_batch
    from analyzer.explain.trace_integrity import check_peak
    from analyzer.explain.verdict import judge

    analysis = analyse(recording)
    check_peak(analysis)

    # all events of a process can be replayed, or those of a trace if asked
    is_asked = what_if.is_asked or begins_with_process(recording)
    if is_asked and recording.device.kind != "tpu":
        from analyzer.explain.pool_facts import add_pool

        analysis = add_pool(analysis, what_if, search=search)

    if recording.kind is Kind.SIMULATED_CARD:
        from analyzer.explain.run_range import with_run_range

        analysis = with_run_range(analysis)

    analysis = judge(analysis, what_if.memory_limit_bytes)

    # The numbers are known; the rest finds their reasons.
    recording = analysis.recording
    notes = (*recording.notes, *describe_uncounted_batch(analysis))
    analysis = replace(
        analysis,
        recording=replace(recording, notes=notes),
        alive=with_uses(analysis.alive, recording, analysis.step),
    )

    return collect(analysis)


# traces of this size are read faster than a process starts
_SMALL_BYTES = 4 << 20
_DIED = "The process that read it died; it may be short of memory."


def open_hosts(
    path: Path,
    *,
    scheduler: str = "",
    is_parallel: bool = False,
    host: str = "",
    allocator: str = "",
    what_if: WhatIf = NOTHING_ASKED,
    search: bool = True,
) -> Result:
    """Open a trace; if it has several hosts, compare all and explain the one with the least room.

    A TraceError says that no host's trace can be read.

    Args:
        scheduler: The address of a Dask cluster that reads the traces; empty for this machine.
        is_parallel: Whether processes of this machine read them, not this one alone.
        host: Empty for all hosts.
    """
    open_one = partial(open_result, what_if=what_if, search=search)
    files = [] if host or is_estimate(path) else find_traces(path)
    if len(files) < 2:
        return open_one(path, host=host, allocator=allocator)

    report_stage("reading the hosts' traces")
    rows = read_hosts(files, allocator, scheduler, is_parallel=is_parallel)
    worst = rows[0]

    if worst.failed:
        raise TraceError(
            f"None of the {len(files)} hosts' traces can be read; {worst.host}: "
            f"{worst.failed.removesuffix('.')}.",
            "Copy the traces once more, or repeat the capture.",
        )

    file = next(one for one in files if one.name == worst.file)
    result = open_one(file, allocator=worst.allocator)
    whole = replace_fields(
        result.report,
        hosts=rows,
        target=replace_fields(result.report.target, text=str(path)),
        warnings=(*_list_warnings(rows), *result.report.warnings),
    )

    return replace(result, report=whole, folder=path if path.is_dir() else None)


def read_hosts(
    files: Sequence[Path],
    allocator: str,
    scheduler: str,
    *,
    is_parallel: bool,
) -> tuple[HostRow, ...]:
    """Return a row for each device of each trace, the one with the least room first."""
    from analyzer.model.machine import count_cores
    from analyzer.session.work_engine import run_all

    is_small = sum(file.stat().st_size for file in files) < _SMALL_BYTES

    workers = 1
    if is_parallel and not is_small:
        workers = count_cores()

    requests = [(os.path.abspath(file), allocator) for file in files]
    rows = []

    for place, found in run_all(read_host, requests, scheduler, workers):
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
    from analyzer.model.recording.records import device_allocators, find_limit
    from analyzer.tracing.measure.measured_recording import open_measured

    path = Path(request[0])
    allocator = request[1]
    try:
        recording = open_measured(path, allocator=allocator)
    except AnalyzerError as error:
        return [_make_row(path, failed=str(error).replace(f"{path} ", "It ", 1))]
    except MemoryError:
        return [_make_row(path, failed="There is not enough host memory to read it.")]

    integrity = recording.integrity
    rows = []

    for name in [allocator] if allocator else device_allocators(recording.events):
        peak = analyse(replace(recording, allocator=name)).peak
        row = _make_row(
            path,
            allocator=name,
            requested_bytes=peak.requested_bytes,
            allocated_bytes=peak.allocated_bytes,
            limit_bytes=find_limit(recording.events, name),
            damaged=integrity is not None and bool(integrity.damages),
        )

        rows.append(row)

    return rows


def _make_row(path: Path, **fields: Any) -> HostRow:
    return HostRow(host=path.name.split(".xplane")[0], file=path.name, **fields)


def _list_warnings(rows: Sequence[HostRow]) -> list[str]:
    """Return which host the figures are of, and which hosts could not be read."""
    failed = [row for row in rows if row.failed]

    count = len({row.host for row in rows}) - len(failed)
    warnings = [f"The figures are of {rows[0].host}, the worst of {count} hosts."]

    if failed:
        listed = ", ".join(row.host for row in failed[:5])
        warnings.append(
            f"Hosts that are in no figure: {listed}. {failed[0].host}: {failed[0].failed}"
        )

    return warnings
