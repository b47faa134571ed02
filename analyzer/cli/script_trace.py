"""``analyze trace script.py``: run a script, report its memory, and exit with its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

from analyzer.capture.targets.target_spec import TargetForm, check_honoured, list_given_options
from analyzer.capture.watch.script_launch import ScriptEnd
from analyzer.cli import ScriptStatus
from analyzer.cli.outputs import Outputs, RunPlace, write_all
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.capture_request import TargetSpec, WatchRequest
from analyzer.model.errors import ExitCode, LimitError
from analyzer.model.units import format_bytes
from analyzer.report.output_files import write_text
from analyzer.report.result import Result
from analyzer.report.untrusted import printable
from analyzer.session.target_results import trace_script


def trace_script_file(
    spec: TargetSpec, request: WatchRequest, what_if: WhatIf, place: RunPlace, outputs: Outputs
) -> NoReturn:
    """Run the script, report, and exit with the script's status."""
    check_honoured(spec.text, TargetForm.SCRIPT, list_given_options(request.options))
    with place.folder_for(spec) as folder:
        end, result = trace_script(spec, request, folder, force=outputs.force, what_if=what_if)
        if end.fault:
            last = end.fault.strip().splitlines()[-1:]
            _print_line(f"The script ran; watching it failed: {''.join(last)}")
            _print_line("This is a bug; please report it with this line.")
        lines = _suggest_other_command(spec, request, end, result)
        if result is None and not (lines or end.fault or end.has_refused):
            lines = _explain_missing_trace(spec, request, end)
        for line in lines:
            _print_line(line)
        if result is None:
            _write_without_memory(spec, end, lines, outputs)
            raise ScriptStatus(end.status)
        try:
            place.conclude(result, spec, folder, outputs)
        except LimitError:
            if end.status:
                raise ScriptStatus(end.status) from None
            raise
    is_over = result.is_over_limit and not end.status
    raise ScriptStatus(int(ExitCode.OVER_LIMIT) if is_over else end.status)


def _suggest_other_command(
    spec: TargetSpec, request: WatchRequest, end: ScriptEnd, result: Result | None
) -> list[str]:
    """Return the command that a failed script may need: with a simulated card, or as a module."""
    if not end.status:
        return []
    note = end.note if result is None else result.recording.watch
    arguments = " ".join(("", "--", *request.arguments)) if request.arguments else ""
    if note is not None and note.misses_gpu and not request.options.gpu:
        return [
            "The script asks for a GPU, and TensorFlow sees none here. On a simulated card: "
            f"analyze trace {spec.text} --gpu t4{arguments}"
        ]
    package = [] if request.is_module else _find_package(Path(spec.path).absolute())
    if package and (not end.has_tensorflow or (note is not None and note.ended == "ImportError")):
        return [
            f"{spec.text} lies in a package. Its relative imports work as a module, from the folder "
            f"of the package: analyze trace -m {'.'.join(package)}{arguments}"
        ]
    return []


def _find_package(path: Path) -> list[str]:
    """Return the parts of a module's name in its package; none if it is in no package."""
    parts = [path.stem]
    while (path.parent / "__init__.py").is_file():
        path = path.parent
        parts.insert(0, path.name)
    return parts if len(parts) > 1 else []


def _explain_missing_trace(spec: TargetSpec, request: WatchRequest, end: ScriptEnd) -> list[str]:
    """Return the reason why no step was traced, and the fix."""
    ending = f"{spec.text} ended with exit code {end.status}"
    counts = end.note
    python = " ".join(("python", spec.text, *request.arguments))
    if end.unread:
        return [f"{ending}; its trace cannot be read: {end.unread}"]
    if not end.has_tensorflow:
        return [
            f"{ending} and never imported TensorFlow: no step was traced.",
            "If it runs TensorFlow in another process, name the step itself: file.py:name.",
        ]
    if counts is None:
        return [
            f"{ending} before any step was traced, without a Python error (kill -9, a crash in C++, "
            "exec).",
            f"If it ran out of memory: {python} 2> log, then analyze oom log.",
        ]
    return [
        f"{ending}, and TensorFlow allocated nothing: its own peak is "
        f"{format_bytes(max(counts.own_peaks, default=0))}.",
        "A step that it does not run can be named: file.py:name.",
    ]


def _write_without_memory(
    spec: TargetSpec, end: ScriptEnd, lines: list[str], outputs: Outputs
) -> None:
    """Write the JSON file of a program in which TensorFlow allocated nothing, if it is asked for."""
    own_peaks = None if end.note is None else max(end.note.own_peaks, default=0)
    document = {
        "kind": "program without memory",
        "target": {"text": spec.text, "kind": spec.kind.value},
        "exit_code": end.status,
        "program": {"own_peak_bytes": own_peaks},
        "says": lines,
    }
    text = json.dumps(document, indent=1) + "\n"
    write_all((outputs.json, lambda path: write_text(path, text)))


def _print_line(text: str) -> None:
    print(f"analyze: {printable(text, 2000)}", file=sys.stderr)
