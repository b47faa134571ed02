"""Open a run folder or a trace as a result, without TensorFlow.

Modules for computing are imported inside functions: opening a finished result needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from analyzer.explain.replay_settings import NOTHING_ASKED, WhatIf
from analyzer.model.contract.report_file import Kind, ReportFile
from analyzer.model.contract.report_json import REPORT_JSON, read_saved_report
from analyzer.model.contract.run_note import read_run_file
from analyzer.model.errors import TraceError
from analyzer.model.interrupts import pause_collector
from analyzer.report.result import Result
from analyzer.tracing.parse.logdir import RUN_FILE, check_note, suggest_command

if TYPE_CHECKING:
    from analyzer.explain.analysis import Analysis
    from analyzer.model.recording.records import Recording
    from analyzer.tracing.parse.run_folder import RunNote

Progress = Callable[
    [str, float], None
]  # takes the stage and the share of the work done, 0 to 1


def report_nothing(stage: str, share: float) -> None:
    """Ignore the progress."""


def open_result(
    path: Path,
    *,
    host: str = "",
    allocator: str = "",
    what_if: WhatIf = NOTHING_ASKED,
    search: bool = True,
    progress: Progress = report_nothing,
) -> Result:
    """Open the trace of one host or an estimate, or raise a TraceError.

    Args:
        host: The start of the trace file's name; empty for the first.
        allocator: Empty for the device's own.
        search: Whether to find the least memory limit, which takes seconds for a long trace.
    """
    if is_estimate(path):
        return open_estimate(path, what_if=what_if, search=search, progress=progress)

    def measure() -> Analysis:
        from analyzer.tracing.measure.measured_recording import open_measured

        measured = open_measured(
            path,
            host=host,
            allocator=allocator,
            progress=lambda share: progress("reading the trace", share),
        )
        progress(_last_stage(search), 1.0)

        return explain(measured, what_if, search=search)

    is_plain = not (host or allocator or what_if.is_asked)
    return _open(path, measure, is_plain=is_plain)


def _last_stage(search: bool) -> str:
    return "searching the least memory limit" if search else "explaining"


def is_estimate(path: Path) -> bool:
    """Return whether ``path`` is the folder of an estimate."""
    file = path / RUN_FILE
    return file.is_file() and read_run_file(file).is_estimate


def open_estimate(
    path: Path,
    *,
    what_if: WhatIf = NOTHING_ASKED,
    search: bool = True,
    progress: Progress = report_nothing,
) -> Result:
    """Open the folder of an estimate, or raise a TraceError.

    The report is the saved one, unless a question is asked, another version saved it, or a file has
    changed. Then the step is predicted again.
    """
    _check_estimate(path)

    def predict() -> Analysis:
        from analyzer.tracing.parse.run_folder import read_run

        note = read_run(path / RUN_FILE)
        return analyse_step(
            note, path, what_if=what_if, search=search, progress=progress
        )

    return _open(path, predict, is_plain=not what_if.is_asked)


def _check_estimate(path: Path) -> None:
    """Raise a TraceError if ``path`` is no folder of an estimate."""
    file = path / RUN_FILE
    note = read_run_file(file) if file.is_file() else None

    if note is None or not (note.is_estimate or note.simulated_card):
        check_note(path)
        hint = suggest_command(path) or "Open a trace with `analyze trace`."
        raise TraceError(
            f"{path} holds neither an estimate nor a SavedModel.", hint=hint
        )


def _open(path: Path, analyse: Callable[[], Analysis], *, is_plain: bool) -> Result:
    """Return the saved report of a folder if it is ``is_plain``, or analyse its step again."""
    saved, reason = read_saved_report(path) if is_plain else (None, "")
    if saved is not None:
        return Result(cache(lambda: _check_peak(analyse(), saved, path)), saved, path)

    from analyzer.report.document import build_document

    analysis = analyse()
    report = build_document(analysis)

    if reason and report.kind is Kind.ESTIMATE:
        message = f"Predicted again: {reason}; {REPORT_JSON} in the folder may differ."
        report = structs.replace(report, notes=(message, *report.notes))

    return Result.of(analysis, report, path if path.is_dir() else None)


def _check_peak(analysis: Analysis, saved: ReportFile, path: Path) -> Analysis:
    """Return an analysis, or raise a TraceError if its peak is not that of the saved report."""
    found = analysis.peak
    sizes = found.requested_bytes, found.allocated_bytes

    if sizes != (saved.peak.requested_bytes, saved.peak.allocated_bytes):
        raise TraceError(
            f"{path} was estimated with other settings.",
            hint="Run `analyze estimate` for the target again, with all its options.",
        )

    return analysis


@pause_collector()
def analyse_step(
    note: RunNote,
    folder: Path,
    *,
    what_if: WhatIf = NOTHING_ASKED,
    search: bool = True,
    progress: Progress = report_nothing,
) -> Analysis:
    """Explain the capture of an estimate: the recorded run on a simulated card, or a prediction.

    A TraceError says that the note has no graph.
    """
    if not note.is_estimate:
        from analyzer.tracing.measure.measured_recording import open_measured

        card = note.simulated_card

        has_limit = card is not None and card.memory_limit_bytes
        if card is not None and has_limit and not card.is_unlimited:
            what_if = replace(what_if, memory_limit_bytes=None)  # it ran with it

        return explain(open_measured(folder), what_if, search=search)

    from analyzer.simulate.predict.predicted_recording import predict_note

    predicted = predict_note(
        note,
        # they apply to the card itself: they decide which chunk fits best
        limit_bytes=what_if.memory_limit_bytes,
        growth=bool(what_if.growth),
        search=search,
        progress=lambda share: progress("predicting", 0.8 * share),
    )
    progress(_last_stage(search), 0.9)

    return explain(predicted, what_if, search=search)


def explain(recording: Recording, what_if: WhatIf, *, search: bool) -> Analysis:
    """Compute peak, pool and findings of a recording; ``search`` also finds the least limit."""
    from analyzer.explain.all_findings import collect
    from analyzer.explain.analysis import analyse
    from analyzer.explain.buffer_words import with_uses
    from analyzer.explain.pool_facts import add_pool
    from analyzer.explain.running.step_differences import describe_uncounted_batch
    from analyzer.explain.trace_integrity import check_peak
    from analyzer.explain.verdict import judge

    analysis = analyse(recording)
    check_peak(analysis)
    alive = with_uses(analysis.alive, recording, analysis.step)
    analysis = add_pool(replace(analysis, alive=alive), what_if, search=search)
    if recording.kind is Kind.SIMULATED_CARD:
        from analyzer.explain.run_range import with_run_range

        analysis = with_run_range(analysis, search=search)

    recording = analysis.recording
    notes = (*recording.notes, *describe_uncounted_batch(analysis))
    analysis = replace(analysis, recording=replace(recording, notes=notes))

    return collect(judge(analysis, what_if.memory_limit_bytes))
