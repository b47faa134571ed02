"""No verdict contradicts its own numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from builders import sample_folder, with_recording
from msgspec import structs

from analyzer.explain import run_range
from analyzer.explain.analysis import Analysis
from analyzer.explain.need import find_need
from analyzer.explain.run_range import with_run_range
from analyzer.explain.verdict import FITS, Question, judge, make_verdict
from analyzer.model.contract.report_file import (
    LifePhase,
    LimitOf,
    Need,
    NeedOf,
    Outcome,
    VerdictFigures,
)
from analyzer.model.contract.run_note import WatchNote
from analyzer.model.graph.graph_index import GRADIENT_ROLE
from analyzer.model.recording.records import TRIAL, Kind, Step
from analyzer.model.units import BoundedBytes, Range
from analyzer.report.answer import answer_lines, has_limit
from analyzer.report.result import Result
from analyzer.session.opening import open_result
from analyzer.simulate.allocator.replay import from_allocations

MIB, GIB = 2**20, 2**30
NOTES = Path(__file__).parents[1] / "predict" / "notes"
RESULTS = 3_000


def make_size(random: random.Random, most: int, *, exact: bool) -> BoundedBytes:
    size = random.randrange(most)
    if exact:
        return BoundedBytes.exactly(size)
    return BoundedBytes.around(
        size, size - random.randrange(most), size + random.randrange(most)
    )


def make_need(random: random.Random, *, exact: bool) -> tuple[Need, Need]:
    """Return a need without trials, and one with more."""

    def phase() -> BoundedBytes:
        return make_size(
            random, random.choice((64 * MIB, 4 * GIB, 20 * GIB)), exact=exact
        )

    first = phase()
    least = Need(
        before_trace=phase() if random.random() < 0.1 else None,
        building=phase() if random.random() < 0.8 else None,
        first_step=first if random.random() < 0.8 else None,
        steady_step=phase(),
        allocator=BoundedBytes.exactly(random.randrange(GIB)),
    )
    if least.first_step is None or random.random() < 0.5:
        return least, least
    trials = first + make_size(random, 4 * GIB, exact=False)
    return least, structs.replace(least, first_step=trials)


def make_question(random: random.Random, kind: Kind) -> Question | None:
    if random.random() < 0.1:
        return None
    limit = make_size(random, 24 * GIB, exact=random.random() < 0.3)
    is_own = kind is Kind.SIMULATED_CARD and random.random() < 0.8
    runs = random.random() < 0.7
    on_card = random.random() < 0.6
    if not on_card or (is_own and not runs):
        limit = BoundedBytes.exactly(limit.bytes)
    return Question(
        limit_of=LimitOf.CARD if on_card else LimitOf.USER,
        limit=limit,
        beside_pool=make_size(random, 2 * GIB, exact=True) if on_card else None,
        runs_at_limit=runs,
        is_own=is_own,
    )


def make_result(random: random.Random) -> tuple[VerdictFigures, str]:
    kind = random.choice(list(Kind))
    question = make_question(random, kind)
    has_failed = random.random() < 0.1
    if question is not None and question.is_own:
        has_failed = not question.runs_at_limit
    base = VerdictFigures(
        outcome=Outcome.FAILED if has_failed else Outcome.NO_LIMIT,
        card="Tesla T4"
        if question is None or question.limit_of is LimitOf.CARD
        else None,
        headline="Peak",
        need_of=random.choice(list(NeedOf)),
    )
    incomplete = (
        "the step did not end" if has_failed else random.choice(("", "", "2 unknown"))
    )
    has_run_out = has_failed and random.random() < 0.8
    is_measured = kind is Kind.TRACE
    least, most = make_need(random, exact=is_measured)
    verdict = make_verdict(
        base,
        question,
        least,
        most,
        is_measured=is_measured,
        incomplete=incomplete,
        has_run_out=has_run_out,
    )
    return verdict, incomplete


def check_numbers(verdict: VerdictFigures) -> None:
    """Check the total against the parts, and the margin and ranges."""
    need = verdict.need
    if need is None:
        assert verdict.need_bytes is None
        return
    largest = need.phases[need.largest_phase].bytes
    beside = 0 if need.beside_pool is None else need.beside_pool.bytes
    assert verdict.need_bytes == largest + need.allocator.bytes + beside
    assert all(phase.bytes <= largest for phase in need.phases.values())
    assert 0 <= verdict.need_low_bytes <= verdict.need_bytes <= verdict.need_high_bytes
    if verdict.limit_bytes is not None:
        assert verdict.margin_bytes == verdict.limit_bytes - verdict.need_bytes


def check_answer(verdict: VerdictFigures, incomplete: str) -> None:
    """Check the outcome and the words against need and limit."""
    limits = (verdict.limit_low_bytes, verdict.limit_high_bytes)
    needs = (verdict.need_low_bytes, verdict.need_high_bytes)
    if None in limits or verdict.outcome in (Outcome.FAILED, Outcome.NO_LIMIT):
        assert verdict.headline == "Peak"
        assert FITS.get(verdict.outcome) is None
        return
    (limit, need), head = (Range(*limits), Range(*needs)), verdict.headline
    is_above, is_below = need.low > limit.high, need.high <= limit.low
    assert head.startswith("DOES NOT FIT ") == is_above
    assert head.startswith("FITS ") == (is_below and not incomplete)
    assert head.startswith("MAY NOT FIT ") == (not is_above and not is_below)
    assert head.startswith("CANNOT TELL ") == bool(is_below and incomplete)
    fits = {"F": True, "D": False, "M": "may not", "C": "may not"}[head[0]]
    assert FITS.get(verdict.outcome) == fits


def test_no_verdict_contradicts_its_numbers() -> None:
    chances, report = (
        random.Random(7),
        open_result(sample_folder("infer"), search=False).report,
    )
    seen = set()
    for _ in range(RESULTS):
        verdict, incomplete = make_result(chances)
        seen.add(verdict.outcome)
        check_numbers(verdict)
        check_answer(verdict, incomplete)
        shown = structs.replace(
            report, verdict=verdict, fits=FITS.get(verdict.outcome), error=None
        )
        result = Result(lambda: None, shown)
        assert result.is_over_limit == verdict.headline.startswith("DOES NOT FIT")
        if verdict.need is not None:
            first = answer_lines(shown)[1]
            start = "That is " if has_limit(shown) else "Needs "
            assert first.startswith(start)
    assert seen == set(Outcome)


def open_first_step() -> tuple[Analysis, Step, int]:
    """Return a recording of a card, its first step, and the instant of that step's peak."""
    analysis = open_result(NOTES / "gpu", search=False).analysis
    step = analysis.recording.steps[0]
    in_step = analysis.line.requested[step.first + 1 : step.last + 2]
    return analysis, step, step.first + int(in_step.argmax())


def test_trials_that_do_not_fit_are_skipped() -> None:
    analysis, first, peak = open_first_step()
    rows = analysis.rows
    is_brief = rows["born"].between(first.first, peak)
    is_brief &= rows["dies"].between(peak + 1, first.last)
    marked = rows.assign(region=rows["region"].astype(str).mask(is_brief, TRIAL))
    least, most = find_need(replace(analysis, rows=marked))
    low, high = (one.phases[LifePhase.FIRST_STEP] for one in (least, most))
    assert low.bytes < high.bytes
    most = structs.replace(most, first_step=high + BoundedBytes.exactly(GIB))
    room = (least.pool.range.high + most.pool.range.high) // 2
    base = VerdictFigures(outcome=Outcome.NO_LIMIT, headline="")
    for limit, is_skipped in ((room, True), (most.pool.range.high, False)):
        question = Question(
            limit_of=LimitOf.USER, limit=BoundedBytes.exactly(limit), runs_at_limit=True
        )
        verdict = make_verdict(base, question, least, most, is_measured=False)
        assert verdict.outcome is Outcome.FITS
        assert (verdict.need.pool.bytes < most.pool.bytes) == is_skipped


def test_updates_may_run_before_the_first_peak_or_after_it() -> None:
    # GIVEN a first step in which some gradients are known before the peak
    analysis, step, instant = open_first_step()
    rows = analysis.rows
    is_earlier = rows["born"].between(step.first, instant)
    is_earlier &= rows["requested_bytes"] < MIB
    is_alive = rows["dies"] > instant

    def find_range(is_gradient: pd.Series[bool]) -> Range:
        roles = rows["role"].astype(str).mask(is_gradient, GRADIENT_ROLE)
        marked = rows.assign(role=roles.mask(~is_gradient, ""))
        first_step = find_need(replace(analysis, rows=marked))[1].first_step
        return first_step.range

    # WHEN none is a variable's, those that are alive at the peak, or all
    none = find_range(is_earlier & ~is_earlier)
    alive = find_range(is_earlier & is_alive)
    both = find_range(is_earlier)

    # THEN a run may hold none of them there, or all
    held_bytes = int(rows.loc[is_earlier & is_alive, "requested_bytes"].sum())
    freed_bytes = int(rows.loc[is_earlier & ~is_alive, "requested_bytes"].sum())
    assert min(held_bytes, freed_bytes) > 0
    assert (alive.low, alive.high) == (none.low - held_bytes, none.high)
    assert (both.low, both.high) == (none.low - held_bytes, none.high + freed_bytes)


def test_the_range_of_the_need_holds_other_orders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    analysis = open_result(NOTES / "gpu", search=False).analysis
    recording = replace(analysis.recording, repeats=(analysis.peak,))
    safe_bytes = analysis.peak.allocated_bytes - 1
    analysis = replace(analysis, recording=recording, safe_limit_bytes=safe_bytes)

    # A replay without workspaces does not lower it.
    stated = with_run_range(analysis).recording.uncertainty
    assert stated.limit_high_bytes == stated.allocated_high_bytes

    # A small buffer that is born late stays behind a large one, which the largest then cannot use.
    sizes = {"requested_bytes": [MIB, 8 * GIB, 16 * GIB], "dies": [9, 3, 9]}
    orders = [
        from_allocations(pd.DataFrame({**sizes, "born": [born, 1, 3]}))
        for born in (0, 2)
    ]
    monkeypatch.setattr(run_range, "_sample_orders", lambda _: orders)
    assert with_run_range(analysis).recording.uncertainty.limit_high_bytes > 8 * GIB


def test_a_trace_that_begins_late_counts_tensorflows_own_peak() -> None:
    analysis = open_result(sample_folder("infer"), search=False).analysis
    recording = analysis.recording
    events, table = recording.events.copy(), recording.allocations.copy()
    counted = int(events["peak_in_use_bytes"].max()) + 3 * GIB
    events["peak_in_use_bytes"] = counted
    table.loc[table.index[0], "born"] = -1
    _, need = find_need(with_recording(analysis, events=events, allocations=table))
    assert need.before_trace
    assert need.building is None
    assert need.pool.bytes == counted


@pytest.mark.parametrize(
    ("limit", "outcome"), [(3, Outcome.CANNOT_TELL), (5, Outcome.FITS)]
)
def test_a_peak_outside_the_traced_steps_leaves_fragmentation_unknown(
    limit: int, outcome: Outcome
) -> None:
    """A pool may need twice its peak, so a limit below that gives no answer."""
    analysis = open_result(sample_folder("infer"), search=False).analysis
    watch = WatchNote(own_peaks=(2 * GIB,))
    verdict = judge(with_recording(analysis, watch=watch), limit * GIB).verdict
    assert verdict.outcome is outcome
    assert "needs at least 2.00 GiB of" in verdict.headline
