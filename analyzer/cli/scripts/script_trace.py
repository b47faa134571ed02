"""Run a user's script, report what its steps did to memory, and end with the script's exit code."""

from __future__ import annotations

import sys
from typing import NoReturn

from analyzer.capture.targets.honoured_options import TargetForm, check_honoured, list_given_options
from analyzer.capture.watch.script_launch import ScriptEnd
from analyzer.cli import ScriptStatus
from analyzer.cli.outputs import Outputs, deliver
from analyzer.cli.run_place import Place
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.capture_request import (
    SCRIPT_STEPS,
    SCRIPT_WARMUP_STEPS,
    CaptureOptions,
    TargetSpec,
    WatchRequest,
)
from analyzer.model.errors import ExitCode, LimitError
from analyzer.report.untrusted import printable
from analyzer.session.target_results import trace_script


def trace_a_script(
    spec: TargetSpec,
    chosen: CaptureOptions,
    arguments: tuple[str, ...],
    warmup: int | None,
    what_if: WhatIf,
    place: Place,
    outputs: Outputs,
) -> NoReturn:
    """Run the script, report, and end as it did.

    Args:
        spec: The script.
        chosen: How it is run.
        arguments: Its own arguments.
        warmup: Steps before those traced; None for the usual number.
        what_if: Settings of the allocator to replay under.
        place: Where the run folder goes.
        outputs: What is written besides.

    Raises:
        InputError: an option cannot be honoured.
        LimitError: the peak is above ``--max-peak``, and the script itself ended well.
        ScriptStatus: always, with the script's exit status.
    """
    check_honoured(spec.text, TargetForm.SCRIPT, list_given_options(chosen))
    request = WatchRequest(
        script=spec.path,
        folder="",
        arguments=arguments,
        steps=SCRIPT_STEPS if chosen.steps is None else chosen.steps,
        warmup=SCRIPT_WARMUP_STEPS if warmup is None else warmup,
        options=chosen,
    )
    with place.made(spec) as folder:
        end, result = trace_script(spec, request, folder, force=place.force, what_if=what_if)
        if end.fault:
            _tell_fault(end.fault)
        if result is None:
            for line in () if end.fault else _untraced(spec, request, end):
                _say(line)
            raise ScriptStatus(end.status)
        try:
            deliver(place.seen(result), outputs)
        except LimitError:
            if end.status:
                raise ScriptStatus(end.status) from None
            raise
    place.say(
        "report.html, report.json, and a TensorBoard logdir",
        "trace",
        result.folder or folder,
        quiet=outputs.quiet,
    )
    over = result.is_over_limit and not end.status
    raise ScriptStatus(int(ExitCode.OVER_LIMIT) if over else end.status)


def _untraced(spec: TargetSpec, request: WatchRequest, end: ScriptEnd) -> list[str]:
    """Return what was found of a script of which no step was traced, and what to do."""
    how = f"{spec.text} ended with exit code {end.status}"
    seen = end.seen
    python = " ".join(("python", spec.text, *request.arguments))
    if end.unread:
        return [
            f"{how}; what was traced of it tells nothing: {end.unread}",
            "Trace more steps: --steps 20.",
        ]
    if not end.has_tensorflow:
        return [
            f"{how}, and TensorFlow was never imported in it: no step was traced.",
            f"A model or a step that it defines is named behind a colon: {spec.text}:name.",
        ]
    if seen is None:
        return [
            f"{how} before any step was traced, and could not say more (kill -9, a crash in C++, exec).",
            f"Had it run out of memory: {python} 2> log, then analyze oom log.",
        ]
    if not seen.steps:
        called = sum(one.calls for one in seen.functions)
        found = f"; {called} calls of tf.functions" if called else ""
        return [
            f"{how}, and no step was found{found}.",
            "A step is a call of a tf.function (fit makes them), an optimizer applied, or gradients "
            "taken from a tape, again and again. Name a model or a step instead: "
            f"{spec.text}:name.",
        ]
    return [
        f"{how} after {seen.steps} steps; the first {request.warmup} are left out, so none was traced.",
        f"Let it make more, or give --warmup {max(seen.steps - 2, 1)}.",
    ]


def _tell_fault(text: str) -> None:
    """Say that the watching itself failed: the script was not touched by it."""
    last = next(iter(text.strip().splitlines()[::-1]), "")
    _say(f"The script ran, and watching it failed: {last}")
    _say("This is a bug; please report it with this line.")


def _say(text: str) -> None:
    print(f"analyze: {printable(text, 2000)}", file=sys.stderr)
