"""Run the step of an out-of-memory log on a simulated card, under the limit of the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from analyzer.capture.process.launch import Progress, capture
from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.fitting.remedies import RemedyTrial, try_remedies
from analyzer.fitting.remedy_plans import plan_remedies
from analyzer.fitting.step_access import access_target, make_workplace
from analyzer.model.contract.capture_request import CaptureOptions, TargetSpec
from analyzer.model.contract.oom_file import OomFailure, Reproduction
from analyzer.model.errors import StepOutOfMemory
from analyzer.model.units import format_bytes
from analyzer.oom import read_oom_log
from analyzer.report.actions import remedy_items
from analyzer.report.render.sections import Block, Document, Paragraph, Section
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import read_run

_HISTORY: Final = (
    "The log does not show what the process allocated and freed before this step: other models, "
    "evaluations or growing lists may have left less memory, and in smaller pieces."
)
_CALL: Final = "StatefulPartitionedCall/"
# Kinds that train otherwise: not tried
_OTHER_TRAINING: Final = ("freezing", "optimizer")


def reproduce(
    spec: TargetSpec,
    options: CaptureOptions,
    limit_bytes: int | None,
    logged: OomFailure,
    progress: Progress,
) -> Reproduction:
    """Return whether the step fails as in the log, and the remedies with which it runs."""
    limited = replace(options, device="", memory_limit_bytes=limit_bytes)

    failure = _run_step(spec, limited, progress)
    if failure is None:
        return Reproduction(fails=False)

    with access_target(spec) as access:
        captured = access.capture(options, access.folder / "unchanged")
        plans = plan_remedies(options, read_run(captured / RUN_FILE))
        names = [one.id for one in plans if one.kind not in _OTHER_TRAINING]
        trial = RemedyTrial(access, options, limit_bytes, progress)
        remedies = try_remedies(trial, names, captured) if names else ()

    return Reproduction(
        fails=True,
        op=failure.op,
        requested_bytes=failure.asked.requested_bytes if failure.asked else None,
        is_same_op=_name_op(failure) == _name_op(logged),
        is_same_request=_is_same_request(failure, logged),
        remedies=tuple(one for one in remedies if one.fits),
    )


def _run_step(
    spec: TargetSpec,
    options: CaptureOptions,
    progress: Progress,
) -> OomFailure | None:
    """Return the failure of the step in the log of its own process; None if it runs."""
    with make_workplace() as folder:
        place = folder / "step"
        try:
            place = capture(spec, options, place, force=False, progress=progress)
        except StepOutOfMemory:
            return None

        with Path(place / LOG_FILE).open("rb") as stream:
            failures = read_oom_log(stream, LOG_FILE).report.failures

    return failures[0] if failures else None


def _name_op(failure: OomFailure) -> str:
    name = failure.op or failure.requested_by or ""
    return name.removeprefix(_CALL)


def _is_same_request(failure: OomFailure, logged: OomFailure) -> bool:
    asked = failure.asked

    other = logged.asked
    if asked is None or other is None:
        return False

    return asked.low_bytes <= other.high_bytes and other.low_bytes <= asked.high_bytes


def append_reproduction(
    page: Document,
    found: Reproduction,
    batch_size: int | None,
) -> Document:
    """Return the document of a log with the answer of the simulated card.

    ``batch_size`` is the one that the user gave; without it, the step had its own.
    """
    lines = ["The step runs on the simulated card with the limit of the log."]

    if found.fails:
        size = format_bytes(found.requested_bytes or 0)
        same_op = "the same op" if found.is_same_op else "another op"
        same = "the same request" if found.is_same_request else "another request"
        lines = [
            f"The step fails on the simulated card too, in {same_op} with {same}: "
            f"{found.op or 'an op without a name'} asks for {size}."
        ]

    if batch_size is None and not (found.is_same_op and found.is_same_request):
        lines[0] += " Name the batch size of the log with --batch-size."

    blocks: list[Block] = [*map(Paragraph, (*lines, _HISTORY))]
    if found.remedies:
        blocks.append(Paragraph("With each of these changes it runs:"))
        blocks += remedy_items(found.remedies)

    section = Section("Reproduced on a simulated card", tuple(blocks), level=2)
    sections = (page.sections[0], section, *page.sections[1:])

    return replace(page, headline=f"{page.headline} {lines[0]}", sections=sections)
