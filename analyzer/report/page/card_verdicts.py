"""Judge the need of a report on each card of the catalogue, for the page's card selector."""

from __future__ import annotations

from msgspec.structs import replace

from analyzer.cards import all_gpus, memory_beside_pool, memory_limit
from analyzer.explain.judgement import Question
from analyzer.explain.verdict import headline_of, outcome_of
from analyzer.model.contract.report.limit_figures import LimitOf
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.ranges import BoundedBytes
from analyzer.report.actions import repeat_command
from analyzer.report.summary import OUTCOME_TONES


def judge_cards(report: ReportFile) -> list[dict[str, str]]:
    """Return id, name, headline, tone and check of each card, by memory; empty without a need.

    The pool's part of the need stays, the memory beside the pool is that of each card. The workspaces of
    another card's kernels are unknown here; an estimate with ``--gpu`` includes them.
    """
    need = None if report.verdict is None else report.verdict.need
    if need is None or report.error is not None:
        return []
    incomplete = ""
    if report.integrity is not None and report.integrity.is_damaged:
        incomplete = "the trace is damaged"
    elif report.uncertainty is not None and report.uncertainty.unsized:
        incomplete = "some tensors have no size"
    rows = []
    for gpu in sorted(all_gpus(), key=lambda gpu: (gpu.nominal_bytes, gpu.id)):
        beside = BoundedBytes.exactly(memory_beside_pool(gpu))
        question = Question(
            limit_of=LimitOf.CARD, limit=memory_limit(gpu), beside_pool=beside, runs_at_limit=True
        )
        total = replace(need, beside_pool=beside).total
        outcome = outcome_of(question.whole, total, is_complete=not incomplete)
        headline = headline_of(outcome, gpu.name, question.whole, total, incomplete)
        row = {"id": gpu.id, "name": gpu.name, "headline": headline, "tone": OUTCOME_TONES[outcome]}
        rows.append({**row, "check": repeat_command(report, "estimate", card=gpu.id)})
    return rows
