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
from analyzer.model.contract.report_file import Kind
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
    is_plain = not (host or allocator or what_if.is_asked)

    if is_estimate(path):
        if is_plain:
            return open_finished(path, progress=progress)
        return open_estimate(path, what_if=what_if, search=search, progress=progress)

    def measure() -> Result:
        from analyzer.tracing.measure.measured_recording import open_measured

        measured = open_measured(
            path,
            host=host,
            allocator=allocator,
            progress=lambda share: progress("reading the trace", share),
        )
        progress(_last_stage(search), 1.0)

        return make_result(measured, path, what_if, search=search)

    saved, _ = read_saved_report(path) if is_plain else (None, "")
    if saved is not None and saved.kind is not Kind.ESTIMATE:
        return Result(cache(lambda: measure().analysis), saved, path)

    return measure()


def _last_stage(search: bool) -> str:
    return "searching the least memory limit" if search else "explaining"


def make_result(
    recording: Recording,
    path: Path,
    what_if: WhatIf = NOTHING_ASKED,
    *,
    search: bool = True,
) -> Result:
    """Explain a measured trace and return its result."""
    from analyzer.report.document import build_document

    analysis = explain(recording, what_if, search=search)
    report = build_document(analysis)

    return Result.of(analysis, report, path if path.is_dir() else None)


def is_estimate(path: Path) -> bool:
    """Return whether ``path`` is the folder of an estimate."""
    file = path / RUN_FILE
    return file.is_file() and read_run_file(file).is_estimate


def open_finished(path: Path, *, progress: Progress = report_nothing) -> Result:
    """Open a finished estimate as it was saved, or raise a TraceError.

    If another version saved it or a file has changed, it is predicted again and a note says so.
    """
    saved, reason = read_saved_report(path)
    if saved is not None and saved.kind is Kind.SIMULATED_CARD:
        return open_result(path, progress=progress)

    if saved is not None and saved.kind is Kind.ESTIMATE:

        def predict_again() -> Analysis:
            analysis, peak = open_estimate(path).analysis, saved.peak

            found = analysis.peak.requested_bytes, analysis.peak.allocated_bytes
            if found != (peak.requested_bytes, peak.allocated_bytes):
                hint = (
                    "Run `analyze estimate` for the target again, with all its options."
                )
                raise TraceError(
                    f"{path} was estimated with other settings.", hint=hint
                )

            return analysis

        return Result(cache(predict_again), saved, path)

    result = open_estimate(path, progress=progress)
    if not reason:
        return result

    message = f"Predicted again: {reason}; {REPORT_JSON} in the folder may differ."

    notes = (message, *result.report.notes)
    return replace(result, report=structs.replace(result.report, notes=notes))


def open_estimate(
    path: Path,
    *,
    what_if: WhatIf = NOTHING_ASKED,
    search: bool = True,
    progress: Progress = report_nothing,
) -> Result:
    """Predict again from the folder of an estimate, or raise a TraceError."""
    from analyzer.report.document import build_document
    from analyzer.tracing.parse.run_folder import read_run

    file = path / RUN_FILE
    note = read_run(file) if file.is_file() else None

    if note is None or not (note.is_estimate or note.simulated_card):
        check_note(path)
        hint = suggest_command(path) or "Open a trace with `analyze trace`."
        raise TraceError(
            f"{path} holds neither an estimate nor a SavedModel.", hint=hint
        )

    analysis = analyse_step(
        note, path, what_if=what_if, search=search, progress=progress
    )
    return Result.of(analysis, build_document(analysis), path)


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
    from analyzer.explain.buffer_uses import with_uses
    from analyzer.explain.pool_facts import add_pool
    from analyzer.explain.run_range import with_run_range
    from analyzer.explain.running.step_differences import describe_differences
    from analyzer.explain.trace_integrity import check_peak
    from analyzer.explain.verdict import judge

    analysis = analyse(recording)
    check_peak(analysis)
    alive = with_uses(analysis.alive, recording, analysis.step)
    analysis = add_pool(replace(analysis, alive=alive), what_if, search=search)
    analysis = with_run_range(analysis, search=search)
    recording = analysis.recording
    notes = (*recording.notes, *describe_differences(analysis))
    analysis = replace(analysis, recording=replace(recording, notes=notes))

    return collect(judge(analysis, what_if.memory_limit_bytes))
