"""Run the step of an out-of-memory log on a simulated card, under the limit of the log."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from msgspec.structs import replace as replace_fields

from analyzer.capture.process.launch import capture
from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.fitting.remedies import RemedyTrial, try_remedies
from analyzer.fitting.remedy_plans import plan_remedies
from analyzer.fitting.step_access import access_target, make_workplace
from analyzer.model.contract.child_messages import CaptureOptions, TargetSpec
from analyzer.model.contract.oom_file import OomFailure, Reproduction
from analyzer.model.errors import StepOutOfMemory
from analyzer.model.units import format_bytes
from analyzer.oom import read_oom_log
from analyzer.report.actions import remedy_items
from analyzer.report.render.sections import Block, Document, Paragraph, Section
from analyzer.session.opening import analyse_path
from analyzer.tracing.parse.run_folder import RUN_FILE, read_run

_HISTORY = (
    "The log does not show the memory from before this step: other models, evaluations or growing "
    "lists may have left less memory, and in smaller pieces."
)
_CALL = "StatefulPartitionedCall/"
# Kinds that train otherwise: not tried
_OTHER_TRAINING = ("freezing", "optimizer")
# Further runs, each in a process with its own order of ops: whether the batch axis is open
_AGAIN = (False, True, False, False)


def reproduce(
    spec: TargetSpec,
    options: CaptureOptions,
    limit_bytes: int | None,
    logged: Sequence[OomFailure],
) -> Reproduction:
    """Return whether the step fails as in the log, and the remedies with which it runs.

    ``logged`` are the failures of the log, at least one; ops that run at the same time can each have
    one. The step runs alone. Until it fails like the log, it runs again without the memory that the
    log had in use beside the step, also with an open batch axis, which gives another graph.
    """
    limit_bytes = limit_bytes or logged[0].limit_bytes
    alone = replace(options, device="", memory_limit_bytes=limit_bytes)
    found = _compare(_run_step(spec, alone), logged)

    with access_target(spec) as access:
        place = access.folder / "unchanged"
        capture_once = cache(partial(access.capture, options, place))

        if not _agrees(found) and limit_bytes is not None:
            history_bytes = _measure_history(capture_once(), logged[0])
            limit_bytes -= history_bytes

            for runs, is_open in enumerate(_AGAIN, start=2):
                again = replace(alone, memory_limit_bytes=limit_bytes, is_open=is_open)
                other = _compare(_run_step(spec, again), logged)

                if _agrees(other) or not found.fails:
                    found = other

                found = replace_fields(found, runs=runs, history_bytes=history_bytes)

                if _agrees(found):
                    break

        if not found.fails:
            return found

        trial = RemedyTrial(access, options, limit_bytes)
        captured = capture_once()
        plans = plan_remedies(options, read_run(captured / RUN_FILE))
        names = [one.id for one in plans if one.kind not in _OTHER_TRAINING]
        remedies = try_remedies(trial, names, captured) if names else ()

    # the changes with which the step runs under the limit
    fitting = tuple(one for one in remedies if one.fits)
    return replace_fields(found, remedies=fitting)


def _agrees(found: Reproduction) -> bool:
    return found.is_same_op and found.is_same_request


def _compare(
    failures: Sequence[OomFailure], logged: Sequence[OomFailure]
) -> Reproduction:
    """Return the failure of a run that is most like one of the log's."""
    if not failures:
        return Reproduction(fails=False)

    pairs = [
        (
            _name_op(one) == _name_op(other) != "",
            _is_same_request(one, other),
            one,
        )
        for other in logged
        for one in failures
    ]
    is_same_op, is_same_request, failure = max(pairs, key=lambda pair: pair[:2])

    requested_bytes = None
    if failure.asked is not None:
        requested_bytes = failure.asked.requested_bytes

    return Reproduction(
        fails=True,
        op=failure.op,
        requested_bytes=requested_bytes,
        is_same_op=is_same_op,
        is_same_request=is_same_request,
    )


def _run_step(
    spec: TargetSpec,
    options: CaptureOptions,
) -> tuple[OomFailure, ...]:
    """Return the failures of the step in the log of its own process; none if it runs."""
    with make_workplace() as folder:
        place = folder / "step"
        try:
            place = capture(spec, options, place, force=False)
        except StepOutOfMemory:
            return ()

        with Path(place / LOG_FILE).open("rb") as stream:
            return read_oom_log(stream, LOG_FILE).report.failures


def _measure_history(captured: Path, logged: OomFailure) -> int:
    """Return the bytes that the log has in use beside the step, at the request that failed.

    The captured step ran with room for any; its use before the same request in the first step is
    subtracted. The rest may be data or another model. 0 if the log does not say, or if the step does
    not ask for it.
    """
    if logged.asked is None or logged.in_use_bytes is None:
        return 0

    recording = analyse_path(captured).recording
    first_step = recording.events[: recording.steps[0].last + 1]
    events = first_step[first_step["allocator"] == recording.allocator]
    names = events["op"].astype(str).str.removeprefix(_CALL)
    low_bytes, high_bytes = logged.asked.low_bytes, logged.asked.high_bytes
    is_request = events["requested_bytes"].between(low_bytes, high_bytes)

    rows = events[(events["kind"] == 1) & (names == _name_op(logged)) & is_request]
    if rows.empty:
        return 0

    before = rows["in_use_bytes"] - rows["allocated_bytes"]
    return max(logged.in_use_bytes - int(before.max()), 0)


def _name_op(failure: OomFailure) -> str:
    name = failure.op or failure.requested_by or ""
    return name.removeprefix(_CALL)


def _is_same_request(failure: OomFailure, logged: OomFailure) -> bool:
    one = failure.asked
    other = logged.asked
    if one is None or other is None:
        return False

    return one.low_bytes <= other.high_bytes and other.low_bytes <= one.high_bytes


def append_reproduction(
    page: Document,
    found: Reproduction,
    batch_size: int | None,
) -> Document:
    """Return the document of a log with the answer of the simulated card.

    ``batch_size`` is the one that the user gave; without it, the step had its own.
    """
    answer = "The step runs on the simulated card with the limit of the log."
    lines = []

    if found.fails:
        size = format_bytes(found.requested_bytes or 0)
        same_op = "the same op" if found.is_same_op else "another op"
        same = "the same request" if found.is_same_request else "another request"
        answer = (
            f"The step also fails on the simulated card, in {same_op} with {same}: "
            f"{found.op or 'an op without a name'} asks for {size}."
        )

    agrees = _agrees(found)
    if batch_size is None and not agrees:
        answer += " Name the batch size of the log with --batch-size."

    if found.runs > 1:
        lines.append(
            f"It ran {found.runs} times, as the order of ops differs between processes."
        )
    if found.history_bytes:
        ran = "It ran" if agrees else "The changes are judged"
        lines.append(
            f"{ran} with {format_bytes(found.history_bytes)} less than the limit: the log has as much "
            "in use beside this step, such as data on the card or another model."
        )

    blocks: list[Block] = [*map(Paragraph, (*lines, _HISTORY))]
    if found.fails:
        fitting = "With each of these changes it runs:"
        none = "None of the changes that keep optimizer and weights lets it run."
        blocks.append(Paragraph(fitting if found.remedies else none))
        blocks += remedy_items(found.remedies)

    section = Section("Reproduced on a simulated card", tuple(blocks), level=2)
    sections = (page.sections[0], section, *page.sections[1:])

    return replace(page, headline=f"{page.headline} {answer}", sections=sections)
