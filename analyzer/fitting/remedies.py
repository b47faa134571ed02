"""Estimate a step with remedies: each is a real change of the step, captured and estimated.

A remedy is also written as a patch of the user's source, if the patched file saves as much. The line of
a finding's cause is edited too, and the step runs again. A line may be mended in several ways, such as
at either operand of a subtraction, and each of them is run. A cause without such an edit has to be
mended by hand.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.structs import replace as replace_fields

from analyzer.cards.catalogue import look_up_gpu
from analyzer.fitting.remedy_plans import (
    RemedyPlan,
    choose_plans,
    plan_remedies,
    write_code,
)
from analyzer.fitting.source_edits import edit_line, edit_source, write_diff
from analyzer.fitting.step_access import (
    StepAccess,
    StepEstimate,
    estimate_folder,
    estimate_step,
    open_accesses,
    run_at_once,
)
from analyzer.model.contract.child_messages import (
    CaptureOptions,
    TargetKind,
    TargetSpec,
)
from analyzer.model.contract.report_file import Finding, StepRemedy
from analyzer.model.errors import InputError
from analyzer.model.progress import listening, report_stage
from analyzer.model.units import format_bytes
from analyzer.report.actions import remedy_of
from analyzer.report.answer import add_answer
from analyzer.report.output_files import write_text
from analyzer.report.result import Result
from analyzer.session.target_results import save_report

_LONGEST_REASON = 240  # characters of the reason why a remedy cannot be applied

# of the saving, by which that of the patched file may differ
_PATCH_TOLERANCE = 0.03
_BY_HAND = "The change has to be made by hand, so that its saving is computed, not run."
_PLACE = re.compile(r"\(([^()\s]+):(\d+)\)$")
_MOST_EDITS = 6  # runs for one cause


@dataclass(frozen=True)
class RemedyTrial:
    """A step, its options without remedies, and an optional limit to judge by."""

    access: StepAccess
    options: CaptureOptions
    limit_bytes: int | None
    # Takes each as it is known
    keep: Callable[[StepRemedy], None] = lambda remedy: None
    patch_file: Path | None = None  # the file to write patches of, into a folder
    patch_folder: Path = Path()
    others: tuple[StepAccess, ...] = ()  # for further captures at the same time


def try_remedies(
    trial: RemedyTrial,
    names: Sequence[str],
    captured: Path | None = None,
) -> tuple[StepRemedy, ...]:
    """Estimate a step with each remedy.

    No names stand for all remedies that may save memory. ``captured`` is the folder of a capture of the
    unchanged step, which is captured here if it is None.
    """
    options = trial.options
    report_stage("estimating the unchanged step")

    before = (
        estimate_step(trial.access, options, "unchanged")
        if captured is None
        else estimate_folder(captured)
    )

    gpu = look_up_gpu(before.note.device.name)
    plans = choose_plans(list(plan_remedies(options, before.note)), names, gpu)
    plans.sort(key=lambda plan: -_guess_saving(plan, before))
    remedies = []
    begin = time.monotonic()

    accesses = (trial.access, *trial.others)

    def run(access: StepAccess, plan: RemedyPlan) -> StepRemedy:
        return _try_plan(replace(trial, access=access), plan, before)

    with (
        listening(lambda stage, share: None) as outer,  # captures at the same time
        closing(run_at_once(accesses, run, plans)) as found,
    ):
        for remedy in found:
            remedies.append(remedy)
            trial.keep(remedy)

            left = len(plans) - len(remedies)
            left_s = (time.monotonic() - begin) / len(remedies) * left
            minutes = math.ceil(left_s / 60)
            stage = f"{len(remedies)} of {len(plans)} changes, about {minutes} min left"
            outer(stage, (len(remedies) + 1) / (len(plans) + 1))

    remedies.sort(key=lambda one: (one.saves_bytes is None, -(one.saves_bytes or 0)))

    return tuple(remedies)


def _guess_saving(plan: RemedyPlan, before: StepEstimate) -> float:
    """Return the likely saving of a remedy in bytes, by the shares of its kind."""
    activation_bytes = before.requested_bytes - before.fixed_bytes
    of_activations = plan.of_activations * activation_bytes
    return of_activations + plan.of_state * before.fixed_bytes


def _try_plan(
    trial: RemedyTrial,
    plan: RemedyPlan,
    before: StepEstimate,
) -> StepRemedy:
    """Return the savings of a remedy, or why it cannot be applied."""
    code = write_code(plan, is_own_step=before.note.step.own)
    remedy = StepRemedy(id=plan.id, title=plan.title, code=code, costs=plan.costs)

    try:
        after = estimate_step(trial.access, plan.options, f"remedy-{plan.id}")
    except InputError as error:
        return replace_fields(remedy, code="", failed=error.message[:_LONGEST_REASON])

    if plan.jit and not after.note.step.jit:
        return replace_fields(remedy, code="", failed="it does not run with XLA")

    remedy = _add_figures(remedy, trial, before, after)

    file = trial.patch_file
    if file is None or before.requested_bytes <= after.requested_bytes:
        return remedy

    try:
        patch = _write_patch(trial, file, plan, before, after)
    except InputError as error:
        return replace_fields(remedy, no_patch=error.message[:_LONGEST_REASON])

    return replace_fields(remedy, patch=str(patch))


def _add_figures(
    remedy: StepRemedy,
    trial: RemedyTrial,
    before: StepEstimate,
    after: StepEstimate,
) -> StepRemedy:
    """Return a remedy with the figures of the step before and after it."""
    outputs = before.note.outputs
    limit_bytes = trial.limit_bytes

    return replace_fields(
        remedy,
        saves_bytes=before.requested_bytes - after.requested_bytes,
        requested_bytes=after.requested_bytes,
        allocated_bytes=after.allocated_bytes,
        fits=None if limit_bytes is None else after.need_bytes <= limit_bytes,
        has_same_outputs=outputs == after.note.outputs if outputs else None,
    )


def prove_findings(
    trial: RemedyTrial,
    findings: Sequence[Finding],
    captured: Path,
    file: Path | None,
) -> tuple[StepRemedy, ...]:
    """Run the step with the change of each finding: a remedy, or an edit of the finding's line.

    ``captured`` is a capture of the unchanged step, ``file`` the target's file; None if it has none.
    """
    before = estimate_folder(captured)
    plans = {plan.id: plan for plan in plan_remedies(trial.options, before.note)}
    remedies = []

    for finding in findings:
        report_stage(f"running the change for {finding.id}")

        plan = plans.get(remedy_of(finding))
        if plan is None:
            remedies.append(_try_edits(trial, finding, before, file))
        elif plan.id not in [one.id for one in remedies]:
            remedies.append(_try_plan(trial, plan, before))
        else:
            continue

        trial.keep(remedies[-1])

    return tuple(one for one in remedies if not one.failed)


def _try_edits(
    trial: RemedyTrial,
    finding: Finding,
    before: StepEstimate,
    file: Path | None,
) -> StepRemedy:
    """Return the edit of a finding's line that lowers the peak most, or why there is none."""
    remedy = StepRemedy(id=finding.id, title=finding.title, code="")

    runs = [] if file is None else list(run_edits(trial, finding, file))
    if not runs:
        return replace_fields(remedy, failed=_BY_HAND)

    after, code = min(runs, key=lambda run: run[0].requested_bytes)

    return _add_figures(replace_fields(remedy, code=code), trial, before, after)


def _write_patch(
    trial: RemedyTrial,
    file: Path,
    plan: RemedyPlan,
    before: StepEstimate,
    after: StepEstimate,
) -> Path:
    """Write a remedy as a patch, if the patched file saves as much; InputError if it cannot be one."""
    try:
        text = file.read_bytes().decode()
        edited = edit_source(text, plan, trial.options.open_batch_size)
        options = replace(trial.options, batch_size=plan.options.batch_size)
        name = f"source-{plan.id}"
        patched = estimate_edited(trial.access, options, file, edited, name)
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"{file} cannot be edited: {error}.") from None

    stated = before.requested_bytes - after.requested_bytes
    if abs(patched.requested_bytes - after.requested_bytes) > _PATCH_TOLERANCE * stated:
        saves = format_bytes(before.requested_bytes - patched.requested_bytes)
        raise InputError(f"The edited file saves {saves}.")

    trial.patch_folder.mkdir(exist_ok=True)
    path = trial.patch_folder / f"{plan.id}.patch"
    write_text(path, write_diff(file, text, edited))

    return path


def add_remedies(
    result: Result,
    spec: TargetSpec,
    options: CaptureOptions,
    names: Sequence[str] | None,
    folder: Path,
    *,
    keep: Callable[[StepRemedy], None],
    patches: Path | None,
) -> Result:
    """Return an estimate with the savings of remedies, and save the changed report in its folder.

    Without ``names`` they are the changes of its findings. Remedies that the target's source can express
    are written as patches into the folder ``patches``.
    """
    limit_bytes = result.report.verdict.pool_limit_bytes
    file = None if patches is None else spec.source

    with open_accesses(spec) as accesses:
        trial = RemedyTrial(
            accesses[0],
            replace(options, skips_trials=True),
            limit_bytes,
            keep,
            file,
            patches or Path(),
            tuple(accesses[1:]),
        )

        if names is None:
            findings = result.report.findings
            source = spec.source if spec.kind is TargetKind.FILE else None
            remedies = prove_findings(trial, findings, folder, source)
        else:
            remedies = try_remedies(trial, names, folder)

    return save_remedies(result, remedies, folder)


def save_remedies(
    result: Result,
    remedies: Sequence[StepRemedy],
    folder: Path,
) -> Result:
    """Return an estimate with remedies, and save the changed report in its folder."""
    known = {one.id: one.saves_bytes for one in remedies if one.saves_bytes is not None}
    # one number for one change: the run's
    findings = tuple(
        replace(one, saves_bytes=known.get(remedy_of(one), one.saves_bytes))
        for one in result.report.findings
    )
    report = replace_fields(
        result.report,
        findings=findings,
        remedies=tuple(remedies),
    )

    return save_report(replace(result, report=add_answer(report)), folder)


def estimate_edited(
    access: StepAccess,
    options: CaptureOptions,
    file: Path,
    text: str,
    name: str,
) -> StepEstimate:
    """Estimate the step of a target whose file has another text, beside links to its neighbours."""
    make = access.capture_file
    assert make is not None
    folder = access.folder / name
    folder.mkdir()

    for other in file.resolve().parent.iterdir():
        if other.name not in (file.name, "__pycache__"):
            (folder / other.name).symlink_to(other)

    copy = folder / file.name
    copy.write_bytes(text.encode())
    edited = replace(access, capture=lambda *given: make(copy, *given))

    return estimate_step(edited, options, f"{name}-run")


def run_edits(
    trial: RemedyTrial,
    finding: Finding,
    file: Path,
) -> Iterator[tuple[StepEstimate, str]]:
    """Yield the estimate of each edit of a cause's line that runs, and the edit as a diff."""
    place = _PLACE.search(finding.title)
    if place is None or Path(place[1]).name != file.name:
        return

    text = file.read_text("utf-8")
    number = int(place[2])

    for count, edited in enumerate(edit_line(text, finding.id, number)[:_MOST_EDITS]):
        name = f"{finding.id}-{number}-{count}"
        try:
            after = estimate_edited(trial.access, trial.options, file, edited, name)
        except InputError:  # the edited step does not run
            continue

        yield after, write_diff(file, text, edited)
