"""Capture or estimate a target, explain it, and save the result; and the public functions for that.

An estimate is a run on a simulated card if possible: TensorFlow runs the step on NVIDIA cards if this
machine can simulate them. The graph alone is taken for the CPU and AMD cards, on other machines, for
live functions, and if the step fails while it runs.

The functions of ``import analyzer`` that trace, estimate, open, compare and watch follow at the end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.capture.process.child_process import ForkServers
from analyzer.capture.process.launch import capture, capture_live, capture_unrun
from analyzer.capture.process.run_folders import (
    LOG_FILE,
    make_default_path,
    make_staging_folder,
    publish,
    remove_run,
)
from analyzer.capture.targets.target_spec import (
    TargetForm,
    check_honoured,
    check_steps,
    parse_target,
)
from analyzer.capture.watch.script_launch import ScriptEnd, ScriptView, run_script
from analyzer.cards.catalogue import check_limit
from analyzer.model.contract.child_messages import (
    ASSUMPTIONS,
    NOTHING_ASKED,
    SCRIPT_STEPS,
    SCRIPT_WARMUP_STEPS,
    CaptureKind,
    CaptureOptions,
    StepOptions,
    TargetSpec,
    WatchRequest,
    WhatIf,
)
from analyzer.model.contract.fields import StrPath
from analyzer.model.contract.report_file import (
    DIGEST_FILE,
    REPORT_HTML,
    REPORT_JSON,
    Kind,
    encode_digest,
)
from analyzer.model.contract.run_note import read_run_file
from analyzer.model.errors import (
    AnalyzerError,
    FailureKind,
    InputError,
    StepOutOfMemory,
    TargetError,
    TraceError,
)
from analyzer.model.progress import report_stage
from analyzer.report.output_files import write_text
from analyzer.report.result import Diff, Result, build_diff
from analyzer.session.opening import open_estimate, open_hosts, open_result
from analyzer.simulated_card.card_environment import (
    check_simulated_card,
    find_smallest_card,
    normalize_cards,
    parse_cards,
)
from analyzer.tracing.parse.run_folder import RUN_FILE

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from analyzer.capture.watch.watch_block import WatchBlock


# Environment variable: ``1`` estimates cards without a run, for tests and benchmarks.
STATIC = "TF_MEMORY_ANALYZER_STATIC"

_NO_RUN = (
    "Estimated op by op without a run on a simulated card ({}). XLA may need less."
)

_WITHOUT_XLA = "These figures are of a run op by op. {}"

# Failures of a process that a graph without a run avoids.
_OF_RUN = (FailureKind.NO_CARD, FailureKind.CRASHED, FailureKind.TIMED_OUT)


class _RunError(TargetError):
    """The step exists, but cannot be run on a simulated card."""


CaptureStep = Callable[[CaptureOptions, CaptureKind], Path]


def capture_target(
    spec: TargetSpec,
    options: CaptureOptions,
    out: Path,
    *,
    force: bool,
    copies: ForkServers | None = None,
) -> Path:
    """Capture a named target for an estimate in a child process; return the run folder."""

    def capture_step(options: CaptureOptions, kind: CaptureKind) -> Path:
        return capture(
            spec,
            options,
            out,
            force=force,
            kind=kind,
            copies=copies,
        )

    return _capture(capture_step, options)


def capture_object(
    target: Any,
    options: CaptureOptions,
    out: Path | None,
    *,
    force: bool = False,
) -> Path:
    """Capture a live model or function for an estimate; return the run folder."""

    def capture_step(options: CaptureOptions, kind: CaptureKind) -> Path:
        if kind != "run":
            return capture_unrun(target, options, out, force=force)

        try:
            return capture_live(target, options, out, force=force)
        except (
            TargetError
        ) as error:  # such as of a model that another process cannot load
            raise _RunError(error.message, kind=error.kind) from error

    return _capture(capture_step, options)


def _capture(capture_step: CaptureStep, options: CaptureOptions) -> Path:
    if not options.gpu:
        return capture_step(options, "static")

    options = replace(options, gpu=normalize_cards(options.gpu))
    check_limit(find_smallest_card(options.gpu), options.memory_limit_bytes)
    reason = find_obstacle(options)
    failure = None

    if not reason:
        try:
            return _run_on_card(capture_step, options)
        except InputError as error:
            if is_xla_to_blame(error, options):
                return _capture(capture_step, leave_out_xla(error, options))

            is_avoidable = isinstance(error, _RunError) or error.kind in _OF_RUN
            if not is_avoidable or "," in options.gpu:
                raise

            failure = error
            reason = error.message.rstrip(".")

    if "," in options.gpu:
        raise InputError(
            f"Several cards need a run on simulated ones ({reason}).",
            "Name one.",
        )

    options = replace(options, jit=False, caution=_NO_RUN.format(reason))

    try:
        return capture_step(options, "static")
    except TargetError as error:  # the failure of the run says more
        raise failure or error from None


def find_obstacle(options: CaptureOptions) -> str:
    """Return why an estimate for a card cannot run the step; empty if it can."""
    if os.environ.get(STATIC):
        return f"{STATIC} is set"
    if not options.assume.keys() <= {one.name for one in ASSUMPTIONS}:
        return "--assume states values of the step"

    try:
        check_simulated_card()
        parse_cards(options.gpu)
    except InputError as error:
        return error.message.rstrip(".")

    return ""


def is_xla_to_blame(error: AnalyzerError, options: CaptureOptions) -> bool:
    """Say whether a step that XLA cannot compile may still run op by op."""
    return error.kind is FailureKind.NOT_COMPILED and options.jit is not False


def leave_out_xla(error: AnalyzerError, options: CaptureOptions) -> CaptureOptions:
    """Return the options of a run op by op after the error of XLA, which the report states."""
    return replace(options, jit=False, caution=_WITHOUT_XLA.format(error.message))


def _run_on_card(capture_step: CaptureStep, options: CaptureOptions) -> Path:
    """Run the step on the card, and again with room for any step if it does not fit."""
    try:
        return _run_to_end(capture_step, options)
    except StepOutOfMemory:
        return _run_to_end(capture_step, replace(options, is_unlimited=True))


def _run_to_end(capture_step: CaptureStep, options: CaptureOptions) -> Path:
    """Return the folder of a run; without its error, which is raised instead."""
    folder = capture_step(options, "run")

    failure = read_run_file(folder / RUN_FILE).error
    if failure is None:
        return folder

    remove_run(folder)
    if failure.kind is FailureKind.OUT_OF_MEMORY:
        raise StepOutOfMemory(failure.message)

    error = TargetError if failure.kind is FailureKind.EXITED else _RunError
    raise error(failure.message, kind=failure.kind)


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
    capture_step = partial(capture, spec, force=force)
    return _trace(capture_step, options, out, save=save, what_if=what_if)


def _trace(
    capture_step: Callable[..., Path],
    options: CaptureOptions,
    out: Path | None,
    *,
    save: bool = True,
    what_if: WhatIf = NOTHING_ASKED,
) -> Result:
    """Capture a step and explain it; once more, with room for any, if a simulated card was too small.

    Only a step that ends has a need, gradients and all its tensors. The log of the failure stays.
    ``capture_step`` takes options and the run folder.
    """
    folder = capture_step(options, out)
    result = open_result(folder, what_if=what_if)

    failure = result.report.failure

    if options.gpu and failure is not None:
        with_room = replace(
            options,
            is_unlimited=True,
            caution=f"{failure.describe()}. The figures are of a run with room for the step.",
        )

        with make_staging_folder(folder) as staging, suppress(AnalyzerError):
            _run_to_end(lambda asked, kind: capture_step(asked, staging), with_room)
            shutil.copyfile(folder / LOG_FILE, staging / LOG_FILE)
            publish(staging, folder, force=True)
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

    return explain_folder(folder, save=save, what_if=what_if)


def explain_folder(
    folder: Path,
    *,
    save: bool = True,
    what_if: WhatIf = NOTHING_ASKED,
) -> Result:
    """Explain a new capture of an estimate and write the report; on failure remove the folder."""
    try:
        card = read_run_file(folder / RUN_FILE).simulated_card
        if card and card.memory_limit_bytes:
            what_if = replace(what_if, memory_limit_bytes=None)  # it ran with it

        result = open_result(folder, what_if=what_if)
        if save:
            return save_report(result, folder)

        return result
    except BaseException:
        remove_run(folder)
        raise


def save_report(result: Result, folder: Path) -> Result:
    """Write the report into a run folder; return the result."""
    result.to_json(folder / REPORT_JSON)
    result.to_html(folder / REPORT_HTML)

    if result.report.kind is not Kind.ESTIMATE and result.report.what_if is not None:
        return result  # without a digest: the next command explains the trace without these settings

    write_text(folder / DIGEST_FILE, encode_digest(folder).decode())

    return result


OptionalPath = StrPath | None


def make_options(step: StepOptions) -> CaptureOptions:
    """Return the options of a capture; an omitted mapping is empty."""
    given: dict[str, Any] = dict(step)
    for name in ("shapes", "assume"):
        given[name] = dict(given.get(name) or {})

    return CaptureOptions(**given)


def _to_path(path: OptionalPath) -> Path | None:
    return None if path is None else Path(path)


def trace(
    target: Any,
    *,
    out: OptionalPath = None,
    force: bool = False,
    **step: Unpack[StepOptions],
) -> Result:
    """Run a step, capture its memory and explain it; or open an existing trace.

    Args:
        target: ``keras:NAME``, ``file.py:name``, ``module:name``, the path of a saved model or of a
            trace; or a live Keras model, a ``tf.function``, or ``(tf_function, args)``.
        out: The run folder; default ``traces/NAME-TIME``. The result's ``folder`` opens in TensorBoard.
        force: Replace an earlier run in ``out``.
        step: How the step is built and run; see ``StepOptions``.

    Raises:
        InputError: the target or ``out`` cannot be used.
    """
    options = make_options(step)
    if options.gpu:
        parse_cards(options.gpu)

    if not isinstance(target, str | os.PathLike):
        capture_step = partial(capture_live, target, force=force)
        return _trace(capture_step, options, _to_path(out))

    spec = parse_target(os.fspath(target))
    if not spec.is_trace:
        place = _to_path(out) or make_default_path(spec)
        return trace_target(spec, options, place, force=force)

    check_honoured(spec.text, TargetForm.TRACE, options)

    if options.gpu:
        raise InputError(
            f"{spec.text} is an existing trace and cannot run on another card.",
            "Leave gpu out, or name a model or a step.",
        )

    return open_hosts(Path(spec.path))


def estimate(
    target: Any,
    *,
    out: OptionalPath = None,
    force: bool = False,
    **step: Unpack[StepOptions],
) -> Result:
    """Estimate the memory of a step on a simulated card, or predict it for the CPU.

    Args:
        target: As for ``trace``, or the folder of an earlier estimate.
        out, force: As for ``trace``.
        step: How the step is built and run; see ``StepOptions``. Without ``gpu`` it is for the CPU.

    Raises:
        InputError: the target or ``out`` cannot be used.
    """
    options = make_options(step)
    if not options.device:
        options = replace(options, device="gpu" if options.gpu else "cpu")

    if isinstance(target, str | os.PathLike):
        spec = parse_target(os.fspath(target))
        if not spec.is_trace:
            place = _to_path(out) or make_default_path(spec)
            return estimate_target(spec, options, place, force=force)

        check_honoured(spec.text, TargetForm.ESTIMATE, options)
        return open_estimate(Path(spec.path))

    check_steps(options)

    folder = capture_object(target, options, _to_path(out), force=force)

    return explain_folder(folder)


def open_trace(
    path: StrPath,
    *,
    host: str = "",
    allocator: str = "",
) -> Result:
    """Open a trace: an ``.xplane.pb``, a run folder or a TensorBoard logdir.

    A trace of several hosts compares all of them and explains the one with the least room.
    TensorFlow is not imported.

    Args:
        path: The trace; a TraceError if there is none or it cannot be read.
        host: Start of the name of one host's file; empty for all hosts.
        allocator: The allocator to explain; empty for the device's own.
    """
    return open_hosts(Path(path), host=host, allocator=allocator)


def diff(a: StrPath | Result, b: StrPath | Result) -> Diff:
    """Compare the peaks of two steps: new, removed and grown tensors from ``a`` to ``b``.

    Each is a run folder, a logdir, an ``.xplane.pb`` or a result; a TraceError if it is not readable.
    """
    first = a if isinstance(a, Result) else open_result(Path(a))
    second = b if isinstance(b, Result) else open_result(Path(b))

    names = [None if isinstance(side, Result) else os.fspath(side) for side in (a, b)]

    return build_diff(
        (first.report, first.recording),
        (second.report, second.recording),
        names=names,
    )


@dataclass
class Watched:
    """The outcome of a ``with analyzer.watch():`` block."""

    # the traced steps, explained; None while the block runs, or if no step was traced
    result: Result | None = None
    steps: int = 0  # number of steps in the block


@contextmanager
def watch(
    out: OptionalPath = None,
    *,
    steps: int = SCRIPT_STEPS,
    warmup: int = SCRIPT_WARMUP_STEPS,
    name: str = "watch",
    force: bool = False,
    on_oom: OptionalPath = None,
) -> Iterator[Watched]:
    """Find the training or inference steps in the block, trace a few, and explain them.

    If a later step runs out of memory, the report also names the buffers that were alive.

    Args:
        out: The run folder, with ``report.html`` and ``report.json``; default ``traces/NAME-TIME``.
        steps, warmup: Number of steps to trace, and of steps before them.
        name: Name of the steps in the report.
        force: Replace an earlier run in ``out``.
        on_oom: The run folder if a step runs out of memory. Without ``out``, nothing is written unless
            that happens.

    Raises:
        InputError: a folder cannot be used, or another block is active.
        TargetError: TensorFlow was imported with an allocator that records no memory events.
    """
    watched = Watched()
    block = begin_watch(
        watched,
        out,
        on_oom,
        steps=steps,
        warmup=warmup,
        name=name,
        force=force,
    )

    try:
        yield watched
    except BaseException as error:
        end_watch(block, watched, error)
        raise

    end_watch(block, watched)


@cache
def callback_class() -> type[Any]:
    """Return ``MemoryCallback``; this imports Keras."""
    from analyzer.capture.process.launch import can_trace_here

    can_trace_here()  # chooses the allocator if TensorFlow is not imported yet
    from analyzer.capture.watch.watch_block import MemoryCallback

    MemoryCallback.begin_watch = staticmethod(begin_watch)
    MemoryCallback.end_watch = staticmethod(end_watch)

    return MemoryCallback


def begin_watch(
    watched: Watched,
    out: OptionalPath = None,
    on_oom: OptionalPath = None,
    **options: Any,
) -> WatchBlock:
    """Watch steps until ``end_watch`` or out of memory; arguments as for ``watch``."""
    from analyzer.capture.watch.watch_block import WatchBlock

    def end_at_failure(error: BaseException) -> None:
        with suppress(Exception):  # an error of ours must not replace the program's
            end_watch(block, watched, error)

    block = WatchBlock(
        _to_path(out),
        on_oom=_to_path(on_oom),
        on_failure=end_at_failure,
        **options,
    )

    return block


def end_watch(
    block: WatchBlock,
    watched: Watched,
    error: BaseException | None = None,
) -> None:
    """Explain the traced steps, save the report, fill ``watched``; ``error`` ended the steps."""
    if not block.is_running:  # it ended when a step ran out of memory
        return

    folder = block.end(error)
    if folder is None:
        watched.steps = 0 if block.note is None else block.note.steps
        return

    result = open_result(folder)
    seen = result.recording.watch
    watched.steps = 0 if seen is None else seen.steps
    watched.result = save_report(result, folder)
