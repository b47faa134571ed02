"""The search for the last size that holds."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.cards import all_gpus
from analyzer.fitting.scaling.fit_answer import ConfirmingRun
from analyzer.fitting.scaling.largest_size import _last
from analyzer.fitting.scaling.size_lines import SizeGrowth, SizeNeed, between, next_size
from analyzer.fitting.scaling.size_search import _on_the_other_side
from analyzer.fitting.search.all_cards import _groups, _row
from analyzer.fitting.search.confirming_runs import MOST_RUNS, _last_that_runs

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


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 60), st.integers(0, 100))
def test_runs_end_at_one_that_runs_beside_one_that_does_not(
    last: int, predicted: int, each: int, safe: int
) -> None:
    done: dict[int, ConfirmingRun] = {}

    def runs_at(size: int) -> bool:
        assert size >= 1
        done.setdefault(size, ConfirmingRun(size=size, ran=size <= last))
        return done[size].ran

    each = max(predicted - each, 0)
    expected = (predicted, predicted - 1, each, max(each - safe, 0))
    best = _last_that_runs(expected, runs_at, done)
    assert best <= last
    assert done[best].ran if best else not done[1].ran
    assert len(done) <= MOST_RUNS + 2
    if abs(last - predicted) <= 1:
        assert best == last


def test_what_runs_at_none_of_the_sizes_expected_is_looked_for_further_down() -> None:
    done: dict[int, ConfirmingRun] = {}

    def runs_at(size: int) -> bool:
        done.setdefault(size, ConfirmingRun(size=size, ran=size <= 1700))
        return done[size].ran

    assert 1600 < _last_that_runs((2032, 2031, 2032, 1980), runs_at, done) <= 1700


def test_no_size_is_tried_that_differs_by_less_than_is_known_of_a_need() -> None:
    def need(size: int, doubt: int) -> SizeNeed:
        return SizeNeed(
            low_bytes=size * MIB - doubt,
            bytes=size * MIB,
            high_bytes=size * MIB,
            requested_bytes=size * MIB,
            allocated_bytes=size * MIB,
        )

    limit = 100 * MIB + MIB // 2
    for doubt, following in ((0, 101), (5 * MIB, None)):
        needs = {size: need(size, doubt) for size in (32, 120, 100)}
        assert next_size(needs, limit) == following
    assert next_size({size: need(size, 5 * MIB) for size in (32, 120, 90)}, limit) == 100


@given(st.integers(100, 300), st.integers(0, 100), st.integers(2, 12))
def test_runs_of_sizes_that_chance_decides_lie_apart(first: int, more: int, span: int) -> None:
    """Two runs are enough where the next size that is told apart does not run."""
    done: dict[int, ConfirmingRun] = {}
    last, beyond = first + more, first + 101

    def runs_at(size: int) -> bool:
        done.setdefault(size, ConfirmingRun(size=size, ran=size <= last))
        return done[size].ran

    best = _last_that_runs((first,), runs_at, done, span=span)
    assert last - 2 * span <= best <= last or len(done) == MOST_RUNS
    assert len(done) == 2 or more >= span
    sizes = sorted(done)
    assert all(b - a >= span // 2 for a, b in zip(sizes, sizes[1:], strict=False))
    done.clear()
    best = _last_that_runs((first,), runs_at, done, span=span, beyond=beyond)
    assert best in (size for size in done if done[size].ran)
    assert max(done) < beyond
    assert last - span <= best <= last or len(done) == MOST_RUNS


@pytest.mark.parametrize("last", [65_000, 60_000, 30_000, 20_000])
def test_far_below_the_prediction_a_size_that_runs_is_found(last: int) -> None:
    """Eight runs just below one that fails ended in "not even a batch of 1 fits"."""
    done: dict[int, ConfirmingRun] = {}

    def runs_at(size: int) -> bool:
        done.setdefault(size, ConfirmingRun(size=size, ran=size <= last))
        return done[size].ran

    best = _last_that_runs((65_536, 65_100, 63_000), runs_at, done)
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
