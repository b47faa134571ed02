"""``analyze estimate TARGET``: estimate the memory of a step without its device."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from analyzer.capture.targets.target_spec import (
    TargetForm,
    check_honoured,
    parse_assumptions,
    parse_target,
)
from analyzer.cli.outputs import Outputs, RunPlace, name_device
from analyzer.cli.shared_options import (
    PLACE,
    WHAT_IF,
    Assume,
    BatchSize,
    ReplayOptions,
    StepFlags,
    WhatIfNames,
    argument,
    option,
    refuse_options,
)
from analyzer.cli.stdout import print_news, progress_bar
from analyzer.model.contract.child_messages import (
    CaptureOptions,
    TargetKind,
    TargetSpec,
    WhatIf,
)
from analyzer.model.contract.report_file import StepRemedy
from analyzer.model.contract.run_note import read_run_file
from analyzer.model.errors import ExitCode, InputError
from analyzer.model.interrupts import Terminated
from analyzer.model.units import format_bytes
from analyzer.report.result import Result
from analyzer.session.opening import open_estimate
from analyzer.simulated_card.card_environment import normalize_cards
from analyzer.tracing.parse.run_folder import RUN_FILE


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """Options that only ``estimate`` has."""

    batch_size: BatchSize = None
    gpu: Annotated[
        str,
        option(
            "Card to simulate, such as t4 or a100-80gb; several as t4,t4 or 2xt4. The "
            "machine needs none. `analyze gpus list` shows all cards.",
            panel=PLACE,
        ),
    ] = ""
    assume: Assume = None
    what_if: WhatIfNames = ""
    prove: Annotated[
        bool,
        option(
            "With --gpu: apply the change of each finding, run the step again on the "
            "simulated card, and state both peaks and whether the outputs have the "
            "same shapes.",
            "--prove",
            panel=WHAT_IF,
        ),
    ] = False
    patch: Annotated[
        Path | None,
        option(
            "Write each change of --what-if (default all) that the target's file can "
            "express into this folder, as a patch whose estimate saves as much. The "
            "file itself stays as it is.",
            panel=WHAT_IF,
            metavar="FOLDER",
        ),
    ] = None


def estimate(
    target: Annotated[
        str,
        argument(
            "keras:NAME, hub:PRESET, file.py:name, package.module:name, a .keras or "
            ".h5 file, a SavedModel folder; or the folder of an earlier estimate."
        ),
    ],
    *,
    capture: EstimateOptions,
    step: StepFlags,
    place: RunPlace,
    outputs: Outputs,
    replay: ReplayOptions,
) -> None:
    """Estimate the memory of a step without a card, and explain its use and how to reduce it.

    With --gpu, TensorFlow runs the step on a simulated card; no kernel runs. For the CPU, the step is
    not run: executor, kernels and allocator are simulated.
    """
    spec = parse_target(target)
    outputs.check(spec.source)
    what_if = replay.what_if
    chosen = _capture_options(spec, capture, step, what_if)
    _check_options(spec, chosen, capture)
    place.check(spec)

    names = None

    if capture.what_if or capture.patch is not None:
        from analyzer.fitting.remedy_plans import parse_remedies

        names = parse_remedies(capture.what_if or "all")

    with place.folder_for(spec) as folder:
        with progress_bar(outputs.progress):
            if spec.is_trace:
                result = open_estimate(folder, what_if=what_if)
            else:
                from analyzer.session.target_results import estimate_target

                result = estimate_target(
                    spec,
                    chosen,
                    folder,
                    force=outputs.force,
                    save=not place.no_save,
                    what_if=what_if,
                )

        if names is not None or capture.prove:
            print_news(result.report.verdict.headline, is_quiet=outputs.quiet)
            result = _add_remedies(
                result,
                spec,
                chosen,
                names,
                folder,
                capture.patch,
                place,
                outputs,
            )

        if not spec.is_trace:
            name_device(capture.gpu, is_quiet=outputs.quiet)

        place.conclude(result, spec, folder, outputs)

    if result.is_over_limit:
        raise typer.Exit(ExitCode.OVER_LIMIT)


def _add_remedies(
    result: Result,
    spec: TargetSpec,
    chosen: CaptureOptions,
    names: Sequence[str] | None,
    folder: Path,
    patches: Path | None,
    place: RunPlace,
    outputs: Outputs,
) -> Result:
    """Return the estimate with remedies; print each as it is known, and keep them if interrupted."""
    from analyzer.fitting.remedies import add_remedies, save_remedies
    from analyzer.report.actions import describe_figures

    known = []

    def keep(remedy: StepRemedy) -> None:
        known.append(remedy)
        saves = f"saves {format_bytes(remedy.saves_bytes or 0)}"

        if names is None:
            saves += f" ({describe_figures(remedy)})"
        if remedy.saves_bytes is None or remedy.saves_bytes <= 0:
            saves = "saves nothing"

        if remedy.failed:
            saves = f"not possible: {remedy.failed}"

        print_news(f"{remedy.id}: {saves}", is_quiet=outputs.quiet)

    try:
        with progress_bar(outputs.progress):
            return add_remedies(
                result,
                spec,
                chosen,
                names,
                folder,
                patches=patches,
                keep=keep,
            )
    except (KeyboardInterrupt, Terminated):
        known.sort(key=lambda one: -(one.saves_bytes or 0))
        place.conclude(save_remedies(result, known, folder), spec, folder, outputs)

        raise


def _capture_options(
    spec: TargetSpec,
    capture: EstimateOptions,
    step: StepFlags,
    what_if: WhatIf,
) -> CaptureOptions:
    """Return the capture's options."""
    is_new = not spec.is_trace

    card = normalize_cards(capture.gpu) if capture.gpu else ""
    return step.to_capture(
        batch_size=capture.batch_size,
        device="gpu" if card else "cpu",
        gpu=card,
        assume=parse_assumptions(capture.assume or []),
        memory_limit_bytes=what_if.memory_limit_bytes if card and is_new else None,
    )


def _check_options(
    spec: TargetSpec,
    chosen: CaptureOptions,
    capture: EstimateOptions,
) -> None:
    """Refuse options that do not apply to the target or the device."""
    if capture.prove:
        refuse_options(
            "and --prove exclude each other",
            "Leave one out.",
            what_if=capture.what_if,
            patch=capture.patch,
        )

        if not chosen.gpu:
            message = "--prove runs the step on a simulated card."
            raise InputError(message, "Add --gpu t4 or --gpu a100-80gb.")

    if capture.patch is not None:
        if spec.kind is not TargetKind.FILE:
            raise InputError(
                f"--patch cannot edit {spec.text}, which is no Python file.",
                "Name the model in its file: train.py:build.",
            )

        if capture.patch.is_file() or not capture.patch.parent.is_dir():
            reason = f"{capture.patch} cannot be a folder."
            raise InputError(reason, "Name a new folder.")

    if not spec.is_trace:
        return

    check_honoured(
        spec.text,
        TargetForm.ESTIMATE,
        chosen,
    )

    refuse_options(
        "cannot change a finished estimate",
        "Estimate the target itself with it.",
        assume=bool(capture.assume),
        what_if=capture.what_if,
        prove=capture.prove,
    )

    file = Path(spec.path) / RUN_FILE  # opening reports a missing file
    device = read_run_file(file).device if file.is_file() else None

    if device is not None and chosen.gpu not in ("", device.id):
        raise InputError(
            f"{spec.text} holds an estimate for {device.id or 'a CPU'}, and its graph "
            "fits no other "
            "device.",
            "Leave out --gpu, or estimate the target itself.",
        )
