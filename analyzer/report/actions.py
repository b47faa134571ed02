"""Separate actions from observations: the changes of a step, each with code, saving and check."""

import shlex
from collections.abc import Sequence
from itertools import chain
from typing import Final

from analyzer.cards.catalogue import look_up_gpu
from analyzer.model.contract.capture_request import TargetKind
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.subject import Finding, Kind, Severity, StepRemedy
from analyzer.model.tables import read_table
from analyzer.model.units import format_option_bytes
from analyzer.report.render.sections import ColumnKind, Item, Table, TableColumn, Tone
from analyzer.report.summary import remedy_words, saving_words

_NOT_REPEATABLE: Final = ("", "live", TargetKind.SCRIPT, TargetKind.TRACE)
"""Kinds of targets that no command captures again with the same step; ``live`` is the user's process."""


def suggest_next(report: ReportFile) -> str:
    """Return the command that continues from a report; empty if none does."""
    target = report.target
    if target.kind == TargetKind.TRACE and not report.step.is_jax:
        return shlex.join(
            ("analyze", "trace", target.text, "--target", "train.py:build_model")
        )

    if target.kind == TargetKind.SCRIPT and target.text.endswith(".py"):
        card = [] if report.device.kind == "gpu" else ["--gpu", "t4"]
        return shlex.join(("analyze", "trace", target.text, *card))
    if report.kind is Kind.ESTIMATE:
        return repeat_command(report, "trace")
    return repeat_command(report, "estimate", "--what-if", "all")


def repeat_command(
    report: ReportFile, command: str, *options: str, card: str = ""
) -> str:
    """Return the command for the same step, on ``card`` if given; empty if none can repeat it."""
    target, step = report.target, report.step
    if target.kind in _NOT_REPEATABLE:
        return ""

    verdict, limit = report.verdict, []
    if (
        not card
        and verdict is not None
        and verdict.limit_of == "user"
        and verdict.limit_bytes
    ):
        limit = ["--limit", format_option_bytes(verdict.limit_bytes)]

    if not card and report.phantom is not None and report.phantom.cards:
        card = report.phantom.cards[0]
    elif not card and report.verdict is not None and report.verdict.card:
        gpu = look_up_gpu(report.verdict.card)
        card = "" if gpu is None else gpu.id

    batch_size, mode = (None, "") if step.own else (step.batch_size, step.mode)
    same = step_options(batch_size, mode, step.jit, card, step.options)
    return shlex.join(("analyze", command, target.text, *same, *limit, *options))


def step_options(
    batch_size: int | None,
    mode: str,
    jit: bool | None,
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
    if jit is False and card and "--no-jit" not in given:
        options.append("--no-jit")

    return [*options, *given]


MOST_EVIDENCE: Final = 20  # rows of a finding on a page

_TONES: Final[dict[str, Tone]] = {"high": "bad", "medium": "warning", "info": "muted"}

_ACTIONS: Final = read_table("report/actions.toml", dict[str, tuple[str, str]])
"""Finding -> code that applies its advice, and the remedy that estimates it; empty for none."""


def change_items(report: ReportFile) -> tuple[Item, ...]:
    """Return the changes that lower the memory: estimated remedies first, then findings."""
    items = list(remedy_items(report.remedies, report))
    batch = report.step.batch_size or 0
    tried = {one.id for one in report.remedies if one.saves_bytes is not None}

    for finding in filter(is_action, report.findings):
        code, remedy = ("", "") if report.step.is_jax else _ACTIONS[finding.id]
        if remedy in tried:  # shown above with its code and estimate
            items.append(_finding_item(finding))
            continue
        if remedy == "half-batch":
            code = f"batch_size = {batch // 2}  # {batch} before" if batch > 1 else ""

        items.append(_finding_item(finding, code, _check_command(report, remedy)))

    return tuple(items)


def observation_items(report: ReportFile) -> tuple[Item, ...]:
    """Return the findings that are no change."""
    return tuple(_finding_item(one) for one in report.findings if not is_action(one))


def is_action(finding: Finding) -> bool:
    """Return whether a finding has a change that can be pasted."""
    return finding.id in _ACTIONS and finding.severity is not Severity.INFO


def remedy_items(
    remedies: Sequence[StepRemedy], report: ReportFile | None = None
) -> tuple[Item, ...]:
    """Return the estimated remedies; ``report`` names the step that a check repeats."""
    items = []

    for remedy in remedies:
        label, words = remedy_words(remedy)
        code = check = ""
        tone: Tone = "muted"
        if remedy.saves_bytes is not None:
            tone = "good" if remedy.saves_bytes > 0 else "muted"
            code = remedy.code
            check = "" if report is None else _check_command(report, remedy.id)

        items.append(Item(label, remedy.title, "", words, code, tone, check))

    return tuple(items)


def _finding_item(finding: Finding, code: str = "", check: str = "") -> Item:
    tone, evidence = _TONES.get(finding.severity, "plain"), _evidence_table(finding)
    facts = (finding.severity, finding.title, saving_words(finding), finding.detail)
    return Item(*facts, code, tone, check, evidence)


def _check_command(report: ReportFile, remedy: str) -> str:
    """Return the command that verifies a change; empty for a target of the user's own process."""
    target = report.target
    if target.kind == TargetKind.TRACE:
        return shlex.join(("analyze", "diff", target.text, "NEW_TRACE"))
    if target.kind == TargetKind.SCRIPT:
        return shlex.join(("analyze", "trace", target.text))
    if remedy:
        return repeat_command(report, "estimate", "--what-if", remedy)
    return repeat_command(report, "trace")


def _evidence_table(finding: Finding) -> Table | None:
    rows = finding.evidence[:MOST_EVIDENCE]
    if not rows:
        return None

    columns, cells = [], []

    for key in dict.fromkeys(chain.from_iterable(rows)):
        values = [row.get(key) for row in rows]
        kind: ColumnKind = "bytes" if key.endswith("_bytes") else "number"
        if any(isinstance(value, (str, bool, tuple, list)) for value in values):
            kind = "path"
            values = [_text_of(value) for value in values]

        columns.append(TableColumn(key.removesuffix("_bytes").replace("_", " "), kind))
        cells.append(values)

    left = len(finding.evidence) - len(rows)
    more = f"{left} more rows are in the JSON" if left else ""
    return Table(tuple(columns), tuple(zip(*cells, strict=True)), more)


def _text_of(value: object) -> str | None:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return None if value is None else str(value)
