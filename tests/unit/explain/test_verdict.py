"""Does it fit: one record, and only for a card or a limit that the user gave."""

from pathlib import Path

import pytest
from builders import SAMPLES, sample_folder, with_recording
from msgspec import structs

from analyzer.explain.verdict import judge
from analyzer.model.contract.child_messages import WhatIf
from analyzer.model.contract.report_file import LimitOf, NeedOf, Outcome, TrustFigures
from analyzer.model.recording.records import DamageReason, describe_damage
from analyzer.session.opening import open_result

GIB = 2**30
NOTES = Path(__file__).parents[1] / "predict" / "notes"


@pytest.mark.parametrize("name", SAMPLES)
def test_the_limit_of_a_captures_own_allocator_gives_no_verdict(name: str) -> None:
    result = open_result(sample_folder(name), search=False)
    verdict = result.document["verdict"]
    assert result.document["device"]["memory_limit_bytes"]
    assert result.document["fits"] is None
    assert verdict["outcome"] == ("failed" if name == "oom" else "no limit given")
    assert (
        verdict["limit_bytes"] is verdict["limit_of"] is verdict["margin_bytes"] is None
    )
    assert "fit" not in verdict["headline"]


@pytest.mark.parametrize("limit_mib", [8, 10, 64])
def test_a_limit_asked_about_is_judged_by_the_least_limit(limit_mib: int) -> None:
    limit = limit_mib << 20
    what_if = WhatIf(memory_limit_bytes=limit)
    result = open_result(sample_folder("transformer"), what_if=what_if)
    document = result.document
    verdict = document["verdict"]
    assert verdict["limit_of"] == LimitOf.USER
    assert verdict["need_of"] == NeedOf.LEAST_LIMIT
    assert verdict["need_bytes"] == result.analysis.safe_limit_bytes
    assert verdict["margin_bytes"] == limit - verdict["need_bytes"]
    assert document["fits"] is document["what_if"]["fits"]
    assert document["fits"] == (verdict["margin_bytes"] >= 0)


def test_a_step_that_ended_early_needs_at_least_so_much() -> None:
    ample = open_result(
        sample_folder("oom"), what_if=WhatIf(memory_limit_bytes=GIB)
    ).document
    assert ample["fits"] == "may not"
    assert "needs at least" in ample["verdict"]["headline"]
    tight = open_result(
        sample_folder("oom"), what_if=WhatIf(memory_limit_bytes=8 << 20)
    ).document
    assert tight["fits"] is False


def test_a_card_counts_where_more_than_it_has_was_asked_about() -> None:
    folder = NOTES / "gpu"
    low = open_result(folder, what_if=WhatIf(memory_limit_bytes=GIB)).document[
        "verdict"
    ]
    assert (low["limit_of"], low["limit_bytes"]) == ("user", GIB)
    high = open_result(folder, what_if=WhatIf(memory_limit_bytes=64 * GIB)).document[
        "verdict"
    ]
    assert (high["limit_of"], high["card"]) == ("card", "Tesla T4")
    assert 14 * GIB < high["limit_bytes"] < 16 * GIB


def test_tensors_of_unknown_size_leave_the_answer_open() -> None:
    analysis = open_result(NOTES / "gpu").analysis
    assert analysis.verdict.outcome is Outcome.FITS
    stated = structs.replace(analysis.recording.uncertainty, unsized=2)
    judged = judge(with_recording(analysis, uncertainty=stated), None)
    assert judged.verdict.outcome is Outcome.CANNOT_TELL
    assert "needs at least" in judged.verdict.headline


def test_a_damaged_trace_is_not_said_to_fit() -> None:
    result = open_result(sample_folder("cnn"), what_if=WhatIf(memory_limit_bytes=GIB))
    assert result.document["fits"] is True
    damage = describe_damage(DamageReason.LOST_EVENTS, 1)
    integrity = TrustFigures(is_damaged=True, damages=(damage,))
    judged = judge(with_recording(result.analysis, integrity=integrity), GIB)
    assert judged.verdict.outcome is Outcome.CANNOT_TELL
