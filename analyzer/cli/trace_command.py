"""``analyze trace TARGET``: capture a step's memory, or open a trace, and explain it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from analyzer.capture.targets.honoured_options import TargetForm, check_honoured, list_given_options
from analyzer.capture.targets.target_spec import parse_card_assumptions, parse_target
from analyzer.cli import shared_options as options
from analyzer.cli.gpu_list import list_gpus
from analyzer.cli.outputs import Outputs, check_not_read, deliver
from analyzer.cli.progress import progress_bar
from analyzer.cli.run_place import Place
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.capture_request import (
    DEFAULT_STEPS,
    SCRIPT_STEPS,
    SCRIPT_WARMUP_STEPS,
    CaptureOptions,
    TargetKind,
    TargetSpec,
)
from analyzer.model.contract.phantom_assumptions import ASSUMPTIONS
from analyzer.model.errors import ExitCode, InputError
from analyzer.phantom.phantom_environment import parse_cards
from analyzer.report.result import Result
from analyzer.session.engines.work import WorkEngine, local_cores
from analyzer.session.hosts.many_hosts import open_hosts
from analyzer.session.opening import open_result


@options.taking_groups
# Long: its options are its parameters.
def trace(
    target: Annotated[
        str,
        typer.Argument(
            help="keras:NAME, file.py:name, package.module:name, a .keras or .h5 file, a SavedModel "
            "folder; a whole script: script.py; or a logdir, run folder or .xplane.pb to open.",
            show_default=False,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="A script's own arguments, after --: analyze trace train.py -- --epochs 2.",
            show_default=False,
        ),
    ] = None,
    *,
    batch_size: options.BatchSize = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Steps to trace; default {DEFAULT_STEPS}, of a script {SCRIPT_STEPS}.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Of a script: steps before those that are traced; default {SCRIPT_WARMUP_STEPS}.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    step: options.StepOptions,
    device: Annotated[
        str,
        typer.Option(
            help="cpu or gpu; default a GPU where there is one.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = "",
    gpu: Annotated[
        str,
        typer.Option(
            help="Run on a card that is not there, with TensorFlow's own GPU runtime: t4, a100-80gb, "
            "2xt4 ... (Linux on x86-64). --limit and --growth are then TensorFlow's own. "
            "`--gpu list` lists all.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
            callback=list_gpus,
            is_eager=True,
        ),
    ] = "",
    inter_op_threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads that run ops side by side; 1 makes runs repeatable.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="With --gpu: what to take for what the card's libraries would say: "
            f"{', '.join(one.name for one in ASSUMPTIONS)}. Repeatable.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    place: Place,
    outputs: Outputs,
    replay: options.ReplayOptions,
    host: Annotated[
        str,
        typer.Option(
            help="Which host's file, where a logdir has several.",
            rich_help_panel=options.RESULT,
            show_default=False,
        ),
    ] = "",
    allocator: Annotated[
        str,
        typer.Option(
            help="Which allocator; default the device's.",
            rich_help_panel=options.RESULT,
            show_default=False,
        ),
    ] = "",
    scheduler: options.Scheduler = "",
) -> None:
    """Capture the memory of a step, or open a trace, and say where it goes and what to change.

    The step runs in a process of its own, on the allocator class that a GPU uses, and is traced from
    the process's start.

    A file of Python without a name in it (script.py, not script.py:name) is
    run as Python would run it, with its own arguments, input, output and exit
    code. Its steps are found, a few are traced, and the report follows.
    """
    outputs.check()
    spec = parse_target(target, scripts=True)
    check_not_read(outputs.paths, spec.source)
    options.check_choice("--device", device, ("cpu", "gpu"))
    chosen = replace(
        step.captured(),
        steps=steps,
        batch_size=batch_size,
        inter_op_threads=inter_op_threads,
        device=device,
        gpu=gpu,
    )
    what_if = replay.what_if
    if not gpu or spec.kind is TargetKind.TRACE:
        options.refuse_given(
            "cannot be honoured: only of a card that is not there anything is assumed",
            "Name the card with --gpu, and a model or a step to run on it.",
            assume=bool(assume),
        )
    if gpu and spec.kind is not TargetKind.TRACE:
        if device:
            raise InputError("--device and --gpu: a phantom card is a GPU.", hint="Leave one out.")
        parse_cards(gpu)
        chosen = replace(
            chosen,
            memory_limit_bytes=what_if.memory_limit_bytes,
            growth=what_if.growth,
            assume=parse_card_assumptions(assume or []),
        )
        what_if = replace(what_if, memory_limit_bytes=None, growth=None)
    if spec.kind is TargetKind.SCRIPT:
        options.refuse_given(
            "cannot be honoured: a script is not there to be read yet",
            "Leave it out.",
            host=host,
            allocator=allocator,
        )
        place.check()
        from analyzer.cli.scripts.script_trace import trace_a_script

        trace_a_script(spec, chosen, tuple(arguments or ()), warmup, what_if, place, outputs)
    if arguments:
        raise InputError(
            f"{spec.text} is no script: {arguments[0]!r} and what follows cannot be passed to it.",
            hint="Leave it out; options stand before --.",
        )
    options.refuse_given(
        f"cannot be honoured: {spec.text} is no script", "Leave it out.", warmup=warmup
    )
    if spec.kind is TargetKind.TRACE:
        check_honoured(spec.text, TargetForm.TRACE, list_given_options(chosen))
        place.refuse_for(spec)
    else:
        options.refuse_given(
            f"cannot be honoured: that chooses from a trace, and {spec.text} is none yet",
            "Leave it out, or open the trace afterwards.",
            host=host,
            allocator=allocator,
            scheduler=scheduler,
        )
    place.check()
    with place.made(spec) as folder:
        result = _result(
            spec,
            chosen,
            folder,
            place.force,
            host,
            allocator,
            what_if,
            engine=WorkEngine(scheduler=scheduler, workers=local_cores()),
            search=outputs.has_files,
        )
        deliver(place.seen(result), outputs)
    if spec.kind is not TargetKind.TRACE:
        place.say(
            "report.html, report.json, and a TensorBoard logdir",
            "trace",
            result.folder or folder,
            quiet=outputs.quiet,
        )
    _exit_where_bad(result, spec)


def _exit_where_bad(result: Result, spec: TargetSpec) -> None:
    """Exit with the step's own code where it failed, with 3 where it does not fit a limit asked for."""
    if result.exit_code is not ExitCode.OK and spec.kind is not TargetKind.TRACE:
        raise typer.Exit(int(result.exit_code))
    if result.is_over_limit:
        raise typer.Exit(int(ExitCode.OVER_LIMIT))


def _result(
    spec: TargetSpec,
    chosen: CaptureOptions,
    out: Path,
    force: bool,
    host: str,
    allocator: str,
    what_if: WhatIf,
    *,
    engine: WorkEngine,
    search: bool,
) -> Result:
    with progress_bar() as progress:
        if spec.kind is TargetKind.TRACE and not host:
            return open_hosts(
                Path(spec.path),
                allocator=allocator,
                what_if=what_if,
                search=search,
                engine=engine,
                progress=progress,
            )
        if spec.kind is TargetKind.TRACE:
            return open_result(
                Path(spec.path),
                host=host,
                allocator=allocator,
                what_if=what_if,
                search=search,
                progress=progress,
            )
        from analyzer.session.target_results import trace_target

        return trace_target(
            spec,
            chosen,
            out,
            force=force,
            what_if=what_if,
            progress=progress,
        )
