"""``analyze trace script.py``: run a script, report its memory, and exit with its exit code."""

from __future__ import annotations

import sys
from typing import NoReturn

from analyzer.capture.targets.honoured_options import TargetForm, check_honoured, list_given_options
from analyzer.capture.watch.script_launch import ScriptEnd
from analyzer.cli import ScriptStatus
from analyzer.cli.outputs import Outputs, deliver
from analyzer.cli.run_place import RunPlace
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


def trace_script_file(
    spec: TargetSpec,
    chosen: CaptureOptions,
    arguments: tuple[str, ...],
    warmup: int | None,
    what_if: WhatIf,
    place: RunPlace,
    outputs: Outputs,
) -> NoReturn:
    """Run the script, report, and exit with the script's status.

    Args:
        spec: The script.
        chosen: Options of the capture.
        arguments: The script's own arguments.
        warmup: Steps before the traced ones; None for the default.
        what_if: Allocator settings for the replay.
        place: The run folder.
        outputs: Other outputs.

    Raises:
        InputError: an option does not apply to scripts.
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
    with place.folder_for(spec) as folder:
        end, result = trace_script(spec, request, folder, force=outputs.force, what_if=what_if)
        if end.fault:
            _report_fault(end.fault)
        if result is None:
            for line in () if end.fault else _explain_missing_trace(spec, request, end):
                _print_line(line)
            raise ScriptStatus(end.status)
        try:
            deliver(place.without_lost_folder(result), outputs)
        except LimitError:
            if end.status:
                raise ScriptStatus(end.status) from None
            raise
    place.announce(
        "report.html, report.json, and a TensorBoard logdir",
        "trace",
        result.folder or folder,
        quiet=outputs.quiet,
    )
    is_over = result.is_over_limit and not end.status
    raise ScriptStatus(int(ExitCode.OVER_LIMIT) if is_over else end.status)


def _explain_missing_trace(spec: TargetSpec, request: WatchRequest, end: ScriptEnd) -> list[str]:
    """Return the reason why no step was traced, and the fix."""
    ending = f"{spec.text} ended with exit code {end.status}"
    counts = end.note
    python = " ".join(("python", spec.text, *request.arguments))
    if end.unread:
        return [
            f"{ending}; its trace cannot be read: {end.unread}",
            "Trace more steps: --steps 20.",
        ]
    if not end.has_tensorflow:
        return [
            f"{ending} and never imported TensorFlow: no step was traced.",
            f"Name a model or a step in it after a colon: {spec.text}:name.",
        ]
    if counts is None:
        return [
            f"{ending} before any step was traced, without a Python error (kill -9, a crash in C++, "
            "exec).",
            f"If it ran out of memory: {python} 2> log, then analyze oom log.",
        ]
    if not counts.steps:
        calls = sum(one.calls for one in counts.functions)
        suffix = f" in {calls} calls of tf.functions" if calls else ""
        return [
            f"{ending}, and no step was found{suffix}.",
            "A step is a repeated call of a tf.function (as in fit), an optimizer update, or "
            f"a gradient of a tape. Name a model or a step instead: {spec.text}:name.",
        ]
    return [
        f"{ending} after {counts.steps} steps; the first {request.warmup} are warm-up, so none was "
        "traced.",
        f"Run more steps, or add --warmup {max(counts.steps - 2, 1)}.",
    ]


def _report_fault(text: str) -> None:
    """Report a failure of the watching itself, which leaves the script untouched."""
    last = next(iter(text.strip().splitlines()[::-1]), "")
    _print_line(f"The script ran; watching it failed: {last}")
    _print_line("This is a bug; please report it with this line.")


def _print_line(text: str) -> None:
    print(f"analyze: {printable(text, 2000)}", file=sys.stderr)
