"""The command to run after an answer."""

from __future__ import annotations

import shlex
from typing import Final

from analyzer.model.contract.capture_request import TargetKind
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.subject import Kind

_NOT_REPEATABLE: Final = ("", "live", TargetKind.SCRIPT, TargetKind.TRACE)
"""Kinds of targets that no command captures again with the same step; ``live`` is the user's process."""


def suggest_next(report: ReportFile) -> str:
    """Return the command that continues from a report; empty if none does.

    A trace is followed by estimates of remedies, an estimate by a run, a trace without its model's
    graph by the same trace joined with the model.
    """
    target = report.target
    if target.kind == TargetKind.TRACE:
        return shlex.join(("analyze", "trace", target.text, "--target", "train.py:build_model"))
    if report.kind is Kind.ESTIMATE:
        return repeat_command(report, "trace")
    return repeat_command(report, "estimate", "--what-if", "all")


def repeat_command(report: ReportFile, command: str, *options: str) -> str:
    """Return the command for the same step; empty for a target that cannot be captured again."""
    target, step = report.target, report.step
    if target.kind in _NOT_REPEATABLE:
        return ""
    card = "" if report.fit is None else report.fit.card
    if report.phantom is not None and report.phantom.cards:
        card = report.phantom.cards[0]
    same = step_options(step.batch_size, step.mode, step.jit, card)
    return shlex.join(("analyze", command, target.text, *same, *options))


def step_options(batch_size: int | None, mode: str, jit: bool | None, card: str) -> list[str]:
    """Return the options that repeat a step; ``card`` is empty for the CPU."""
    options = [] if batch_size is None else ["--batch-size", str(batch_size)]
    if mode == "infer":
        options += ["--mode", "infer"]
    if card:
        options += ["--gpu", card]
    if jit is False and card:
        options.append("--no-jit")
    return options
