"""The command to run after an answer."""

from __future__ import annotations

import shlex

from analyzer.model.contract.capture_request import TargetKind
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.subject import Kind

_LIVE = "live"
"""Kind of a target that exists only in the user's process."""


def suggest_next(report: ReportFile) -> str:
    """Return the command that continues from a report; empty if none does.

    A trace is followed by estimates of remedies, an estimate by a run, a trace without its model's
    graph by the same trace joined with the model.
    """
    target = report.target
    if target.kind == TargetKind.TRACE:
        return shlex.join(("analyze", "trace", target.text, "--target", "train.py:build_model"))
    if not target.kind or target.kind in (_LIVE, TargetKind.SCRIPT):
        return ""
    card = _find_card(report)
    options = step_options(report.step.batch_size, report.step.mode, report.step.jit, card)
    if report.kind is Kind.ESTIMATE:
        return shlex.join(("analyze", "trace", target.text, *options))
    return shlex.join(("analyze", "estimate", target.text, *options, "--what-if", "all"))


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


def _find_card(report: ReportFile) -> str:
    if report.phantom is not None and report.phantom.cards:
        return report.phantom.cards[0]
    return "" if report.fit is None else report.fit.card
