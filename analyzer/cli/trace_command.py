"""``analyze trace TARGET``: capture the memory of a step, or open a trace, and explain it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from analyzer.capture.targets.target_spec import (
    TargetForm,
    check_honoured,
    list_given_options,
    name_module,
    parse_card_assumptions,
    parse_target,
)
from analyzer.cli import shared_options as options
from analyzer.cli.gpu_list import list_gpus
from analyzer.cli.outputs import Outputs, RunPlace
from analyzer.cli.stdout import progress_bar
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.capture_request import (
    ASSUMPTIONS,
    DEFAULT_STEPS,
    SCRIPT_STEPS,
    SCRIPT_WARMUP_STEPS,
    CaptureOptions,
    TargetKind,
    TargetSpec,
    WatchRequest,
)
from analyzer.model.errors import ExitCode, InputError
from analyzer.phantom.phantom_environment import parse_cards
from analyzer.report.result import Result
from analyzer.session.many_hosts import open_hosts
from analyzer.session.work_engine import WorkEngine, local_cores

Target = Annotated[
    str,
    typer.Argument(
        help="keras:NAME, file.py:name, package.module:name, a .keras or .h5 file, a SavedModel "
        "folder; a whole script: script.py; or a logdir, run folder or .xplane.pb to open.",
        show_default=False,
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        help="Arguments of a script, after --: analyze trace train.py -- --epochs 2.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Options of a capture that only ``trace`` has."""

    batch_size: options.BatchSize = None
    steps: Annotated[
        int | None,
        options.in_device(
            f"Steps to trace; default {DEFAULT_STEPS}, {SCRIPT_STEPS} in a script.", min=1
        ),
    ] = None
    warmup: Annotated[
        int | None,
        options.in_device(
            f"In a script: steps before the traced ones; default {SCRIPT_WARMUP_STEPS}.", min=1
        ),
    ] = None
    device: Annotated[
        str, options.in_device("cpu or gpu; default a GPU if the machine has one.")
    ] = ""
    gpu: Annotated[
        str,
        options.in_device(
            "Run on a simulated card with TensorFlow's own GPU runtime: t4, a100-80gb, 2xt4 ... "
            "(Linux on x86-64). --limit and --growth then configure TensorFlow itself. `--gpu list` "
            "lists all cards.",
            callback=list_gpus,
            is_eager=True,
        ),
    ] = ""
    inter_op_threads: options.InterOpThreads = None
    module: Annotated[
        bool, options.in_step("TARGET is a module to run as a script, as with python -m.", "-m")
    ] = False
    assume: Annotated[
        list[str] | None,
        options.in_device(
            "With --gpu: replace an answer of the card's libraries: "
            f"{', '.join(one.name for one in ASSUMPTIONS)}. Repeatable.",
            metavar="NAME=N",
            is_rare=True,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options that select data of an existing trace."""

    host: Annotated[
        str,
        options.in_result(
            "Host to open, if a logdir has several; default all of them.", is_rare=True
        ),
    ] = ""
    allocator: Annotated[
        str, options.in_result("Allocator to report; default the device's own.", is_rare=True)
    ] = ""
    scheduler: options.Scheduler = ""
    graph_of: Annotated[
        str,
        options.in_result(
            "With a trace: the model or step it is of, such as train.py:build_model; joins its graph "
            "by op name.",
            "--target",
            metavar="TARGET",
        ),
    ] = ""
    redact: Annotated[
        bool,
        options.in_result(
            "With a trace: leave out names and paths, to share the result.", "--redact"
        ),
    ] = False


def trace(
    target: Target,
    arguments: Arguments = None,
    *,
    capture: TraceOptions,
    step: options.StepOptions,
    place: RunPlace,
    outputs: Outputs,
    replay: options.ReplayOptions,
    reading: ReadOptions,
    project: options.ProjectDefaults,
) -> None:
    """Capture the memory of a step, or open a trace, and explain its use and how to reduce it.

    The step runs in its own process, on the allocator class that a GPU uses, and is traced from the
    start of the process.

    A Python file without a name (script.py, not script.py:name) runs as Python would run it, with its
    own arguments, input, output and exit code. A few of its steps are traced, and the report follows.
    """
    spec = name_module(target) if capture.module else parse_target(target, scripts=True)
    outputs.check(spec.source)
    if spec.kind is TargetKind.TRACE:
        capture, step = project.drop(capture), project.drop(step)
    chosen, what_if = _capture_options(spec, capture, step, replay)
    place.check()
    _check_reading(spec, chosen, reading, place)
    if spec.kind is TargetKind.SCRIPT:
        from analyzer.cli.script_trace import trace_script_file

        request = WatchRequest(
            script=spec.path,
            is_module=capture.module,
            folder="",
            arguments=tuple(arguments or ()),
            steps=SCRIPT_STEPS if chosen.steps is None else chosen.steps,
            warmup=SCRIPT_WARMUP_STEPS if capture.warmup is None else capture.warmup,
            options=chosen,
        )
        trace_script_file(spec, request, what_if, place, outputs)
    if arguments:
        raise InputError(
            f"{spec.text} is not a script and takes no arguments ({arguments[0]!r}).",
            hint="Leave them out; options come before --.",
        )
    options.refuse_options(
        "cannot be used without a script", "Leave it out.", warmup=capture.warmup
    )
    with place.folder_for(spec) as folder:
        result = _make_result(spec, chosen, folder, place, reading, what_if, outputs)
        if reading.redact:
            from analyzer.report.redaction import redact_result

            result = redact_result(result)
        place.conclude(result, spec, folder, outputs)
    if result.exit_code is not ExitCode.OK and spec.kind is not TargetKind.TRACE:
        raise typer.Exit(int(result.exit_code))
    if result.is_over_limit:
        raise typer.Exit(int(ExitCode.OVER_LIMIT))


def _capture_options(
    spec: TargetSpec,
    capture: TraceOptions,
    step: options.StepOptions,
    replay: options.ReplayOptions,
) -> tuple[CaptureOptions, WhatIf]:
    """Return the capture's options and the replay's settings.

    On a simulated card, limit and growth configure TensorFlow instead of the replay.
    """
    options.check_choice("--device", capture.device, ("cpu", "gpu"))
    chosen = replace(
        step.to_capture(),
        steps=capture.steps,
        batch_size=capture.batch_size,
        inter_op_threads=capture.inter_op_threads,
        device=capture.device,
        gpu=capture.gpu,
    )
    what_if = replay.what_if
    if not capture.gpu or spec.kind is TargetKind.TRACE:
        options.refuse_options(
            "cannot be used without a simulated card",
            "Add --gpu NAME, and name a model or a step.",
            assume=bool(capture.assume),
        )
        return chosen, what_if
    if capture.device:
        raise InputError(
            "--device and --gpu exclude each other: a simulated card is a GPU.",
            hint="Leave one out.",
        )
    parse_cards(capture.gpu)
    chosen = replace(
        chosen,
        memory_limit_bytes=what_if.memory_limit_bytes,
        growth=what_if.growth,
        assume=parse_card_assumptions(capture.assume or []),
    )
    return chosen, replace(what_if, memory_limit_bytes=None, growth=None)


def _check_reading(
    spec: TargetSpec, chosen: CaptureOptions, reading: ReadOptions, place: RunPlace
) -> None:
    """Refuse options that do not apply to the target."""
    if spec.kind is TargetKind.TRACE:
        if not reading.graph_of:
            check_honoured(spec.text, TargetForm.TRACE, list_given_options(chosen))
            reason = f"cannot be used with {spec.text}, which shows the step as it ran"
            hint = "Leave it out; the page of --html FILE judges the step on other cards."
            options.refuse_options(reason, hint, gpu=chosen.gpu)
        place.refuse_for(spec)
        return
    options.refuse_options(
        f"cannot be used with {spec.text}, which is not a trace",
        "Leave them out, or open the trace afterwards.",
        host=reading.host,
        allocator=reading.allocator,
        scheduler=reading.scheduler,
        target=reading.graph_of,
        redact=reading.redact,
    )


def _make_result(
    spec: TargetSpec,
    chosen: CaptureOptions,
    out: Path,
    place: RunPlace,
    reading: ReadOptions,
    what_if: WhatIf,
    outputs: Outputs,
) -> Result:
    """Open the trace, or capture the target into ``out``."""
    with progress_bar(outputs.progress) as progress:
        if spec.kind is not TargetKind.TRACE:
            from analyzer.session.target_results import trace_target

            save = not place.no_save
            force = outputs.force
            return trace_target(
                spec, chosen, out, force=force, save=save, what_if=what_if, progress=progress
            )
        shared: dict[str, Any] = {
            "host": reading.host,
            "allocator": reading.allocator,
            "what_if": what_if,
            "search": outputs.has_files,
            "progress": progress,
        }
        if reading.graph_of:
            from analyzer.session.target_graph import open_with_target

            joined = parse_target(reading.graph_of)
            return open_with_target(Path(spec.path), joined, chosen, **shared)
        engine = WorkEngine(scheduler=reading.scheduler, workers=local_cores())
        return open_hosts(Path(spec.path), engine=engine, **shared)
