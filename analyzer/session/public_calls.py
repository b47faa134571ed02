"""The functions of ``import analyzer`` that trace, estimate, open and compare."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from analyzer.capture.process.run_folders import make_default_path
from analyzer.capture.targets.target_spec import (
    TargetForm,
    check_honoured,
    check_steps,
    list_given_options,
    parse_target,
)
from analyzer.model.contract.capture_request import CaptureOptions, TargetKind
from analyzer.model.contract.report.subject import Kind
from analyzer.model.errors import InputError
from analyzer.phantom.phantom_environment import parse_cards
from analyzer.report.result import Result
from analyzer.session.many_hosts import open_hosts
from analyzer.session.opening import open_estimate, open_finished, open_result
from analyzer.session.target_graph import open_with_estimate
from analyzer.session.target_results import (
    estimate_target,
    predict_folder,
    remove_on_failure,
    save_report,
    trace_target,
)

if TYPE_CHECKING:
    from analyzer.report.diff_sections import Diff

_Parameters = ParamSpec("_Parameters")
_Value = TypeVar("_Value")


def suggest_keywords(call: Callable[_Parameters, _Value]) -> Callable[_Parameters, _Value]:
    """Make a public function name the closest keyword if one is misspelled."""
    names = list(inspect.signature(call).parameters)

    @functools.wraps(call)
    def checked(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Value:
        for name in kwargs:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
                hint = f"did you mean {' or '.join(map(repr, close))}" if close else "see its help"
                raise TypeError(f"{call.__name__}() has no keyword {name!r}; {hint}")
        return call(*args, **kwargs)

    return checked


def collect_options(arguments: Mapping[str, Any]) -> CaptureOptions:
    """Return the options among a public function's arguments, which are its ``locals()``.

    Keywords and fields of ``CaptureOptions`` have the same names; an omitted mapping is empty.
    """
    values = {one.name: arguments.get(one.name, one.default) for one in fields(CaptureOptions)}
    mappings = {name: dict(arguments.get(name) or {}) for name in ("shapes", "assume")}
    return CaptureOptions(**(values | mappings))


@suggest_keywords
def trace(
    target: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    steps: int | None = None,
    batch_size: int | None = None,
    mode: str = "",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    optimizer: str = "",
    loss: str = "",
    jit: bool | None = None,
    dtype_policy: str = "",
    inter_op_threads: int | None = None,
    device: str = "",
    gpu: str = "",
    memory_limit_bytes: int | None = None,
    growth: bool | None = None,
    assume: Mapping[str, int] | None = None,
) -> Result:
    """Run a step, capture its memory and explain it; or open an existing trace.

    Args:
        target: ``keras:NAME``, ``file.py:name``, ``module:name``, the path of a saved model or of a
            trace; or a live Keras model, a ``tf.function``, or ``(tf_function, args)``.
        out: The run folder; default ``traces/NAME-TIME``.
        force: Replace an earlier run in ``out``.
        steps: Steps to trace; None for the default.
        batch_size: Size of an open batch axis; None for the default.
        mode: ``train`` or ``infer``; empty for the target's own.
        shapes: Axes of inputs by name; the key ``""`` stands for the only input.
        optimizer: Keras optimizer; empty for the compiled one or a default.
        loss: Keras loss; empty for the compiled one or a loss that fits the output.
        jit: Compile with XLA, or not; None for the model's own choice.
        dtype_policy: Keras dtype policy for building the model; empty for Keras' own.
        inter_op_threads: Threads that run ops in parallel; None for TensorFlow's choice.
        device: ``cpu`` or ``gpu``; empty for a GPU if the machine has one.
        gpu: Run on a simulated card with TensorFlow's GPU runtime: ``t4``, ``2xt4``.
        memory_limit_bytes: TensorFlow's memory limit; None for its default.
        growth: Whether the pool of a simulated card grows on demand; None for no.
        assume: Answers of the simulated card's libraries, by name.

    Returns:
        The result; its ``folder`` opens in TensorBoard.

    Raises:
        InputError: the target or ``out`` cannot be used.
    """
    return _trace(target, collect_options(locals()), None if out is None else Path(out), force)


def _trace(target: Any, options: CaptureOptions, out: Path | None, force: bool) -> Result:
    if options.gpu:
        parse_cards(options.gpu)
    if isinstance(target, str | os.PathLike):
        spec = parse_target(os.fspath(target))
        if spec.kind is TargetKind.TRACE:
            check_honoured(spec.text, TargetForm.TRACE, list_given_options(options))
            if options.gpu:
                raise InputError(
                    f"{spec.text} is an existing trace and cannot run on another card.",
                    hint="Leave gpu out, or name a model or a step.",
                )
            return open_hosts(Path(spec.path))
        folder = out or make_default_path(spec)
        return trace_target(spec, options, folder, force=force)
    from analyzer.capture.process.live_capture import capture_live

    folder = capture_live(target, options, out, force=force)
    return save_report(open_result(folder), folder)


@suggest_keywords
def estimate(
    target: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    threads: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    mode: str = "",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    optimizer: str = "",
    loss: str = "",
    jit: bool | None = None,
    dtype_policy: str = "",
    inter_op_threads: int | None = None,
    device: str = "",
    gpu: str = "",
    memory_limit_bytes: int | None = None,
    assume: Mapping[str, int] | None = None,
) -> Result:
    """Predict the memory of a step on the CPU or a card without running it.

    Args:
        target: As for ``trace``, or the folder of an earlier estimate.
        out: The folder for the result; default ``traces/NAME-TIME``.
        force: Replace an earlier run in ``out``.
        threads: Threads per op; None for this machine's default.
        steps, batch_size, mode, shapes, optimizer, loss, jit, dtype_policy: As for ``trace``.
        inter_op_threads: Threads that run ops in parallel; None for this machine's default.
        device: ``cpu`` or ``gpu``; empty for a card if ``gpu`` names one.
        gpu: The card, such as ``t4`` or ``a100-80gb``; empty for the CPU.
        memory_limit_bytes: TensorFlow's memory limit on the card; None for its default.
        assume: Values that depend on data, by name: loop iterations, sizes of results, branches.

    Raises:
        InputError: the target or ``out`` cannot be used.
    """
    device = device or ("gpu" if gpu else "cpu")
    options = collect_options(locals())
    return _estimate(target, options, None if out is None else Path(out), force, threads)


def _estimate(
    target: Any, options: CaptureOptions, out: Path | None, force: bool, threads: int | None
) -> Result:
    if isinstance(target, str | os.PathLike):
        spec = parse_target(os.fspath(target))
        if spec.kind is TargetKind.TRACE:
            inter_op = options.inter_op_threads
            check_honoured(spec.text, TargetForm.ESTIMATE, list_given_options(options))
            if threads is None and inter_op is None:
                return open_finished(Path(spec.path))
            return open_estimate(Path(spec.path), threads=threads, inter_op=inter_op)
        place = out or make_default_path(spec)
        return estimate_target(spec, options, place, force=force, threads=threads)
    check_steps(options)
    from analyzer.capture.process.live_capture import capture_unrun

    folder = capture_unrun(target, options, out, force=force)
    with remove_on_failure(folder):
        result = predict_folder(
            folder,
            lambda: capture_unrun(target, replace(options, cpu_plan=True), folder, force=True),
            threads=threads,
        )
        return save_report(result, folder)


@suggest_keywords
def open_trace(path: str | os.PathLike[str], *, host: str = "", allocator: str = "") -> Result:
    """Open a trace: an ``.xplane.pb``, a run folder or a TensorBoard logdir.

    A trace of several hosts compares all of them and explains the one with the least room.
    TensorFlow is not imported.

    Args:
        path: The trace.
        host: Start of the name of one host's file; empty for all hosts.
        allocator: The allocator to explain; empty for the device's own.

    Raises:
        TraceError: there is no readable trace.
    """
    return open_hosts(Path(path), host=host, allocator=allocator)


def diff(a: str | os.PathLike[str] | Result, b: str | os.PathLike[str] | Result) -> Diff:
    """Compare the peaks of two steps: new, removed and grown tensors from ``a`` to ``b``.

    Args:
        a: The older step: a run folder, a logdir, an ``.xplane.pb``, or a result.
        b: The newer step.

    Raises:
        TraceError: there is no readable trace.
    """
    from analyzer.report.diff_sections import build_diff

    first = a if isinstance(a, Result) else open_result(Path(a))
    if isinstance(b, Result):
        second = b
    elif first.report.kind is Kind.ESTIMATE and first.folder is not None:
        second = open_with_estimate(Path(b), first.folder)
    else:
        second = open_result(Path(b))
    names = [None if isinstance(side, Result) else os.fspath(side) for side in (a, b)]
    return build_diff(
        (first.report, first.recording), (second.report, second.recording), names=names
    )
