"""``analyze estimate TARGET``: the memory that a step will need, with nothing of it run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from analyzer.capture.targets.honoured_options import TargetForm, check_honoured, list_given_options
from analyzer.capture.targets.target_spec import parse_assumptions, parse_target
from analyzer.cards import find_gpu
from analyzer.cli import shared_options as options
from analyzer.cli.gpu_list import list_gpus
from analyzer.cli.outputs import Outputs, check_not_read, deliver
from analyzer.cli.progress import progress_bar
from analyzer.cli.run_place import Place
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.capture_request import (
    DEFAULT_STEPS,
    CaptureOptions,
    TargetKind,
    TargetSpec,
)
from analyzer.model.contract.run_note import MOST_STEPS, read_run_file
from analyzer.model.errors import ExitCode, InputError
from analyzer.report.result import Result
from analyzer.session.opening import open_estimate, open_finished
from analyzer.simulate.compiler.card_options import TIME_OUT_S, CardOptions
from analyzer.tracing.parse.logdir import RUN_FILE

_FOR_CPU: Final = "Predicting for this machine's CPU; --gpu NAME predicts for a card."


@options.taking_groups
# Long: its options are its parameters.
def estimate(
    target: Annotated[
        str,
        typer.Argument(
            help="keras:NAME, file.py:name, package.module:name, a .keras or .h5 file, a SavedModel "
            "folder; or the folder of an earlier estimate.",
            show_default=False,
        ),
    ],
    steps: Annotated[
        int | None,
        typer.Option(
            help=f"Steps to predict, 1 to {MOST_STEPS}, default {DEFAULT_STEPS}; more only if a later "
            "one differs.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    *,
    batch_size: options.BatchSize = None,
    step: options.StepOptions,
    device: Annotated[
        str,
        typer.Option(
            help="cpu or gpu; default gpu where --gpu names a card, else cpu.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = "",
    gpu: Annotated[
        str,
        typer.Option(
            help="The card to predict for, such as t4 or a100-80gb; none is needed here. "
            "`--gpu list` lists all.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
            callback=list_gpus,
            is_eager=True,
        ),
    ] = "",
    threads: Annotated[
        int | None,
        typer.Option(
            help="Threads that one op may use, which size some scratch; default this machine's.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    inter_op_threads: Annotated[
        int | None,
        typer.Option(
            help="Threads that run ops side by side; default this machine's, and one in the range.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    both_products: Annotated[
        bool | None,
        typer.Option(
            "--both-products/--one-product",
            help="Compile for the card with cuBLAS' matrix products too, as a range; default for small "
            "steps.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="What to take for what the data decide: trips of a loop, the size of a result, the "
            "branch; by the name that the estimate says. Repeatable.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    compile_timeout: Annotated[
        int | None,
        typer.Option(
            help=f"Seconds that one compilation for a card may take; default {int(TIME_OUT_S)}.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    place: Place,
    outputs: Outputs,
    replay: options.ReplayOptions,
    remedies: Annotated[
        str,
        typer.Option(
            "--what-if",
            metavar="NAME,…",
            help="Capture and estimate the step with changes, too: all, or half-batch, mixed-float16, "
            "accumulate-4, remat-activations, optimizer-sgd, freeze …; a wrong name lists them.",
            rich_help_panel=options.REPLAY,
            show_default=False,
        ),
    ] = "",
) -> None:
    """Predict the memory of a step without running it, and say where it goes and what to change.

    The model is made without its weights' bytes, the step is traced and its graph optimised as for a
    run; the executor's order, the kernels and the allocator are simulated.
    """
    outputs.check()
    options.check_choice("--device", device, ("cpu", "gpu"))
    spec = parse_target(target)
    check_not_read(outputs.paths, spec.source)
    card = _card(device, gpu)
    chosen = replace(
        step.captured(),
        steps=steps,
        batch_size=batch_size,
        inter_op_threads=inter_op_threads,
        device="gpu" if card else "cpu",
        gpu=card,
        assume=parse_assumptions(assume or []),
    )
    what_if = replay.what_if
    if card and spec.kind is not TargetKind.TRACE:
        chosen = replace(chosen, memory_limit_bytes=what_if.memory_limit_bytes)
    if spec.kind is TargetKind.TRACE:
        check_honoured(spec.text, TargetForm.ESTIMATE, list_given_options(chosen))
        place.refuse_for(spec)
        options.refuse_given(
            "cannot be honoured: an earlier estimate keeps what it assumed",
            "Estimate the target itself with --assume.",
            assume=bool(assume),
        )
        options.refuse_given(
            "cannot be honoured: an earlier estimate is of one step",
            "Estimate the target itself with --what-if.",
            what_if=remedies,
        )
        if device or gpu:
            _check_noted(Path(spec.path), card)
    elif not card:
        options.refuse_given(
            "cannot be honoured: this predicts for the CPU, without a card's compiler",
            "Name a card with --gpu.",
            both_products=both_products is not None,
            compile_timeout=compile_timeout,
        )
    names = _remedies_in(remedies)
    place.check()
    compiling = CardOptions(both=both_products, time_out_s=compile_timeout or int(TIME_OUT_S))
    with place.made(spec) as folder:
        result = _result(spec, chosen, folder, place.force, threads, what_if, compiling)
        if names is not None:
            with progress_bar() as progress:
                from analyzer.fitting.search.what_if import with_remedies

                result = with_remedies(
                    result, spec, chosen, names, folder, threads=threads, progress=progress
                )
        if not card and spec.kind is not TargetKind.TRACE and not outputs.quiet:
            print(_FOR_CPU, file=sys.stderr)
        deliver(place.seen(result), outputs)
    if spec.kind is not TargetKind.TRACE:
        written = result.folder or folder
        place.say(
            "report.html, report.json, and the graph", "estimate", written, quiet=outputs.quiet
        )
    if result.is_over_limit:
        raise typer.Exit(int(ExitCode.OVER_LIMIT))


def _result(
    spec: TargetSpec,
    chosen: CaptureOptions,
    out: Path,
    force: bool,
    threads: int | None,
    what_if: WhatIf,
    compiling: CardOptions,
) -> Result:
    with progress_bar() as progress:
        if spec.kind is TargetKind.TRACE:
            asked = (threads, chosen.inter_op_threads, compiling.both)
            if not what_if.is_asked and asked == (None, None, None):
                return open_finished(Path(spec.path), progress=progress)
            return open_estimate(
                Path(spec.path),
                threads=threads,
                inter_op=chosen.inter_op_threads,
                what_if=what_if,
                card_options=compiling,
                progress=progress,
            )
        from analyzer.session.target_results import estimate_target

        return estimate_target(
            spec,
            chosen,
            out,
            force=force,
            threads=threads,
            what_if=what_if,
            card_options=compiling,
            progress=progress,
        )


def _remedies_in(text: str) -> tuple[str, ...] | None:
    """Return the remedies that are to be tried; none for all, None where none was asked for.

    Raises:
        InputError: no step has a remedy of a name.
    """
    if not text:
        return None
    from analyzer.fitting.search.what_if import names_in

    return names_in(text)


def _card(device: str, gpu: str) -> str:
    """Return the catalogue's name of the card to predict for; empty for the CPU.

    Raises:
        InputError: the options contradict each other, or no card has the name.
    """
    if device == "cpu" and gpu:
        raise InputError("--device cpu and --gpu exclude each other.", hint="Leave one out.")
    if device == "gpu" and not gpu:
        raise InputError(
            "A GPU is predicted for by its name.", hint="Name it: --gpu t4, --gpu a100-80gb."
        )
    return find_gpu(gpu).id if gpu else ""


def _check_noted(folder: Path, card: str) -> None:
    """Refuse another device than the one that the folder's graph was made for.

    Raises:
        InputError: it was made for another.
    """
    file = folder / RUN_FILE
    if not file.is_file():
        return  # it is said elsewhere that this is no estimate
    device = read_run_file(file).device
    made_for = device.id if device.kind == "gpu" else ""
    if made_for != card:
        raise InputError(
            f"{folder} holds an estimate for {made_for or 'a CPU'}, whose graph is another.",
            hint="Leave out --gpu and --device, or estimate the target itself.",
        )
