"""The functions of ``import analyzer`` that trace, estimate, open, compare and watch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.capture.process.run_folders import make_default_path
from analyzer.capture.targets.target_spec import (
    TargetForm,
    check_honoured,
    check_steps,
    parse_target,
)
from analyzer.model.contract.child_messages import (
    SCRIPT_STEPS,
    SCRIPT_WARMUP_STEPS,
    CaptureOptions,
    StepOptions,
)
from analyzer.model.contract.fields import StrPath
from analyzer.model.errors import InputError
from analyzer.report.result import Diff, Result, build_diff
from analyzer.session.opening import open_estimate, open_hosts, open_result
from analyzer.session.target_results import (
    capture_object,
    estimate_target,
    explain_folder,
    save_report,
    trace_target,
)
from analyzer.simulated_card.card_environment import parse_cards

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from analyzer.capture.watch.watch_block import WatchBlock

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
        from analyzer.capture.process.launch import capture_live

        folder = capture_live(target, options, _to_path(out), force=force)
        return save_report(open_result(folder), folder)

    spec = parse_target(os.fspath(target))
    if not spec.is_trace:
        place = _to_path(out) or make_default_path(spec)
        return trace_target(spec, options, place, force=force)

    check_honoured(spec.text, TargetForm.TRACE, options)

    if options.gpu:
        raise InputError(
            f"{spec.text} is an existing trace and cannot run on another card.",
            hint="Leave gpu out, or name a model or a step.",
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
