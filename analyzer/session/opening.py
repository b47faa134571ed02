"""From a run folder or a trace to a result; TensorFlow is not needed.

What works anything out is imported where it is called: a finished result is opened without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.saved_result import REPORT_JSON, read_saved_report
from analyzer.model.contract.report.subject import Kind
from analyzer.model.contract.run_note import read_run_file
from analyzer.model.errors import CompilerUnavailable, TraceError
from analyzer.model.gc_pause import pause_collector
from analyzer.report.result import Result
from analyzer.simulate.compiler.card_options import CardOptions
from analyzer.tracing.parse.logdir import RUN_FILE

if TYPE_CHECKING:
    from analyzer.explain.analysis import Analysis
    from analyzer.simulate.allocator import BfcOptions
    from analyzer.simulate.compiler.step_plans import CardStep
    from analyzer.tracing.measure.measured_recording import Measured
    from analyzer.tracing.parse.run_folder import RunNote


def open_result(
    path: Path,
    *,
    host: str = "",
    allocator: str = "",
    what_if: WhatIf | None = None,
    search: bool = True,
    progress: Callable[[str, float], None] | None = None,
) -> Result:
    """Read and explain a trace.

    Args:
        path: What to open.
        host: Start of the file's name, where a run has one file for each host.
        allocator: The allocator to look at; empty for the device's own.
        what_if: Settings of the allocator to replay under.
        search: Search the minimum limit too: a second, or several for a long trace.
        progress: Called with the stage and the share done, 0 to 1.

    Raises:
        TraceError: there is no readable trace.
    """
    is_plain = not (host or allocator or (what_if is not None and what_if.is_asked))
    if is_estimate(path):
        if is_plain:
            return open_finished(path, progress=progress)
        return open_estimate(path, what_if=what_if, search=search, progress=progress)
    kept, _ = read_saved_report(path) if is_plain else (None, "")
    if kept is not None and kept.kind is not Kind.ESTIMATE:
        return Result(cache(lambda: _measured(path).analysis), kept, path)
    return _measured(
        path,
        host=host,
        allocator=allocator,
        what_if=what_if,
        search=search,
        progress=progress,
    )


def _measured(
    path: Path,
    *,
    host: str = "",
    allocator: str = "",
    what_if: WhatIf | None = None,
    search: bool = True,
    progress: Callable[[str, float], None] | None = None,
) -> Result:
    """Read and explain a trace, as ``open_result`` does."""
    from analyzer.report.document import build_document
    from analyzer.tracing.measure.measured_recording import open_measured

    report = progress or (lambda stage, share: None)
    measured = open_measured(
        path,
        host=host,
        allocator=allocator,
        progress=lambda share: report("reading the trace", share),
    )
    report(_explaining(search), 1.0)
    analysis = explain(measured, what_if or WhatIf(), search=search)
    return Result.of(analysis, build_document(analysis), path if path.is_dir() else None)


def _explaining(search: bool) -> str:
    """Name the last stage by what takes its time."""
    return "searching the least memory limit" if search else "explaining"


def is_estimate(path: Path) -> bool:
    """Say whether ``path`` is the folder of an estimate."""
    file = path / RUN_FILE
    return file.is_file() and read_run_file(file).is_estimate


def open_finished(path: Path, *, progress: Callable[[str, float], None] | None = None) -> Result:
    """Open the estimate that the folder at ``path`` keeps, as it was saved.

    It is predicted anew, and the result says so, where what is kept cannot be shown as it is: another
    version saved it, or a file was changed since.

    Raises:
        TraceError: it is no folder of an estimate.
    """
    kept, why = read_saved_report(path)
    if kept is not None and kept.kind is Kind.ESTIMATE:
        return Result(cache(lambda: _kept(path, kept)), kept, path)
    result = open_estimate(path, progress=progress)
    if why:
        message = f"Predicted anew: {why}; {REPORT_JSON} in the folder may say otherwise."
        report = structs.replace(result.report, notes=(message, *result.report.notes))
        return replace(result, report=report)
    return result


def _kept(path: Path, report: ReportFile) -> Analysis:
    from analyzer.report.saved_estimate import kept_analysis

    return kept_analysis(path, report)


def open_estimate(
    path: Path,
    *,
    threads: int | None = None,
    inter_op: int | None = None,
    what_if: WhatIf | None = None,
    search: bool = True,
    card_options: CardOptions | None = None,
    keep: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Result:
    """Predict anew from the folder of an estimate; TensorFlow is not needed.

    Args:
        path: The folder.
        threads: Threads that one op may use; None for those of the machine that made it.
        inter_op: Threads that run ops side by side; None for those of that machine.
        what_if: Settings of the allocator to replay under.
        search: Search the minimum limit too.
        card_options: How a card's compiler is used.
        keep: Leave what it says in the folder.
        progress: Called with the stage and the share done, 0 to 1.

    Raises:
        TraceError: it is no folder of an estimate.
        CompilerUnavailable: a card's compiler gave no plan, and the folder holds none of the CPU's.
    """
    from analyzer.report.document import build_document
    from analyzer.tracing.parse.run_folder import read_run

    file = path / RUN_FILE
    note = read_run(file) if file.is_file() else None
    if note is None or not note.is_estimate:
        raise TraceError(
            f"{path} holds no estimate.", hint="A trace is opened with `analyze trace`."
        )
    analysis = estimated(
        note,
        path,
        threads=threads,
        inter_op=inter_op,
        what_if=what_if,
        search=search,
        card_options=card_options,
        keep=keep,
        progress=progress,
    )
    return Result.of(analysis, build_document(analysis), path)


@pause_collector()
def estimated(
    note: RunNote,
    folder: Path,
    *,
    threads: int | None = None,
    inter_op: int | None = None,
    what_if: WhatIf | None = None,
    search: bool = True,
    card_options: CardOptions | None = None,
    keep: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Analysis:
    """Predict a noted step and explain it.

    Args:
        note: What a capture noted, or what was made of two such notes.
        folder: Where the card's plans lie, or are left.
        threads, inter_op, what_if, search, card_options, keep, progress: As for ``open_estimate``.

    Raises:
        TraceError: the note holds no graph, or a plan is damaged.
        CompilerUnavailable: a card's compiler gave no plan, and the note holds none of the CPU's.
    """
    from analyzer.simulate.predict.predicted_recording import predict_note

    report = progress or (lambda stage, share: None)
    asked = what_if or WhatIf()
    card = _card_step(
        note,
        folder,
        card_options or CardOptions(),
        keep=keep,
        progress=lambda stage, share: report(stage, 0.7 * share),
    )
    start = 0.7 if card else 0.0
    predicted = predict_note(
        note,
        threads=threads,
        inter_op=inter_op,
        plans=card.plans if card else None,
        allocator=_allocator(note, asked),
        search=search,
        progress=lambda share: report("predicting", start + (0.8 - start) * share),
    )
    if card is not None:
        predicted = _with_card(predicted, card)
    report(_explaining(search), 0.9)
    return explain(predicted, asked, search=search)


def _allocator(note: RunNote, what_if: WhatIf) -> BfcOptions | None:
    """Return how a noted step's card is set up, None for the CPU's allocator.

    A limit and growth that the user asks about are the card's own, as in a run: a pool of one region
    is as large as the limit, and which chunk fits best depends on what is left of it.
    """
    from analyzer.explain.pool_facts import asked_options
    from analyzer.simulate.predict.predicted_device import target_of

    target = target_of(note)
    return None if target.gpu is None else asked_options(target.options, what_if)


def _card_step(
    note: RunNote,
    folder: Path,
    options: CardOptions,
    *,
    keep: bool,
    progress: Callable[[str, float], None] | None,
) -> CardStep | None:
    """Return the plans of the step's compiled functions on its card; None where there are none.

    Raises:
        CompilerUnavailable: there is no plan of the card's, and none of the CPU's.
    """
    from analyzer.simulate.compiler.plan_cache import default_cache
    from analyzer.simulate.compiler.step_plans import card_step, cpu_step, keep_failure
    from analyzer.simulate.predict.predicted_device import target_of

    gpu = target_of(note).gpu
    if gpu is None or not note.compiled:
        return None
    try:
        return card_step(
            note, folder, gpu, default_cache(), options=options, keep=keep, progress=progress
        )
    except CompilerUnavailable as why:
        stand_in = cpu_step(note, gpu, why)
        if stand_in is None:
            raise
        if keep:
            keep_failure(folder, gpu, why)
        return stand_in


def _with_card(predicted: Measured, card: CardStep) -> Measured:
    """Return a prediction with what is uncertain about its card's plans."""
    from analyzer.simulate.compiler.plan_uncertainty import with_plan_doubts

    recording = predicted.recording
    stated = recording.uncertainty
    doubts = None if stated is None else with_plan_doubts(stated, card.doubts)
    versions = {**recording.versions, "xla_compiler": card.compiler or "TensorFlow's, for the CPU"}
    return replace(predicted, recording=replace(recording, uncertainty=doubts, versions=versions))


def explain(measured: Measured, what_if: WhatIf, *, search: bool) -> Analysis:
    """Work out the peak of a measured recording, its pool and its findings.

    Args:
        measured: A measured recording with its graph and uses.
        what_if: Settings of the allocator to replay under.
        search: Whether the smallest limits are searched for, which takes several replays.
    """
    from analyzer.explain.all_findings import collect
    from analyzer.explain.analysis import analyse
    from analyzer.explain.phantom_range import with_assumed_range
    from analyzer.explain.pool_facts import add_pool
    from analyzer.explain.verdict.judgement import judge
    from analyzer.tracing.measure.buffer_uses import uses_of

    analysis = analyse(measured.recording)
    uses = uses_of(
        analysis.alive, measured.structure, measured.sharing, measured.op_runs, analysis.step
    )
    analysis = add_pool(replace(analysis, uses=uses), what_if, search=search)
    analysis = with_assumed_range(analysis)
    return collect(judge(analysis, what_if.memory_limit_bytes))
