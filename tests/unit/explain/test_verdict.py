"""Does it fit: one record, and only for a card or a limit that the user gave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders import SAMPLES, sample_folder
from msgspec import structs

from analyzer.explain.judgement import judge
from analyzer.explain.replay_settings import WhatIf
from analyzer.explain.verdict import BASES, cautions_of, headline_of, outcome_of
from analyzer.model.contract.report.limit_figures import Basis, LimitOf, NeedOf, Outcome
from analyzer.model.ranges import BoundedBytes, Range
from analyzer.model.recording.records import Damage, DamageReason, Integrity
from analyzer.session.opening import open_result

GIB = 2**30
NOTES = Path(__file__).parents[1] / "predict" / "notes"


def bounds(low: float, size: float, high: float) -> BoundedBytes:
    return BoundedBytes(int(size * GIB), Range(int(low * GIB), int(high * GIB)))


LIMIT = bounds(9, 10, 11)


@pytest.mark.parametrize(
    ("need", "is_complete", "outcome"),
    [
        (bounds(1, 2, 3), True, Outcome.FITS),
        (bounds(1, 2, 9.5), True, Outcome.CANNOT_TELL),  # above the low end
        (bounds(1, 2, 3), False, Outcome.CANNOT_TELL),  # sizes are unknown
        (bounds(12, 13, 14), True, Outcome.DOES_NOT_FIT),
        (bounds(12, 13, 14), False, Outcome.DOES_NOT_FIT),
        (bounds(10, 10, 10), True, Outcome.CANNOT_TELL),
    ],
)
def test_outcome(need: BoundedBytes, is_complete: bool, outcome: Outcome) -> None:
    assert outcome_of(LIMIT, need, is_complete=is_complete) is outcome


@pytest.mark.parametrize(
    ("outcome", "need", "incomplete", "headline"),
    [
        (Outcome.FITS, (2, 3, 4), "", "FITS T4: needs 3.00 GiB of 10.00 GiB, 7.00 GiB to spare"),
        (
            Outcome.DOES_NOT_FIT, (12, 13, 14), "",
            "DOES NOT FIT T4: needs 13.00 GiB of 10.00 GiB, 3.00 GiB too much",
        ),
        (
            Outcome.CANNOT_TELL, (2, 3, 10), "",
            "MAY NOT FIT T4: needs 3.00 GiB (2.00 GiB to 10.00 GiB) of 10.00 GiB (9.00 GiB to "
            "11.00 GiB)",
        ),
        (
            Outcome.CANNOT_TELL, (3, 3, 3), "2 tensors have no known size",
            "CANNOT TELL if it fits T4: needs at least 3.00 GiB of 10.00 GiB (9.00 GiB to 11.00 GiB); "
            "2 tensors have no known size",
        ),
    ],
)  # fmt: skip
def test_headline(
    outcome: Outcome, need: tuple[float, float, float], incomplete: str, headline: str
) -> None:
    assert headline_of(outcome, "T4", LIMIT, bounds(*need), incomplete) == headline


@pytest.mark.parametrize(
    ("outcome", "need", "incomplete", "words"),
    [
        (Outcome.FITS, (3, 3, 3), "", "needs 3.00 GiB of 10.00 GiB, 7.00 GiB to spare"),
        (
            Outcome.CANNOT_TELL,
            (3, 3, 3),
            "why",
            "needs at least 3.00 GiB of 10.00 GiB (9.00 GiB to 11",
        ),
    ],
)
def test_the_headline_of_a_program_leads_with_tensorflows_own_peak(
    outcome: Outcome, need: tuple[float, float, float], incomplete: str, words: str
) -> None:
    line = headline_of(outcome, "T4", LIMIT, bounds(*need), incomplete, own_peak_bytes=2 << 30)
    assert f" T4: TensorFlow's own peak is 2.00 GiB; its pool {words}" in line
    least = headline_of(Outcome.FITS, "T4", LIMIT, bounds(3, 3, 3), own_peak_bytes=1, is_least=True)
    assert "its pool needs at least 3.00 GiB of 10.00 GiB" in least


def test_every_kind_has_a_basis() -> None:
    kinds = ("trace", "estimate", "phantom")
    assert [BASES[kind] for kind in kinds] == [
        Basis.MEASURED, Basis.PREDICTED, Basis.PHANTOM,
    ]  # fmt: skip


def test_a_figure_lies_in_its_bounds() -> None:
    assert BoundedBytes.around(5, 6, 7).range == Range(5, 7)
    assert BoundedBytes.around(8, 6, 7).range == Range(6, 8)
    assert BoundedBytes.around(8, -6, 9).range.low == 0


@pytest.mark.parametrize("name", SAMPLES)
def test_the_limit_of_a_captures_own_allocator_gives_no_verdict(name: str) -> None:
    result = open_result(sample_folder(name), search=False)
    verdict = result.document["verdict"]
    assert result.document["device"]["memory_limit_bytes"]
    assert result.document["fits"] is None
    assert verdict["outcome"] == ("failed" if name == "oom" else "no limit given")
    assert verdict["limit_bytes"] is verdict["limit_of"] is verdict["margin_bytes"] is None
    assert "fit" not in verdict["headline"]


@pytest.mark.parametrize("limit_mib", [8, 9, 10, 14, 64])
def test_a_limit_asked_about_is_judged_by_the_least_limit(limit_mib: int) -> None:
    limit = limit_mib << 20
    what_if = WhatIf(memory_limit_bytes=limit)
    document = open_result(sample_folder("transformer"), what_if=what_if).document
    verdict = document["verdict"]
    assert verdict["limit_of"] == LimitOf.USER
    assert verdict["need_of"] == NeedOf.LEAST_LIMIT
    assert verdict["need_bytes"] == document["fragmentation"]["safe_limit_bytes"]
    assert verdict["margin_bytes"] == limit - verdict["need_bytes"]
    assert document["fits"] is document["what_if"]["fits"]
    assert document["fits"] == (verdict["margin_bytes"] >= 0)


def test_a_step_that_ended_early_needs_at_least_so_much() -> None:
    ample = open_result(sample_folder("oom"), what_if=WhatIf(memory_limit_bytes=GIB)).document
    assert ample["fits"] == "may not"
    assert "needs at least" in ample["verdict"]["headline"]
    tight = open_result(sample_folder("oom"), what_if=WhatIf(memory_limit_bytes=8 << 20)).document
    assert tight["fits"] is False


def test_a_card_counts_where_more_than_it_has_was_asked_about() -> None:
    folder = NOTES / "gpu"
    low = open_result(folder, what_if=WhatIf(memory_limit_bytes=GIB)).document["verdict"]
    assert (low["limit_of"], low["limit_bytes"]) == ("user", GIB)
    high = open_result(folder, what_if=WhatIf(memory_limit_bytes=64 * GIB)).document["verdict"]
    assert (high["limit_of"], high["card"]) == ("card", "Tesla T4")
    assert 14 * GIB < high["limit_bytes"] < 16 * GIB


def test_another_setting_without_a_limit_gives_no_verdict() -> None:
    document = open_result(sample_folder("cnn"), what_if=WhatIf(growth=False)).document
    assert document["what_if"]["fits"]
    assert document["fits"] is None


def test_a_wide_range_is_told_first() -> None:
    for name, is_wide in (("gpu", True), ("infer", False)):
        cautions = open_result(NOTES / name, search=False).document["verdict"]["cautions"]
        assert any("may be anywhere from" in caution for caution in cautions) == is_wide


def test_a_warnings_first_clause_is_a_caution() -> None:
    analysis = open_result(sample_folder("cnn"), search=False).analysis
    warnings = (
        "No rule is known for ops of the types Foo, Bar: each output is taken to be allocated.",
        "3 branches or loops depend on data (a, b): the first branch is taken.",
        "2 events (of 9) are lost. Capture it again.",
    )
    recording = replace(analysis.recording, warnings=warnings)
    assert cautions_of(replace(analysis, recording=recording)) == (
        "No rule is known for ops of the types Foo, Bar",
        "3 branches or loops depend on data",
        "2 events are lost",
    )


def test_tensors_of_unknown_size_leave_the_answer_open() -> None:
    analysis = open_result(NOTES / "gpu").analysis
    assert analysis.verdict is not None
    assert analysis.verdict.outcome is Outcome.FITS
    stated = structs.replace(analysis.recording.uncertainty, unsized=2)
    recording = replace(analysis.recording, uncertainty=stated)
    judged = judge(replace(analysis, recording=recording), None)
    assert judged.verdict is not None
    assert judged.verdict.outcome is Outcome.CANNOT_TELL
    assert "needs at least" in judged.verdict.headline


def test_a_damaged_trace_is_not_said_to_fit() -> None:
    result = open_result(sample_folder("cnn"), what_if=WhatIf(memory_limit_bytes=GIB))
    assert result.document["fits"] is True
    integrity = Integrity(damages=(Damage(reason=DamageReason.LOST_EVENTS, count=1),))
    recording = replace(result.recording, integrity=integrity)
    judged = judge(replace(result.analysis, recording=recording), GIB)
    assert judged.verdict is not None
    assert judged.verdict.outcome is Outcome.CANNOT_TELL
