"""Capture or estimate a target, explain it, and save the result in its run folder."""

from dataclasses import replace
from pathlib import Path

from analyzer.capture.process.launch import capture
from analyzer.capture.process.run_folders import remove_run
from analyzer.capture.targets.target_spec import check_steps
from analyzer.capture.watch.script_launch import ScriptEnd, ScriptView, run_script
from analyzer.model.contract import report_json
from analyzer.model.contract.capture_request import (
    NOTHING_ASKED,
    CaptureOptions,
    TargetSpec,
    WatchRequest,
    WhatIf,
)
from analyzer.model.contract.report_file import Kind
from analyzer.model.contract.run_note import read_run_file
from analyzer.model.errors import TraceError
from analyzer.model.interrupts import ignore_repetition
from analyzer.model.machine import create_cache_folder
from analyzer.model.progress import report_stage
from analyzer.report.output_files import write_text
from analyzer.report.result import Result
from analyzer.session.estimate_captures import capture_target
from analyzer.session.opening import open_estimate, open_result
from analyzer.tracing.parse.logdir import RUN_FILE


def trace_target(
    spec: TargetSpec,
    options: CaptureOptions,
    out: Path,
    *,
    force: bool,
    save: bool = True,
    what_if: WhatIf = NOTHING_ASKED,
) -> Result:
    """Trace a target's step in a child process and explain it.

    ``force`` replaces an earlier run in ``out``. ``save`` writes the report into it; a temporary folder
    needs none. A StepOutOfMemory says that the system killed the step's process.
    """
    folder = capture(spec, options, out, force=force)
    result = open_result(folder, what_if=what_if)

    if save:
        report_stage("writing the report")
        save_report(result, folder)

    return result


def trace_script(
    request: WatchRequest,
    out: Path,
    *,
    force: bool = False,
    what_if: WhatIf = NOTHING_ASKED,
    view: ScriptView | None = None,
) -> tuple[ScriptEnd, Result | None]:
    """Run a script in this terminal; return its end, and the result of a few traced steps, if any."""
    end = run_script(request, out, force=force, view=view)
    if end.folder is None:
        return end, None

    with ignore_repetition(end.interrupted_s):
        try:
            result = open_result(end.folder, what_if=what_if)
        except TraceError as error:
            note = read_run_file(end.folder / RUN_FILE).watch
            has_memory = note is None or any(note.own_peaks)
            if not has_memory:
                remove_run(end.folder)  # nothing in it can be opened

            return replace(
                end,
                note=note,
                unread=str(error) if has_memory else "",
            ), None

        return end, save_report(result, end.folder)


def estimate_target(
    spec: TargetSpec,
    options: CaptureOptions,
    out: Path,
    *,
    force: bool = False,
    save: bool = True,
    what_if: WhatIf = NOTHING_ASKED,
) -> Result:
    """Estimate a target's memory: run it on a simulated card, or predict it from its graph.

    ``force`` and ``save`` as in ``trace_target``.
    """
    check_steps(options)
    folder = capture_target(spec, options, out, force=force)
    create_cache_folder()

    return explain_folder(folder, save=save, what_if=what_if)


def explain_folder(
    folder: Path,
    *,
    save: bool = True,
    what_if: WhatIf = NOTHING_ASKED,
) -> Result:
    """Explain a new capture of an estimate and write the report; on failure remove the folder."""
    try:
        result = open_estimate(folder, what_if=what_if)
        if save:
            return save_report(result, folder)

        return result
    except BaseException:
        remove_run(folder)
        raise


def save_report(result: Result, folder: Path) -> Result:
    """Write the report into a run folder; return the result."""
    result.to_json(folder / report_json.REPORT_JSON)
    result.to_html(folder / report_json.REPORT_HTML)

    if result.report.kind is not Kind.ESTIMATE and result.report.what_if is not None:
        return result  # without a digest: the next command explains the trace without these settings

    write_text(
        folder / report_json.DIGEST_FILE, report_json.encode_digest(folder).decode()
    )

    return result
