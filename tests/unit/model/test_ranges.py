"""The range of bytes and its arithmetic."""

from __future__ import annotations

import pytest

from analyzer.model.ranges import Range


def test_low_is_at_most_high() -> None:
    with pytest.raises(ValueError, match="from 2 to 1"):
        Range(2, 1)


def test_a_range_contains_both_ends() -> None:
    sizes = Range(10, 20)
    assert (10 in sizes, 20 in sizes, 9 in sizes, 21 in sizes) == (
        True,
        True,
        False,
        False,
    )
    assert (sizes.middle, sizes.width, sizes.is_exact) == (15, 10, False)
    assert Range.exactly(7).is_exact


def test_ranges_are_built_from_sizes() -> None:
    assert Range.spanning([5, 3, 9]) == Range(3, 9)
    assert Range(3, 9).including(1) == Range(1, 9)
    assert Range(3, 9).including(5, 11) == Range(3, 11)


def test_arithmetic_of_ranges() -> None:
    assert Range(1, 2) + Range(10, 20) == Range(11, 22)
    assert Range(10, 20) - Range(1, 2) == Range(8, 19)
    assert Range(10, 20).widened(1, 2) == Range(9, 22)
    assert Range(-5, 3).at_least(0) == Range(0, 3)


def test_the_intersection_is_none_without_overlap() -> None:
    assert Range(1, 5).intersection(Range(4, 9)) == Range(4, 5)
    assert Range(1, 3).intersection(Range(4, 9)) is None
