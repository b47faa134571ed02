"""The search for the last size that holds."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.batch_fit.all_cards import _groups, _row
from analyzer.batch_fit.confirming_runs import MOST_RUNS, _last_that_runs
from analyzer.gpus import all_gpus
from analyzer.scaling.fit_answer import ConfirmingRun
from analyzer.scaling.largest_size import _last
from analyzer.scaling.size_lines import SizeGrowth, SizeNeed, between, next_size
from analyzer.scaling.size_search import _on_the_other_side

MIB = 1 << 20


@given(st.integers(0, 5000), st.integers(0, 6000), st.integers(1, 6000))
def test_the_last_size_is_found_from_any_start(last: int, near: int, most: int) -> None:
    tried: list[int] = []

    def holds(size: int) -> bool:
        assert 1 <= size <= most
        tried.append(size)
        return size <= last

    assert _last(holds, near, most) == min(last, most)
    assert len(tried) <= 40


@given(st.integers(0, 300), st.integers(0, 300))
def test_runs_end_at_one_that_runs_beside_one_that_does_not(last: int, predicted: int) -> None:
    done: dict[int, ConfirmingRun] = {}

    def runs_at(size: int) -> bool:
        done.setdefault(size, ConfirmingRun(size=size, ran=size <= last))
        return done[size].ran

    best = _last_that_runs(predicted, runs_at, done)
    assert len(done) <= MOST_RUNS
    assert best <= last
    assert best == 0 or done[best].ran
    if abs(last - predicted) <= 2:
        assert best == last


@pytest.mark.parametrize("last", [65_000, 60_000, 30_000, 20_000])
def test_far_below_the_prediction_a_size_that_runs_is_found(last: int) -> None:
    """Eight runs just below one that fails ended in "not even a batch of 1 fits"."""
    done: dict[int, ConfirmingRun] = {}

    def runs_at(size: int) -> bool:
        done.setdefault(size, ConfirmingRun(size=size, ran=size <= last))
        return done[size].ran

    best = _last_that_runs(65_536, runs_at, done, (65_100, 63_000))
    assert last / 1.3 < best <= last
    assert len(done) <= MOST_RUNS


@given(st.integers(1, 400), st.integers(1, 200), st.integers(1, 64), st.integers(1, 1000))
def test_captures_close_in_on_the_last_size_that_fits(
    fixed: int, each: int, start: int, last: int
) -> None:
    """Where the need is a line, a handful of captures is enough."""
    limit = (fixed + each * last) * MIB
    needs: dict[int, SizeNeed] = {}
    size: int | None = start
    while size is not None:
        need = (fixed + each * size) * MIB
        needs[size] = SizeNeed(
            low_bytes=need, bytes=need, high_bytes=need, requested_bytes=need, allocated_bytes=need
        )
        size = next_size(needs, limit)
        assert len(needs) <= 8
    assert max((n for n, need in needs.items() if need.bytes <= limit), default=0) == last


@given(st.integers(100, 900), st.integers(0, 400), st.integers(1, 300))
def test_a_need_that_is_held_down_for_a_while_ends_the_search_too(
    from_size: int, held: int, start: int
) -> None:
    """XLA recomputes where memory gets short: the need stops growing, and grows again later."""
    limit = 900 * MIB
    needs: dict[int, SizeNeed] = {}
    size: int | None = start
    while size is not None:
        need = (min(size, from_size) + max(size - from_size - held, 0)) * MIB
        needs[size] = SizeNeed(
            low_bytes=need, bytes=need, high_bytes=need, requested_bytes=need, allocated_bytes=need
        )
        size = next_size(needs, limit)
        assert len(needs) <= 40
    assert max(n for n, need in needs.items() if need.bytes <= limit) == 900 + held


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize(("each", "pairs"), [(10_000, 0), (10_000, 2), (0, 3), (50_000, 2_000)])
@pytest.mark.parametrize("last", [12, 70, 300])
def test_pairs_of_an_image_s_places_bend_the_line(
    degree: int, each: int, pairs: int, last: int
) -> None:
    """After the first, and a guess far beyond, a straight line took eight and more captures."""
    variables = 5 * MIB

    def need(size: float) -> int:
        places = size**degree
        return int(variables + each * places + pairs * places * places)

    limit = need(last + 0.5)
    needs = {size: _needing(need(size)) for size in (8, 3 * last)}
    growth = SizeGrowth(power=2, degree=degree, nothing_bytes=variables)
    size = next_size(needs, limit, growth)
    while size is not None:
        needs[size] = _needing(need(size))
        size = next_size(needs, limit, growth)
    assert max(n for n, need in needs.items() if need.bytes <= limit) == last
    assert len(needs) <= 5


@pytest.mark.parametrize(
    ("size", "tried"), [(None, None), (65, 66), (66, 66), (80, 80), (98, 97), (99, 97)]
)
def test_of_few_captures_none_lies_just_beside_another(size: int | None, tried: int | None) -> None:
    needs = {64: _needing(64), 100: _needing(100)}
    assert _on_the_other_side(size, needs, 90) == tried


def _needing(size_bytes: int) -> SizeNeed:
    return SizeNeed(
        low_bytes=size_bytes,
        bytes=size_bytes,
        high_bytes=size_bytes,
        requested_bytes=size_bytes,
        allocated_bytes=size_bytes,
    )


@pytest.mark.parametrize("limit", [40, 500, 999, 1500, 3000])
def test_sizes_side_by_side_do_not_tell_of_those_far_away(limit: int) -> None:
    """Chunks make the need of 1,001 less than that of 1,000, as XLA's plans do."""
    needs = {size: _needing(need * MIB) for size, need in ((10, 10), (1000, 1000), (1001, 998))}
    assert between(needs, limit * MIB) == pytest.approx(limit, rel=0.01)


def test_without_closed_forms_cards_are_on_a_line() -> None:
    needs = {size: _needing(size * MIB) for size in (100, 200)}
    rows = [_row(gpu, partial(between, needs), 64) for cards in _groups() for gpu in cards]
    assert len(rows) == len(all_gpus())
    for row in rows:
        assert row.largest == row.limit_bytes // MIB
        assert row.safe is not None
        assert 0 < row.safe < row.largest
        assert row.holds_wanted == (row.largest >= 64)
