"""One cell of a sweep: the step captured and estimated, in whatever process is asked for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analyzer.capture.process.launch import capture
from analyzer.capture.targets.target_spec import parse_target
from analyzer.cards import find_gpu, memory_limit
from analyzer.explain.replay_settings import WhatIf
from analyzer.fitting.search.remedy_plans import plans_for
from analyzer.fitting.search.step_access import workplace
from analyzer.fitting.sweep.sweep_config import CPU
from analyzer.model.contract.capture_request import CaptureOptions, TargetSpec
from analyzer.model.contract.report.sweep_file import SweepCell, SweepQuestion
from analyzer.model.errors import AnalyzerError, ExitCode, InputError
from analyzer.report.result import Result
from analyzer.session.target_results import estimate_target
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import read_run


def sweep_cell(question: SweepQuestion) -> SweepCell:
    """Estimate what a cell asks.

    Returns:
        The cell; one that says why where there is no estimate.

    Raises:
        AnalyzerError: by a fault of ours.
    """
    try:
        with workplace() as folder:
            return _estimated(question, folder)
    except AnalyzerError as error:
        if error.exit_code is ExitCode.BUG:
            raise
        return SweepCell(question=question, failed=str(error))


def _estimated(question: SweepQuestion, folder: Path) -> SweepCell:
    spec = parse_target(question.target)
    is_card = question.card != CPU
    limit_bytes = _limit_of(question)
    options = CaptureOptions(
        mode=question.mode,
        batch_size=question.batch_size,
        optimizer=question.optimizer,
        dtype_policy=question.dtype_policy,
        jit=question.jit,
        device="gpu" if is_card else "cpu",
        gpu=question.card if is_card else "",
        memory_limit_bytes=limit_bytes if is_card else None,
    )
    if question.remedy:
        options = _remedied(spec, options, question.remedy, folder / "as-is")
    what_if = WhatIf(memory_limit_bytes=limit_bytes)
    return _cell(question, estimate_target(spec, options, folder / "cell", what_if=what_if))


def _limit_of(question: SweepQuestion) -> int | None:
    """Return the limit of a cell: the one given, or the card's own where that is lower."""
    if question.limit_bytes is None or question.card == CPU:
        return question.limit_bytes
    return min(question.limit_bytes, memory_limit(find_gpu(question.card)).bytes)


def _remedied(
    spec: TargetSpec, options: CaptureOptions, remedy: str, folder: Path
) -> CaptureOptions:
    """Return the options of the remedied step; the step as it is says which remedies there are."""
    made = capture(
        spec, options, folder, force=False, progress=lambda stage, share: None, kind="static"
    )
    plans = {plan.id: plan for plan in plans_for(options, read_run(made / RUN_FILE))}
    if remedy not in plans:
        raise InputError(
            f"The step has no remedy {remedy!r}.", hint=f"There are: {', '.join(plans)}."
        )
    return replace(plans[remedy].options, memory_limit_bytes=options.memory_limit_bytes)


def _cell(question: SweepQuestion, result: Result) -> SweepCell:
    report, verdict = result.report, result.report.verdict
    stated = report.uncertainty
    return SweepCell(
        question=question,
        requested_bytes=report.peak.requested_bytes,
        allocated_bytes=report.peak.allocated_bytes,
        low_bytes=None if stated is None else stated.low_bytes,
        high_bytes=None if stated is None else stated.high_bytes,
        need_bytes=None if verdict is None else verdict.need_bytes,
        limit_bytes=None if verdict is None else verdict.limit_bytes,
        margin_bytes=None if verdict is None else verdict.margin_bytes,
        fits=report.fits,
        op=report.peak.op or "",
    )
