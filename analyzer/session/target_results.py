"""Capture or estimate a target, explain it, and save the result in its run folder."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.capture.process.launch import capture
from analyzer.capture.process.run_folders import remove_run
from analyzer.capture.targets.target_spec import check_steps
from analyzer.capture.watch.script_launch import ScriptEnd, run_script
from analyzer.cards import check_limit, find_gpu
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.capture_request import CaptureOptions, TargetSpec, WatchRequest
from analyzer.model.contract.report.subject import Kind
from analyzer.model.contract.report.writing import (
    DIGESTS_FILE,
    REPORT_HTML,
    REPORT_JSON,
    encode_digests,
)
from analyzer.model.contract.run_note import read_run_file
from analyzer.model.errors import CompilerUnavailable, TraceError
from analyzer.model.interrupts import EXIT_BASE, ignore_one_interrupt
from analyzer.model.user_cache import create_cache_folder
from analyzer.report.output_files import write_text
from analyzer.report.result import Result
from analyzer.session.opening import PredictOptions, Progress, open_estimate, open_result
from analyzer.tracing.parse.logdir import RUN_FILE

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from analyzer.simulate.compiler.card_options import CardOptions


def trace_target(
    spec: TargetSpec,
    options: CaptureOptions,
    out: Path,
    *,
    force: bool = False,
    save: bool = True,
    what_if: WhatIf | None = None,
    progress: Progress | None = None,
) -> Result:
    """Trace a target's step in a child process and explain it.

    ``force`` replaces an earlier run in ``out``. ``save`` writes the report into it; a temporary folder
    needs none.

    Raises:
        InputError: the target or ``out`` cannot be used.
        StepOutOfMemory: the system killed the step's process.
    """
    report = progress or (lambda stage, share: None)
    folder = capture(
        spec, options, out, force=force, progress=lambda stage, share: report(stage, 0.8 * share)
    )
    result = open_result(
        folder,
        what_if=what_if,
        progress=lambda stage, share: report(stage, 0.8 + 0.1 * share),
    )
    return _finish(result, folder, save, report)


def trace_script(
    spec: TargetSpec,
    request: WatchRequest,
    out: Path,
    *,
    force: bool = False,
    what_if: WhatIf | None = None,
) -> tuple[ScriptEnd, Result | None]:
    """Run a script in this terminal, trace a few of its steps and explain them.

    Returns:
        How the script ended, and the result; None if no step was traced.

    Raises:
        InputError: ``out`` cannot be used.
    """
    end = run_script(request, out, force=force)
    if end.folder is None:
        return end, None
    is_interrupted = end.status == EXIT_BASE + signal.SIGINT
    with ignore_one_interrupt() if is_interrupted else nullcontext():
        try:
            result = open_result(end.folder, what_if=what_if)
        except TraceError as error:
            note = read_run_file(end.folder / RUN_FILE).watch
            has_memory = note is None or any(note.own_peaks)
            return replace(end, note=note, unread=str(error) if has_memory else ""), None
        return end, save_report(result, end.folder)


def estimate_target(
    spec: TargetSpec,
    options: CaptureOptions,
    out: Path,
    *,
    force: bool = False,
    save: bool = True,
    threads: int | None = None,
    what_if: WhatIf | None = None,
    card_options: CardOptions | None = None,
    progress: Progress | None = None,
) -> Result:
    """Capture a target's graph in a child process and predict its memory.

    ``threads`` per op are this machine's default if None. ``force`` and ``save`` as in ``trace_target``.

    Raises:
        InputError: the target or ``out`` cannot be used.
    """
    check_steps(options)
    if options.gpu:
        check_limit(find_gpu(options.gpu), options.memory_limit_bytes)
    report = progress or (lambda stage, share: None)
    capture_share = 0.5 if options.gpu else 0.8

    def capture_graph(options: CaptureOptions, place: Path, *, force: bool) -> Path:
        return capture(
            spec,
            options,
            place,
            force=force,
            progress=lambda stage, share: report(stage, capture_share * share),
            kind="static",
        )

    folder = capture_graph(options, out, force=force)
    create_cache_folder()
    with remove_on_failure(folder):
        result = predict_folder(
            folder,
            lambda: capture_graph(replace(options, cpu_plan=True), folder, force=True),
            threads=threads,
            what_if=what_if,
            card_options=card_options,
            progress=lambda stage, share: report(
                stage, capture_share + (0.9 - capture_share) * share
            ),
        )
        return _finish(result, folder, save, report)


@contextmanager
def remove_on_failure(folder: Path) -> Iterator[None]:
    """Remove a run folder if the block fails, because it holds no result."""
    try:
        yield
    except BaseException:
        remove_run(folder)
        raise


def predict_folder(
    folder: Path, capture_again: Callable[[], Path], **options: Unpack[PredictOptions]
) -> Result:
    """Predict from a new run folder; capture again for the CPU's compiler if the card's fails.

    ``capture_again`` captures into the same folder, with the plan of the CPU's compiler.
    """
    options["keep"] = True
    try:
        return open_estimate(folder, **options)
    except CompilerUnavailable as reason:
        from analyzer.simulate.compiler.step_plans import keep_failure
        from analyzer.simulate.predict.predicted_device import target_of
        from analyzer.tracing.parse.run_folder import read_run

        gpu = target_of(read_run(folder / RUN_FILE)).gpu
        assert gpu is not None
        capture_again()
        keep_failure(folder, gpu, reason)
        return open_estimate(folder, **options)


def _finish(result: Result, folder: Path, save: bool, report: Progress) -> Result:
    if save:
        report("writing the report", 0.95)
        save_report(result, folder)
    report("done", 1.0)
    return result


def save_report(result: Result, folder: Path) -> Result:
    """Write the report into a run folder; return the result."""
    result.to_json(folder / REPORT_JSON)
    result.to_html(folder / REPORT_HTML)
    if result.report.kind is Kind.ESTIMATE:
        from analyzer.report.saved_estimate import save_tables

        save_tables(result.recording, folder)
    elif result.report.what_if is not None:
        return result  # without digests: the next command explains the trace without these settings
    write_text(folder / DIGESTS_FILE, encode_digests(folder).decode())
    return result
