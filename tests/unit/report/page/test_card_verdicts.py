"""The card selector of the page judges as the report does."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import sample_folder
from msgspec.structs import replace

from analyzer.model.contract.report.limit_figures import Outcome
from analyzer.model.ranges import BoundedBytes
from analyzer.report.page.build import judge_cards
from analyzer.report.summary import OUTCOME_TONES
from analyzer.session.opening import open_result

NOTES = Path(__file__).parents[2] / "predict" / "notes"


def test_the_reports_own_card_has_the_reports_verdict() -> None:
    report = open_result(NOTES / "gpu").report
    own = [row for row in judge_cards(report) if row["name"] == report.verdict.card]
    assert [row["headline"] for row in own] == [report.verdict.headline]
    assert own[0]["tone"] == OUTCOME_TONES[report.verdict.outcome]


def test_a_need_between_two_cards_fits_only_the_larger() -> None:
    report = open_result(sample_folder("cnn")).report
    need = report.verdict.need
    larger = replace(need, allocator=BoundedBytes.exactly(20 << 30))
    large = replace(report, verdict=replace(report.verdict, need=larger))
    tones = {row["id"]: row["tone"] for row in judge_cards(large)}
    assert tones["t4"] == OUTCOME_TONES[Outcome.DOES_NOT_FIT]
    assert tones["a100-40gb-sxm"] == OUTCOME_TONES[Outcome.FITS]


@pytest.mark.parametrize("name", ["oom"])
def test_a_failed_step_has_no_other_verdict(name: str) -> None:
    assert judge_cards(open_result(sample_folder(name)).report) == []
