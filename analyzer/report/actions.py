"""The changes of a step in one ranked list, each with code, saving and check; the next command."""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import chain

from analyzer.cards.catalogue import look_up_gpu
from analyzer.model.contract.child_messages import TargetKind
from analyzer.model.contract.reading import read_table
from analyzer.model.contract.report_file import (
    Finding,
    Kind,
    Outcome,
    ReportFile,
    StepRemedy,
    limit_of,
)
from analyzer.model.units import format_bytes, format_option_bytes, signed_bytes
from analyzer.report.render.sections import ColumnKind, Item, Table, TableColumn, Tone

# Kinds of targets that no command captures again with the same step; ``live`` is the user's process.
_NOT_REPEATABLE = ("", "live", TargetKind.SCRIPT, TargetKind.TRACE)

# Share of the limit below which a remedy is not worth showing.
_LEAST_RATIO = 0.01

_TONES: dict[str, Tone] = {"high": "bad", "medium": "warning", "info": "muted"}
_BROKEN = ("out-of-memory", "does-not-fit", "outer-product")

_LIST_NAME = re.compile(r"list `(\w+)`")

# Tensors with axes among those that a name holds (``holder_row``); no number replaces them.
_HELD_ARRAY = re.compile(r"shape (\[\], )*\[\d")

_ACTIONS = read_table("report/actions.toml", dict[str, tuple[str, str, str]])


def suggest_next(report: ReportFile) -> str:
    """Return the command that continues from a report; empty if none does."""
    target = report.target
    verdict = report.verdict

    if target.kind == TargetKind.TRACE:
        return shlex.join(("analyze", "trace", target.text, "--html", "report.html"))

    script, *arguments = target.text.split(" -- ", 1)
    if target.kind == TargetKind.SCRIPT and script.endswith(".py"):
        has_failed = report.program is not None and bool(report.program.ended)
        if report.device.kind == "gpu" or has_failed:
            return ""

        command = shlex.join(("analyze", "trace", script, "--gpu", "t4"))
        return " -- ".join((command, *arguments))

    if report.remedies and verdict.limit_bytes is not None:
        return repeat_command(report, "fit")
    if report.kind is Kind.ESTIMATE or report.remedies:
        return repeat_command(report, "trace")

    return repeat_command(report, "estimate", "--what-if", "all")


def repeat_command(report: ReportFile, command: str, *options: str) -> str:
    """Return the command for the same step; empty if none can repeat it."""
    target = report.target
    step = report.step
    verdict = report.verdict

    if target.kind in _NOT_REPEATABLE:
        return ""

    limit: list[str] = []

    if verdict.limit_of == "user" and verdict.limit_bytes:
        limit = ["--limit", format_option_bytes(verdict.limit_bytes)]

    simulated = report.simulated_card
    gpu = look_up_gpu(verdict.card) if verdict.card else None
    card = "" if gpu is None else gpu.id

    if simulated and simulated.cards:
        card = simulated.cards[0]

    needs_run = step.eager or step.jit  # so that an estimate needs a card
    if command == "estimate" and needs_run and not card:
        card = "t4"

    is_open = step.own or command == "fit"  # which varies the batch
    batch_size = None if is_open else step.batch_size
    mode = "" if step.own else step.mode
    same = step_options(batch_size, mode, card, step.options)

    return shlex.join(("analyze", command, target.text, *same, *limit, *options))


def step_options(
    batch_size: int | None,
    mode: str,
    card: str,
    given: Sequence[str] = (),
) -> list[str]:
    """Return the options that repeat a step; ``card`` is empty for the CPU, ``given`` is repeated."""
    options = []

    if batch_size is not None and "--batch-size" not in given:
        options += ["--batch-size", str(batch_size)]
    if mode in ("infer", "generate"):
        options += ["--mode", mode]

    if card:
        options += ["--gpu", card]

    return [*options, *given]


def find_action(report: ReportFile) -> str:
    """Return one thing to do: the most valuable change, with its saving."""
    items = change_items(report)
    of_host = _ACTIONS["data-stage"][0] if report.device.kind == "gpu" else ""
    changes = (item for item in items if item.action not in ("", of_host))
    first = next(changes, None)

    if first is None:
        return _find_other_action(report)

    gain = f": {first.gain}" if first.gain else ""
    if report.verdict.outcome is Outcome.FITS:
        return f"It fits. If needed: {first.action}{gain}."

    return f"{first.action}{gain}."


def _find_other_action(report: ReportFile) -> str:
    """Return one thing to do if no change is known."""
    program = report.program

    if report.device.kind == "tpu":
        return (
            "A trace of a TPU does not say what the stack holds: the files of "
            "XLA_FLAGS=--xla_dump_to=dump do."
        )

    if report.error is not None and suggest_next(report):
        return (
            "Estimate the whole step and what each change saves: the next command does."
        )

    if report.failure is not None:
        return (
            "Trace it with a larger --limit, or on a larger card (--gpu): that shows the "
            "whole need and what reduces it."
        )

    if program and program.ended:
        if report.kind is Kind.SIMULATED_CARD:
            return (
                "Check that it runs without analyze. If it needs computed values, trace it "
                "without --gpu: a simulated card computes few."
            )
        if program.whole_run:
            return "Mend that error, and trace the program again."

    if program and program.whole_run:
        return "Let the program run more steps: changes are found in a steady step."

    limit = format_bytes(_limit_of(report))
    return f"Nothing to change: no change is known to save 1 % of {limit}."


def _limit_of(report: ReportFile) -> int:
    peak_bytes = report.peak.allocated_bytes
    return limit_of(report.verdict, report.device, report.program, peak_bytes)


def change_items(report: ReportFile) -> tuple[Item, ...]:
    """Return the problems and changes as one list: failures, estimated changes, then findings.

    A finding whose change was estimated is left out.
    """
    tried = {one.id for one in report.remedies if one.saves_bytes is not None}
    first: list[Item] = []
    others: list[Item] = []

    for finding in report.findings:
        if tried.isdisjoint((finding.id, remedy_of(finding))):
            group = first if finding.id in _BROKEN else others
            group.append(_finding_item(finding, report))

    return (*first, *remedy_items(report.remedies, report), *others)


def remedy_of(finding: Finding) -> str:
    """Return the remedy that changes the step as a finding says; empty if there is none."""
    return _ACTIONS.get(finding.id, ("", "", ""))[2]


def remedy_items(
    remedies: Sequence[StepRemedy],
    report: ReportFile | None = None,
) -> Iterator[Item]:
    """Yield the estimated changes; ``report`` names the step that a check repeats."""
    least = 0 if report is None else _LEAST_RATIO * _limit_of(report)

    for remedy in remedies:
        saves_bytes = remedy.saves_bytes
        if saves_bytes is None:
            detail = f"cannot be applied here: {remedy.failed}"
            yield Item("-", remedy.title, detail=detail, tone="muted")
            continue

        is_small = saves_bytes < least
        check = ""
        saving = f"saves {format_bytes(saves_bytes)}"
        if saves_bytes < 0:
            saving = signed_bytes(-saves_bytes)

        if report is not None:
            is_edit = remedy.id in _ACTIONS
            options = ("--prove",) if is_edit else ("--what-if", remedy.id)
            check = repeat_command(report, "estimate", *options)

        yield Item(
            saving,
            remedy.title,
            detail=describe_figures(remedy),
            code=remedy.code,
            tone="muted" if is_small else "good",
            check=check,
            action="" if is_small else remedy.title,
            gain="" if is_small else saving,
        )


def describe_figures(remedy: StepRemedy) -> str:
    """Return the peaks before and after a change, its costs and its patch, in words."""
    parts = []

    if remedy.requested_bytes is not None and remedy.saves_bytes is not None:
        before = format_bytes(remedy.requested_bytes + remedy.saves_bytes)
        after = format_bytes(remedy.requested_bytes)
        parts.append(f"peak {before} before, {after} after")

    if remedy.has_same_outputs:
        parts.append("outputs have the same shapes")
    elif remedy.has_same_outputs is not None:
        parts.append("the shapes of the outputs differ")

    if remedy.fits is not None:
        parts.append("fits the limit" if remedy.fits else "does not fit the limit")
    if remedy.costs:
        parts.append(f"costs: {remedy.costs}")

    if remedy.patch:
        parts.append(f"patch: {remedy.patch}")
    elif remedy.no_patch:
        parts.append(f"patch: none. {remedy.no_patch}")

    return "; ".join(parts)


def _finding_item(finding: Finding, report: ReportFile) -> Item:
    action, code, remedy = _ACTIONS.get(finding.id, ("", "", ""))
    batch = report.step.batch_size or 0

    if remedy == "half-batch" and batch > 1 and report.program is None:
        code = f"batch_size = {batch // 2}  # {batch} before"

    # The code is that of TensorFlow 2.
    is_session = report.program is not None and "Session" in report.program.step
    if is_session or report.step.is_jax or _HELD_ARRAY.search(str(finding.evidence)):
        code = ""

    kept_in = _LIST_NAME.search(finding.title)
    if kept_in is not None:
        code = code.replace("losses", kept_in[1])
        code = code.replace("del model", f"{kept_in[1]}.remove(model)\ndel model")

    is_fixed = remedy == "half-batch" and report.step.own
    check = ""
    gain = ""

    if remedy and not is_fixed:
        check = repeat_command(report, "estimate", "--what-if", remedy)

    if finding.saves_bytes:
        of_compiled = (
            "batch-tensors" if report.step.jit else ""
        )  # XLA plans another layout
        is_limit = finding.id in ("workspace", "larger-call", of_compiled)
        word = "at most" if is_limit else "about"
        kind = "of state" if finding.id == "optimizer-state" else finding.saves_kind
        gain = f"saves {word} {format_bytes(finding.saves_bytes)} {kind}"

    return Item(
        finding.severity,
        finding.title,
        gain=gain,
        detail=finding.detail,
        code=code,
        tone=_TONES.get(finding.severity, "plain"),
        check=check,
        table=_evidence_table(finding),
        action=action,
    )


def _evidence_table(finding: Finding) -> Table | None:
    rows = finding.evidence
    if not rows:
        return None

    columns = []
    cells = []

    for key in dict.fromkeys(chain.from_iterable(rows)):
        values = [row.get(key) for row in rows]
        if not any(values):
            continue

        kind: ColumnKind = "bytes" if key.endswith("bytes") else "number"

        if any(isinstance(value, (str, bool)) for value in values):
            kind = "path"

        name = key.removesuffix("_bytes").replace("_", " ")
        columns.append(TableColumn(name, kind))
        cells.append(values)

    return Table(tuple(columns), tuple(zip(*cells, strict=True)))
