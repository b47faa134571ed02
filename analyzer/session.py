"""From a target to a result: what the commands and the public API both call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.capture.phantom.phantom_environment import cards_named
from analyzer.capture.process.launch import Progress, capture
from analyzer.capture.process.run_folders import default_out, retract
from analyzer.capture.targets.honoured_options import TargetForm, check_honoured, given_options
from analyzer.capture.targets.target_spec import check_steps, parse_target
from analyzer.capture.watch.script_launch import ScriptEnd, run_script
from analyzer.contract.kept_result import KEPT_FILE, REPORT_HTML, REPORT_JSON, kept_facts
from analyzer.contract.messages.capture_request import CaptureOptions, TargetKind, TargetSpec
from analyzer.contract.messages.watch_request import STEPS, WARMUP, WatchRequest
from analyzer.contract.report.subject import Kind
from analyzer.errors import CompilerUnavailable, InputError
from analyzer.findings.replay_settings import WhatIf
from analyzer.opening import open_estimate, open_finished, open_result
from analyzer.parse.logdir import RUN_FILE
from analyzer.report.exports.output_files import write_text
from analyzer.report.result import Result
from analyzer.user_cache import begin_cache

if TYPE_CHECKING:
    from analyzer.capture.watch.watch_block import WatchBlock
    from analyzer.compiler.card_options import CardOptions
    from analyzer.contract.report.finding import Finding
    from analyzer.report.diff_result import Diff

__all__ = [
    "REPORT_HTML",
    "REPORT_JSON",
    "Result",
    "Watched",
    "begin_watch",
    "callback_class",
    "diff",
    "end_watch",
    "estimate",
    "estimate_target",
    "leave_report",
    "open_trace",
    "trace",
    "trace_script",
    "trace_target",
    "watch",
]


def trace_target(
    spec: TargetSpec,
    options: CaptureOptions,
    out: Path,
    *,
    force: bool = False,
    what_if: WhatIf | None = None,
    progress: Progress | None = None,
) -> Result:
    """Capture a target's step in a child process, explain it, and leave the result in ``out``.

    Args:
        spec: What the user named.
        options: How the step is made and run.
        out: Where the run folder goes.
        force: Whether a run folder that is there may be replaced.
        what_if: Settings of the allocator to replay under.
        progress: Called with the stage and the share done, 0 to 1.

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
    return _leave(result, folder, report)


def trace_script(
    spec: TargetSpec,
    request: WatchRequest,
    out: Path,
    *,
    force: bool = False,
    what_if: WhatIf | None = None,
) -> tuple[ScriptEnd, Result | None]:
    """Run a script with this process' terminal, trace a few of its steps and explain them.

    Args:
        spec: The script.
        request: How it is watched.
        out: Where the run folder goes.
        force: Whether a run folder that is there may be replaced.
        what_if: Settings of the allocator to replay under.

    Returns:
        How the script ended, and the result; None where no step was traced.

    Raises:
        InputError: ``out`` cannot be used.
    """
    end = run_script(spec, request, out, force=force)
    if end.folder is None:
        return end, None
    result = open_result(end.folder, what_if=what_if)
    return end, _leave(result, end.folder, lambda stage, share: None)


def estimate_target(
    spec: TargetSpec,
    options: CaptureOptions,
    out: Path,
    *,
    force: bool = False,
    threads: int | None = None,
    what_if: WhatIf | None = None,
    card_options: CardOptions | None = None,
    progress: Progress | None = None,
) -> Result:
    """Take a target's graph in a child process, predict its memory, leave the result in ``out``.

    Args:
        spec: What the user named.
        options: How the step is made and run.
        out: Where the run folder goes.
        force: Whether a run folder that is there may be replaced.
        threads: Inter-op threads to predict for; None for those that a run would have.
        what_if: Settings of the allocator to replay under.
        card_options: How a card's compiler is run.
        progress: Called with the stage and the share done, 0 to 1.

    Raises:
        InputError: the target or ``out`` cannot be used.
    """
    check_steps(options)
    report = progress or (lambda stage, share: None)
    captured = 0.5 if options.gpu else 0.8

    def capture_graph(options: CaptureOptions, place: Path, *, force: bool) -> Path:
        return capture(
            spec,
            options,
            place,
            force=force,
            progress=lambda stage, share: report(stage, captured * share),
            kind="static",
        )

    folder = capture_graph(options, out, force=force)
    begin_cache()
    with _whole_or_gone(folder):
        predicted = _predict(
            folder,
            lambda: capture_graph(replace(options, cpu_plan=True), folder, force=True),
            threads=threads,
            what_if=what_if,
            card_options=card_options,
            progress=lambda stage, share: report(stage, captured + (0.9 - captured) * share),
        )
        return _leave(predicted, folder, report)


@contextmanager
def _whole_or_gone(folder: Path) -> Iterator[None]:
    """Remove a captured step's folder where the block does not end well: there is no result in it."""
    try:
        yield
    except BaseException:
        retract(folder)
        raise


def _predict(
    folder: Path,
    capture_again: Callable[[], Path],
    *,
    threads: int | None,
    what_if: WhatIf | None = None,
    card_options: CardOptions | None = None,
    progress: Progress | None = None,
) -> Result:
    """Predict from a fresh run folder; capture anew with the CPU's plan where the card's has none."""

    def opened() -> Result:
        return open_estimate(
            folder,
            threads=threads,
            what_if=what_if,
            card_options=card_options,
            keep=True,
            progress=progress,
        )

    try:
        return opened()
    except CompilerUnavailable as why:
        from analyzer.compiler.step_plans import keep_failure
        from analyzer.parse.run_folder import read_run
        from analyzer.predict.predicted_device import target_of

        gpu = target_of(read_run(folder / RUN_FILE)).gpu
        assert gpu is not None
        capture_again()
        keep_failure(folder, gpu, why)
        return opened()


def _leave(result: Result, folder: Path, report: Progress) -> Result:
    report("writing the report", 0.95)
    leave_report(result, folder)
    report("done", 1.0)
    return result


def leave_report(result: Result, folder: Path) -> Result:
    """Write the report into the run's folder; return the result.

    Args:
        result: The result.
        folder: The run's folder.
    """
    result.to_json(folder / REPORT_JSON)
    result.to_html(folder / REPORT_HTML)
    if result.report.kind is Kind.ESTIMATE:
        from analyzer.report.saved_estimate import keep_tables

        keep_tables(result.recording, folder)
    elif result.report.what_if is not None:
        return result  # the trace alone is kept: what it is replayed under is said anew each time
    write_text(folder / KEPT_FILE, kept_facts(folder).decode())
    return result


def estimate(
    target: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    threads: int | None = None,
    **options: Any,
) -> Result:
    """Predict the memory of a step on the CPU, or on the card that ``gpu`` names; nothing of it runs.

    Args:
        target: As for :func:`trace`, or the folder of an earlier estimate.
        out: The folder for the result; default ``traces/NAME-TIME``.
        force: Replace an earlier run in ``out``.
        threads: Threads that one op may use; default this machine's.
        **options: Fields of :class:`analyzer.capture.targets.target_spec.CaptureOptions`.

    Raises:
        InputError: the target or ``out`` cannot be used.
    """
    chosen = CaptureOptions(**{"device": "gpu" if options.get("gpu") else "cpu", **options})
    if isinstance(target, str | os.PathLike):
        spec = parse_target(os.fspath(target))
        if spec.kind is TargetKind.TRACE:
            check_honoured(spec.text, TargetForm.ESTIMATE, given_options(chosen))
            if threads is None and chosen.inter_op_threads is None:
                return open_finished(Path(spec.path))
            return open_estimate(Path(spec.path), threads=threads, inter_op=chosen.inter_op_threads)
        place = Path(out) if out else default_out(spec)
        return estimate_target(spec, chosen, place, force=force, threads=threads)
    check_steps(chosen)
    from analyzer.capture.process.live_capture import capture_unrun

    folder = capture_unrun(target, chosen, None if out is None else Path(out), force=force)
    with _whole_or_gone(folder):
        result = _predict(
            folder,
            lambda: capture_unrun(target, replace(chosen, cpu_plan=True), folder, force=True),
            threads=threads,
        )
        return _leave(result, folder, lambda stage, share: None)


def trace(
    target: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    **options: Any,
) -> Result:
    """Capture the memory of a step and explain it.

    Args:
        target: ``keras:NAME``, ``file.py:name``, ``module:name`` or a saved model's path; or a live
            Keras model, a ``tf.function``, or ``(tf_function, args)``.
        out: The run folder; default ``traces/NAME-TIME``.
        force: Replace an earlier run in ``out``.
        **options: Fields of :class:`analyzer.capture.targets.target_spec.CaptureOptions`: ``steps``,
            ``batch_size``, ``mode``, ``optimizer``, ``jit`` and so on. With ``gpu`` the step runs on
            TensorFlow's own GPU runtime without that card (``"t4"``, ``"2xt4"``), under
            ``memory_limit_bytes`` and ``growth``.

    Returns:
        The result; its ``folder`` opens in TensorBoard.

    Raises:
        InputError: the target or ``out`` cannot be used.
    """
    chosen = CaptureOptions(**options)
    if chosen.gpu:
        cards_named(chosen.gpu)
    if isinstance(target, str | os.PathLike):
        spec = parse_target(os.fspath(target))
        if spec.kind is TargetKind.TRACE:
            check_honoured(spec.text, TargetForm.TRACE, given_options(chosen))
            if chosen.gpu:
                raise InputError(
                    f"{spec.text} is a trace that exists: gpu cannot be honoured.",
                    hint="Name a model or a step to run on a card that is not there.",
                )
            return open_result(Path(spec.path))
        return trace_target(spec, chosen, Path(out) if out else default_out(spec), force=force)
    from analyzer.capture.process.live_capture import capture_live

    folder = capture_live(target, chosen, None if out is None else Path(out), force=force)
    return _leave(open_result(folder), folder, lambda stage, share: None)


@dataclass
class Watched:
    """What was seen of the steps of a ``with analyzer.watch():`` block, when it has ended.

    Attributes:
        result: The traced steps, explained; None where none was traced, or while the block runs.
        steps: Steps that were made.
    """

    result: Result | None = None
    steps: int = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is worth knowing, the weightiest first."""
        return () if self.result is None else self.result.findings


@contextmanager
def watch(
    out: str | os.PathLike[str] | None = None,
    *,
    steps: int = STEPS,
    warmup: int = WARMUP,
    name: str = "watch",
    force: bool = False,
) -> Iterator[Watched]:
    """Find the training or inference steps made in the block, trace a few, and explain them.

    Args:
        out: The run folder, with ``report.html`` and ``report.json``; default ``traces/NAME-TIME``.
        steps: Steps to trace.
        warmup: Steps before them.
        name: What the report calls them.
        force: Replace an earlier run in ``out``.

    Raises:
        InputError: ``out`` cannot be used, or another block is under way.
        TargetError: TensorFlow was imported with an allocator that writes no memory events.
    """
    block = begin_watch(out, steps=steps, warmup=warmup, name=name, force=force)
    watched = Watched()
    try:
        yield watched
    except BaseException as error:
        end_watch(block, watched, error)
        raise
    end_watch(block, watched)


@cache
def callback_class() -> type[Any]:
    """Return :class:`analyzer.MemoryCallback`; Keras is imported here."""
    from analyzer.capture.process.live_capture import can_trace_here

    can_trace_here()  # chooses the allocator, where TensorFlow is imported only now
    from analyzer.capture.watch.keras_callback import MemoryCallback

    MemoryCallback.begin_watch = staticmethod(begin_watch)
    MemoryCallback.end_watch = staticmethod(end_watch)
    return MemoryCallback


def begin_watch(
    out: str | os.PathLike[str] | None = None,
    *,
    steps: int = STEPS,
    warmup: int = WARMUP,
    name: str = "watch",
    force: bool = False,
) -> WatchBlock:
    """Watch the steps of this process until :func:`end_watch`; for callbacks and plugins.

    Args:
        out, steps, warmup, name, force: As for :func:`watch`.
    """
    from analyzer.capture.watch.watch_block import WatchBlock

    place = None if out is None else Path(out)
    block = WatchBlock(place, steps=steps, warmup=warmup, name=name, force=force)
    block.begin()
    return block


def end_watch(
    block: WatchBlock, watched: Watched | None = None, error: BaseException | None = None
) -> Watched:
    """End what :func:`begin_watch` began, and leave the report in its folder.

    Args:
        block: What it returned.
        watched: What gets the result; None for a new one.
        error: What ended the steps; None where they ended by themselves.

    Returns:
        What was seen.
    """
    watched = watched or Watched()
    folder = block.end(error)
    if folder is None:
        watched.steps = 0 if block.seen is None else block.seen.steps
        return watched
    result = open_result(folder)
    seen = result.recording.watch
    watched.steps = 0 if seen is None else seen.steps
    watched.result = _leave(result, folder, lambda stage, share: None)
    return watched


def open_trace(path: str | os.PathLike[str], *, host: str = "", allocator: str = "") -> Result:
    """Open a trace that exists: an ``.xplane.pb``, a run folder or a TensorBoard logdir.

    TensorFlow is not needed and not imported.

    Args:
        path: What to open.
        host: Start of the file's name, where a run has one file for each host.
        allocator: The allocator to look at; default the device's own.

    Raises:
        TraceError: there is no readable trace.
    """
    return open_result(Path(path), host=host, allocator=allocator)


def diff(a: str | os.PathLike[str] | Result, b: str | os.PathLike[str] | Result) -> Diff:
    """Compare two steps: what came, went and grew at the peak from ``a`` to ``b``.

    Args:
        a: The older: a run folder, a logdir, an ``.xplane.pb``, or a result.
        b: The newer.

    Raises:
        TraceError: there is no readable trace.
    """
    from analyzer.report.diff_result import build_diff

    first, second = (
        side if isinstance(side, Result) else open_result(Path(side)) for side in (a, b)
    )
    names = [None if isinstance(side, Result) else os.fspath(side) for side in (a, b)]
    return build_diff(
        (first.report, first.recording), (second.report, second.recording), names=names
    )
