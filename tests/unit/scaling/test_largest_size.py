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
from analyzer.scaling.size_lines import SizeNeed, between, next_size

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

    best = _last_that_runs(first, runs_at, done, span=span)
    assert last - 2 * span <= best <= last or len(done) == MOST_RUNS
    assert len(done) == 2 or more >= span
    sizes = sorted(done)
    assert all(b - a >= span // 2 for a, b in zip(sizes, sizes[1:], strict=False))
    done.clear()
    best = _last_that_runs(first, runs_at, done, span=span, beyond=beyond)
    assert best in (size for size in done if done[size].ran)
    assert max(done) < beyond
    assert last - span <= best <= last or len(done) == MOST_RUNS


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
