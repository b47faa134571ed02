"""The search for the largest size ends in a narrow bracket, whatever the need."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.fitting.fit_answer import SizePoint
from analyzer.fitting.size_search import CardSearch, SizeSearch, tolerance_at
from analyzer.model.errors import FailureKind, InputError

FIXED = 1_000_000
Need = Callable[[int], int]


def search(
    need: Need, limit: int, first: int = 32, power: int = 1, most: int = 1 << 30
) -> SizeSearch:
    """Search with runs, which say no need if they fail."""
    found = SizeSearch(limit, first, power)
    while (size := found.next_size()) is not None:
        assert size not in found.points
        if size > most:
            point = SizePoint(size=size, fits=False, kind=FailureKind.INVALID_SHAPE)
        elif need(size) > limit:
            point = SizePoint(size=size, fits=False, kind=FailureKind.OUT_OF_MEMORY)
        else:
            point = SizePoint(size=size, fits=True, need_bytes=need(size))
        found.add(point, FIXED)
    return found


def check_bracket(found: SizeSearch) -> None:
    assert 0 < found.fitting < found.failing
    assert found.failing - found.fitting <= tolerance_at(found.fitting)


@given(
    each=st.integers(1000, 1_000_000),
    largest=st.integers(1, 5000),
    first=st.integers(1, 300),
    waste=st.floats(1.0, 1.2),
)
def test_a_straight_need_is_bracketed(
    each: int, largest: int, first: int, waste: float
) -> None:
    """Also where the allocator wastes a part of the limit, which no peak shows."""
    limit = FIXED + each * largest + each // 2

    def need(size: int) -> int:
        peak = FIXED + each * size
        return peak if peak * waste <= limit else limit + 1

    found = search(need, limit, first)
    if need(1) <= limit:
        check_bracket(found)
    else:
        assert (found.fitting, found.failing) == (0, 1)
    assert len(found.points) <= 14


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("largest", [3, 40, 700])
def test_a_side_of_an_input_is_found_for_any_power(degree: int, largest: int) -> None:
    limit = FIXED + 5000 * largest**degree + 100
    check_bracket(search(lambda size: FIXED + 5000 * size**degree, limit, 12, power=2))


def test_the_largest_size_that_the_step_accepts_is_found() -> None:
    found = search(lambda size: FIXED + 1000 * size, FIXED + 10_000_000, 128, most=512)
    check_bracket(found)
    assert found.fitting <= 512 < (found.failing or 0)


def test_a_need_that_does_not_depend_on_the_size_is_an_error() -> None:
    with pytest.raises(InputError, match="no more memory"):
        search(lambda size: FIXED, 2 * FIXED)


def rise_late(size: int) -> int:
    """Grow as XLA's need of MobileNetV2 does, which 229 to 416 images share."""
    return 2 * FIXED + size + 4000 * (min(size, 200) + max(size - 400, 0))


@pytest.mark.parametrize(
    ("need", "limit", "most"),
    [
        (lambda size: max(3 * FIXED, FIXED + 1000 * size), 11 * FIXED, 14),
        (lambda size: max(3 * FIXED, FIXED + 1000 * size), 3 * FIXED + 200_000, 16),
        (rise_late, 3 * FIXED + 200_000, 12),
    ],
)
def test_a_plateau_is_passed(need: Need, limit: int, most: int) -> None:
    found = search(need, limit)
    check_bracket(found)
    assert len(found.points) <= most


def test_a_size_that_does_not_end_ends_the_search() -> None:
    found = SizeSearch(FIXED, 32)
    found.add(SizePoint(size=32, fits=True, need_bytes=FIXED // 2))
    found.add(SizePoint(size=60, fits=False, kind=FailureKind.TIMED_OUT))
    assert found.next_size() is None
    assert (found.fitting, found.failing) == (32, None)


def test_three_needs_give_the_largest_size_of_every_card() -> None:
    limits = [20 * FIXED, 50 * FIXED, 100 * FIXED]
    found = CardSearch(limits, 32, is_one=False)
    while (size := found.next_size()) is not None:
        found.add(
            SizePoint(size=size, fits=True, need_bytes=FIXED + 1000 * size), FIXED
        )
    assert len(found.points) <= 3
    for limit in limits:
        assert abs(found.size_at(limit) - (limit - FIXED) // 1000) <= 1
