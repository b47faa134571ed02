"""Captures for an estimate: a run on a simulated card if possible, otherwise the graph of the step.

TensorFlow runs the step on NVIDIA cards if this machine can simulate them. The graph alone is taken for
the CPU and AMD cards, on other machines, for live functions, and if the step fails while it runs.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from analyzer.capture.process.fork_servers import ForkServers
from analyzer.capture.process.launch import (
    capture,
    capture_live,
    capture_unrun,
)
from analyzer.capture.process.run_folders import remove_run
from analyzer.cards import check_limit
from analyzer.model.contract.capture_request import (
    ASSUMPTIONS,
    CaptureKind,
    CaptureOptions,
    TargetSpec,
)
from analyzer.model.contract.run_note import read_run_file
from analyzer.model.errors import FailureKind, InputError, StepOutOfMemory, TargetError
from analyzer.simulated_card.card_environment import (
    check_simulated_card,
    find_smallest_card,
    normalize_cards,
    parse_cards,
)
from analyzer.tracing.parse.logdir import RUN_FILE

# Environment variable: ``1`` estimates cards without a run, for tests and benchmarks.
STATIC = "TF_MEMORY_ANALYZER_STATIC"

_NO_RUN = (
    "Estimated op by op without a run on a simulated card ({}). XLA may need less."
)

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
            is_avoidable = isinstance(error, _RunError) or error.kind in _OF_RUN
            if not is_avoidable or "," in options.gpu:
                raise

            failure = error
            reason = error.message.rstrip(".")

    if "," in options.gpu:
        raise InputError(
            f"Several cards need a run on simulated ones ({reason}).",
            hint="Name one.",
        )

    options = replace(options, jit=False, note=_NO_RUN.format(reason))

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


def _run_on_card(capture_step: CaptureStep, options: CaptureOptions) -> Path:
    """Run the step on the card, and again with room for any step if it does not fit."""
    try:
        return _run_to_end(capture_step, options)
    except StepOutOfMemory:
        return _run_to_end(
            capture_step, replace(options, growth=None, is_unlimited=True)
        )


def _run_to_end(capture_step: CaptureStep, options: CaptureOptions) -> Path:
    """Return the folder of a run; without its error, which is raised instead."""
    folder = capture_step(options, "run")

    failure = read_run_file(folder / RUN_FILE).error
    if failure is None:
        return folder

    remove_run(folder)
    if failure.kind is FailureKind.OUT_OF_MEMORY:
        raise StepOutOfMemory(failure.message)

    if failure.kind is FailureKind.EXITED:
        raise TargetError(failure.message, kind=failure.kind)

    raise _RunError(failure.message, kind=failure.kind)
