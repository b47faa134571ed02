"""``analyze estimate TARGET``: predict the memory of a step without running it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from analyzer.capture.targets.target_spec import (
    TargetForm,
    check_honoured,
    list_given_options,
    parse_assumptions,
    parse_target,
)
from analyzer.cards import find_gpu
from analyzer.cli import shared_options as options
from analyzer.cli.gpu_list import list_gpus, name_variant
from analyzer.cli.outputs import Outputs, RunPlace
from analyzer.cli.stdout import progress_bar
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

_FOR_CPU: Final = "Estimate for this machine's CPU; add --gpu NAME for a card."


Target = Annotated[
    str,
    typer.Argument(
        help="keras:NAME, file.py:name, package.module:name, a .keras or .h5 file, a SavedModel "
        "folder; or the folder of an earlier estimate.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """Options that only ``estimate`` has."""

    batch_size: options.BatchSize = None
    steps: Annotated[
        int | None,
        options.in_device(
            f"Steps to predict, 1 to {MOST_STEPS}, default {DEFAULT_STEPS}; more if later steps "
            "differ."
        ),
    ] = None
    device: Annotated[
        str, options.in_device("cpu or gpu; default gpu with --gpu, otherwise cpu.")
    ] = ""
    gpu: Annotated[
        str,
        options.in_device(
            "Card to predict for, such as t4 or a100-80gb; the machine needs none. `--gpu list` lists "
            "all cards.",
            callback=list_gpus,
            is_eager=True,
        ),
    ] = ""
    like: Annotated[
        Path | None,
        options.in_device(
            "Your own trace on the card: take the card, TensorFlow's limit and cuDNN's workspaces from "
            "it.",
            metavar="TRACE",
        ),
    ] = None
    threads: Annotated[
        int | None,
        options.in_device(
            "Threads per op, which size some workspace; default this machine's.", is_rare=True
        ),
    ] = None
    inter_op_threads: options.InterOpThreads = None
    both_products: Annotated[
        bool | None,
        options.in_device(
            "Also compile with cuBLAS matrix products and report both as a range; default for small "
            "steps.",
            "--both-products/--one-product",
            is_rare=True,
        ),
    ] = None
    assume: options.Assume = None
    compile_timeout: Annotated[
        int | None,
        options.in_device(
            f"Seconds that one compilation for a card may take; default {int(TIME_OUT_S)}.",
            is_rare=True,
        ),
    ] = None
    what_if: options.Remedies = ""


def estimate(
    target: Target,
    *,
    capture: EstimateOptions,
    step: options.StepOptions,
    place: RunPlace,
    outputs: Outputs,
    replay: options.ReplayOptions,
    project: options.ProjectDefaults,
) -> None:
    """Predict the memory of a step without running it, and explain its use and how to reduce it.

    The model is built without memory for its weights, and its graph is optimised as for a run.
    Executor, kernels and allocator are simulated.
    """
    options.check_choice("--device", capture.device, ("cpu", "gpu"))
    spec = parse_target(target)
    outputs.check(spec.source)
    if spec.kind is TargetKind.TRACE:
        capture, step = project.drop(capture), project.drop(step)
    chosen, what_if = _capture_options(spec, capture, step, replay)
    card = chosen.gpu
    _check_options(spec, chosen, capture, place)
    if card:
        name_variant(capture.gpu)
    place.check()
    names = None
    if capture.what_if:
        from analyzer.fitting.remedies import add_remedies, parse_remedies

        names = parse_remedies(capture.what_if)
    with place.folder_for(spec) as folder:
        # with remedies, the report is written once they are estimated
        save = not place.no_save and names is None
        result = _make_result(spec, chosen, folder, capture, what_if, outputs, save=save)
        if names is not None:
            with progress_bar(outputs.progress) as progress:
                result = add_remedies(
                    result, spec, chosen, names, folder, threads=capture.threads, progress=progress
                )
        if not card and spec.kind is not TargetKind.TRACE and not outputs.quiet:
            print(_FOR_CPU, file=sys.stderr)
        contents = "report.html, report.json, and the graph"
        place.conclude(result, spec, folder, outputs, contents)
    if result.is_over_limit:
        raise typer.Exit(int(ExitCode.OVER_LIMIT))


def _check_options(
    spec: TargetSpec, chosen: CaptureOptions, capture: EstimateOptions, place: RunPlace
) -> None:
    """Refuse options that do not apply to the target or the device."""
    if spec.kind is TargetKind.TRACE:
        check_honoured(spec.text, TargetForm.ESTIMATE, list_given_options(chosen))
        place.refuse_for(spec)
        options.refuse_options(
            "cannot change a finished estimate",
            "Estimate the target itself with it.",
            assume=bool(capture.assume),
            what_if=capture.what_if,
            like=capture.like,
        )
        if capture.device or capture.gpu:
            _check_device(Path(spec.path), chosen.gpu)
    elif not chosen.gpu:
        options.refuse_options(
            "cannot be used for the CPU",
            "Add --gpu NAME.",
            both_products=capture.both_products is not None,
            compile_timeout=capture.compile_timeout,
        )


def _make_result(
    spec: TargetSpec,
    chosen: CaptureOptions,
    out: Path,
    capture: EstimateOptions,
    what_if: WhatIf,
    outputs: Outputs,
    *,
    save: bool,
) -> Result:
    """Open the finished estimate, or capture and predict the target into ``out``."""
    card_options = CardOptions(
        both=capture.both_products, time_out_s=capture.compile_timeout or int(TIME_OUT_S)
    )
    threads = capture.threads
    with progress_bar(outputs.progress) as progress:
        shared: dict[str, Any] = {
            "threads": threads,
            "what_if": what_if,
            "card_options": card_options,
            "progress": progress,
        }
        if spec.kind is not TargetKind.TRACE:
            from analyzer.session.target_results import estimate_target

            return estimate_target(spec, chosen, out, force=outputs.force, save=save, **shared)
        inter_op = capture.inter_op_threads
        if not what_if.is_asked and (threads, inter_op, card_options.both) == (None, None, None):
            return open_finished(Path(spec.path), progress=progress)
        return open_estimate(Path(spec.path), inter_op=inter_op, **shared)


def _capture_options(
    spec: TargetSpec,
    capture: EstimateOptions,
    step: options.StepOptions,
    replay: options.ReplayOptions,
) -> tuple[CaptureOptions, WhatIf]:
    """Return the capture's options and the replay's settings; a trace of --like fills both."""
    is_new = spec.kind is not TargetKind.TRACE
    like = None
    if capture.like is not None and is_new:
        from analyzer.session.target_graph import read_like

        like = read_like(capture.like, capture.gpu)
    card = _find_card(capture.device, capture.gpu if like is None else like.card)
    what_if = replay.what_if
    if like is not None and what_if.memory_limit_bytes is None:
        what_if = replace(what_if, memory_limit_bytes=like.memory_limit_bytes)
    chosen = replace(
        step.to_capture(),
        steps=capture.steps,
        batch_size=capture.batch_size,
        inter_op_threads=capture.inter_op_threads,
        device="gpu" if card else "cpu",
        gpu=card,
        assume=parse_assumptions(capture.assume or []),
        like=like,
        memory_limit_bytes=what_if.memory_limit_bytes if card and is_new else None,
    )
    return chosen, what_if


def _find_card(device: str, gpu: str) -> str:
    """Return the catalogue's id of the card; empty for the CPU."""
    if device == "cpu" and gpu:
        raise InputError("--device cpu and --gpu exclude each other.", hint="Leave one out.")
    if device == "gpu" and not gpu:
        raise InputError(
            "An estimate for a GPU needs the card's name.", hint="Add --gpu t4 or --gpu a100-80gb."
        )
    return find_gpu(gpu).id if gpu else ""


def _check_device(folder: Path, card: str) -> None:
    """Refuse another device than the one of a finished estimate."""
    file = folder / RUN_FILE  # opening reports a missing file
    device = read_run_file(file).device if file.is_file() else None
    if device is not None and card != (device.id if device.kind == "gpu" else ""):
        raise InputError(
            f"{folder} holds an estimate for {device.id or 'a CPU'}, and its graph fits no other "
            "device.",
            hint="Leave out --gpu and --device, or estimate the target itself.",
        )
