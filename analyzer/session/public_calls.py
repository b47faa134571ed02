"""What ``import analyzer`` offers to call: a target, a trace or two results in, a result out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.capture.process.run_folders import make_default_path
from analyzer.capture.targets.honoured_options import TargetForm, check_honoured, list_given_options
from analyzer.capture.targets.target_spec import check_steps, parse_target
from analyzer.model.contract.capture_request import CaptureOptions, TargetKind
from analyzer.model.errors import InputError
from analyzer.phantom.phantom_environment import parse_cards
from analyzer.report.result import Result
from analyzer.session.opening import open_estimate, open_finished, open_result
from analyzer.session.target_results import (
    estimate_target,
    leave_report,
    predict_folder,
    trace_target,
    whole_or_gone,
)

if TYPE_CHECKING:
    from analyzer.report.diff_result import Diff


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
        target: As for ``trace``, or the folder of an earlier estimate.
        out: The folder for the result; default ``traces/NAME-TIME``.
        force: Replace an earlier run in ``out``.
        threads: Threads that one op may use; default this machine's.
        **options: Fields of ``CaptureOptions``.

    Raises:
        InputError: the target or ``out`` cannot be used.
    """
    chosen = CaptureOptions(**{"device": "gpu" if options.get("gpu") else "cpu", **options})
    if isinstance(target, str | os.PathLike):
        spec = parse_target(os.fspath(target))
        if spec.kind is TargetKind.TRACE:
            check_honoured(spec.text, TargetForm.ESTIMATE, list_given_options(chosen))
            if threads is None and chosen.inter_op_threads is None:
                return open_finished(Path(spec.path))
            return open_estimate(Path(spec.path), threads=threads, inter_op=chosen.inter_op_threads)
        place = Path(out) if out else make_default_path(spec)
        return estimate_target(spec, chosen, place, force=force, threads=threads)
    check_steps(chosen)
    from analyzer.capture.process.live_capture import capture_unrun

    folder = capture_unrun(target, chosen, None if out is None else Path(out), force=force)
    with whole_or_gone(folder):
        result = predict_folder(
            folder,
            lambda: capture_unrun(target, replace(chosen, cpu_plan=True), folder, force=True),
            threads=threads,
        )
        return leave_report(result, folder)


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
        **options: Fields of ``CaptureOptions``: ``steps``,
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
        parse_cards(chosen.gpu)
    if isinstance(target, str | os.PathLike):
        spec = parse_target(os.fspath(target))
        if spec.kind is TargetKind.TRACE:
            check_honoured(spec.text, TargetForm.TRACE, list_given_options(chosen))
            if chosen.gpu:
                raise InputError(
                    f"{spec.text} is a trace that exists: gpu cannot be honoured.",
                    hint="Name a model or a step to run on a card that is not there.",
                )
            return open_result(Path(spec.path))
        return trace_target(
            spec, chosen, Path(out) if out else make_default_path(spec), force=force
        )
    from analyzer.capture.process.live_capture import capture_live

    folder = capture_live(target, chosen, None if out is None else Path(out), force=force)
    return leave_report(open_result(folder), folder)


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
