"""Estimate a step with remedies: each is a real change of the step, captured and estimated.

A remedy is also written as an edit of the user's source, if the file has exactly one place for it. Edits
of one argument can be written: batch size, dtype policy, XLA, the optimizer of ``compile``. The line of
a finding's cause is edited too, and the step runs again. A line may be mended in several ways, such as
at either operand of a subtraction, and each of them is run. A cause without such an edit has to be
mended by hand.
"""

from __future__ import annotations

import ast
import difflib
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from msgspec.structs import replace as replace_fields

from analyzer.cards.catalogue import Gpu, look_up_gpu
from analyzer.fitting.remedy_plans import (
    RECOMPUTING,
    RemedyPlan,
    plan_remedies,
    remedy_names,
    write_code,
)
from analyzer.fitting.step_access import (
    StepAccess,
    StepEstimate,
    estimate_folder,
    estimate_step,
    open_accesses,
    run_at_once,
)
from analyzer.model.contract.capture_request import (
    CaptureOptions,
    TargetKind,
    TargetSpec,
)
from analyzer.model.contract.report_file import Finding, StepRemedy
from analyzer.model.errors import InputError, suggest_names
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
# compute capability from which tensor cores take bfloat16 (NVIDIA, "Ampere Tuning Guide")
_BFLOAT16_SINCE = (8, 0)
ALL = "all"  # stands for every remedy that may save memory


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
    remedies: list[StepRemedy] = []
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
    remedies: list[StepRemedy] = []

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


def choose_plans(
    plans: Sequence[RemedyPlan],
    names: Sequence[str],
    gpu: Gpu | None = None,
) -> list[RemedyPlan]:
    """Return the named remedies, or all that may save memory; raise for an unknown name.

    Of the two mixed precisions, all means that of the card: both save the same.
    """
    if not names:
        unsuited = None if gpu is None else _find_unsuited_policy(gpu)
        return [plan for plan in plans if plan.dtype_policy != unsuited]

    known = {plan.id: plan for plan in plans}
    for name in names:
        if name in known:
            continue

        hint = f"This step's remedies: {', '.join(known)}."
        if name == RECOMPUTING:
            hint = "It needs layers in a chain of three parts or more, without XLA."

        raise InputError(f"This step has no remedy {name!r}.", hint=hint)

    return [known[name] for name in names]


def _find_unsuited_policy(gpu: Gpu) -> str:
    """Return the mixed precision in which a card does not compute, or that needs loss scaling there."""
    has_bfloat16 = gpu.is_amd or gpu.compute_capability >= _BFLOAT16_SINCE
    return "mixed_float16" if has_bfloat16 else "mixed_bfloat16"


def parse_remedies(text: str) -> tuple[str, ...] | None:
    """Return the remedies in a comma-separated list; empty for all, None for no list."""
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if not names or names == (ALL,):
        return () if names else None

    known = remedy_names()

    for name in names:
        if name not in known:
            hint = suggest_names(name, known) or f"Use all, or {', '.join(known)}."
            raise InputError(f"There is no remedy {name!r}.", hint=hint)

    return names


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
    verdict = result.report.verdict
    limit_bytes = None if verdict is None else verdict.pool_limit_bytes
    file = None if patches is None else spec.source

    with open_accesses(spec) as accesses:
        trial = RemedyTrial(
            accesses[0],
            options,
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


_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_PLACE = re.compile(r"\(([^()\s]+):(\d+)\)$")
_MOST_EDITS = 6  # runs for one cause


def edit_source(text: str, plan: RemedyPlan, batch_size: int) -> str:
    """Return the text of a file with a remedy; InputError if it has no single place for it.

    ``batch_size`` is the batch without the remedy.
    """
    tree = ast.parse(text)
    if plan.model or plan.optimizer_option:
        raise InputError("This change is not one of an argument.")

    if plan.dtype_policy:
        return _set_policy(text, tree, plan.dtype_policy)
    if plan.batch_size:
        return _splice(text, _find_batch(tree, batch_size), plan.batch_size)

    name = "optimizer"
    value = f'"{plan.optimizer.lower()}"'

    if plan.jit is not None:
        name = "jit_compile"
        value = str(plan.jit)

    return _set_keyword(text, tree, name, value)


def write_diff(path: Path, before: str, after: str) -> str:
    """Return a unified diff for the working folder, or for the file's own if it lies elsewhere."""
    name = Path(os.path.relpath(path)).as_posix()
    name = path.name if name.startswith("..") else name
    old = _LINE.findall(before)

    new = _LINE.findall(after)
    end = "\n\\ No newline at end of file\n"
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")

    return "".join(line if line.endswith("\n") else line + end for line in lines)


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


def _splice(text: str, node: Any, new: str) -> str:
    """Replace a node of the syntax tree, which counts bytes."""
    data = text.encode()
    lines = data.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    first = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset

    return (data[:first] + new.encode() + data[end:]).decode()


def _find_calls(tree: ast.AST, *names: str) -> list[ast.Call]:
    """Return the calls of functions or methods with one of these last names."""
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.rpartition(".")[2] in names and name != "re.compile":
                calls.append(node)

    return calls


def _find_batch(tree: ast.Module, before: int) -> ast.expr:
    """Return the only number that sets the batch size, which must be that of the estimate."""
    assigned: dict[str, ast.expr] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            assigned[ast.unparse(statement.targets[0])] = statement.value

    places = [call.args[0] for call in _find_calls(tree, "batch") if call.args]
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "batch_size":
            places.append(node.value)

    values = list(dict.fromkeys(assigned.get(ast.unparse(one), one) for one in places))

    value = _get_only(values, "batch size")
    if not isinstance(value, ast.Constant) or value.value != before:
        text = ast.unparse(value)
        raise InputError(f"The file sets a batch of {text}, not of {before}.")

    return value


def _set_policy(text: str, tree: ast.Module, policy: str) -> str:
    calls = _find_calls(tree, "set_dtype_policy", "set_global_policy")
    if calls:
        values = [call.args[0] for call in calls if call.args]
        return _splice(text, _get_only(values, "dtype policy"), f'"{policy}"')

    imports = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
    end = max((one.end_lineno or 0 for one in imports), default=0)
    lines = text.splitlines(keepends=True)
    code = f'\nimport keras\n\nkeras.config.set_dtype_policy("{policy}")\n'

    return "".join((*lines[:end], code, *lines[end:]))


def _set_keyword(text: str, tree: ast.Module, name: str, value: str) -> str:
    """Set an argument where the model is compiled."""
    call = _get_only(_find_calls(tree, "compile"), "compile() call")
    for keyword in call.keywords:
        if keyword.arg == name:
            return _splice(text, keyword.value, value)

    if call.args or not call.keywords:
        raise InputError("The arguments of compile() have no names.")

    last = call.keywords[-1]

    own = ast.get_source_segment(text, last)

    return _splice(text, last, f"{own}, {name}={value}")


def _get_only(places: list[Any], what: str) -> Any:
    """Return the only place; InputError if there is none or a choice."""
    if len(places) != 1:
        plural = "s" * (len(places) > 1)
        raise InputError(f"The file has {len(places) or 'no'} {what}{plural}.")

    return places[0]


def run_edits(
    trial: RemedyTrial,
    finding: Finding,
    file: Path,
) -> Iterator[tuple[StepEstimate, str]]:
    """Yield the estimate of each edit of a cause's line that runs, and the edit as a diff."""
    place = _PLACE.search(finding.title)
    if place is None or Path(place[1]).name != file.name or finding.id not in _EDITS:
        return

    text = file.read_text("utf-8")
    number = int(place[2])
    edits = [
        _splice(text, part, new)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.expr)
        and (node.lineno, node.end_lineno) == (number, number)
        for part, new in _EDITS[finding.id](node)
    ]

    for count, edited in enumerate(edits[:_MOST_EDITS]):
        name = f"{finding.id}-{number}-{count}"
        try:
            after = estimate_edited(trial.access, trial.options, file, edited, name)
        except InputError:  # the edited step does not run
            continue

        yield after, write_diff(file, text, edited)


def _add_axes(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield each operand of a sum, difference or call with a further last axis."""
    operands: list[ast.expr] = []

    if isinstance(node, ast.BinOp):
        operands = [node.left, node.right]
    elif isinstance(node, ast.Call):
        operands = node.args

    for operand in operands:
        if isinstance(operand, (ast.Name, ast.Attribute, ast.Subscript)):
            yield operand, f"{ast.unparse(operand)}[:, None]"


def _contract(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield a product of matrices as a contraction of one axis."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        factors = f"{ast.unparse(node.left)}, {ast.unparse(node.right)}"
        yield node, f"tf.tensordot({factors}, 1)"

    if isinstance(node, ast.Call) and len(node.args) == 2:
        module, _, name = ast.unparse(node.func).rpartition(".")
        if name == "matmul" and not node.keywords:
            factors = ", ".join(map(ast.unparse, node.args))
            yield node, f"{module.removesuffix('.linalg')}.tensordot({factors}, 1)"


# Cause -> parts of an expression and their new text.
_EDITS = {"outer-product": _add_axes, "reduced-at-once": _contract}
