"""A polynomial through points is the one that the points came from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.fitting.scaling.closed_forms import FormTable, NoForm, through

SIZES = st.lists(st.integers(1, 4096), min_size=3, max_size=3, unique=True).map(sorted)


@given(SIZES, st.lists(st.integers(0, 10**6), min_size=1, max_size=3), st.integers(1, 10**5))
def test_a_form_through_its_own_points_is_itself(
    sizes: list[int], coefficients: list[int], elsewhere: int
) -> None:
    def value(size: int) -> int:
        return sum(c * size**power for power, c in enumerate(coefficients))

    form = through([(size, value(size)) for size in sizes])
    assert form.at(elsewhere) == value(elsewhere)
    assert len(form.coefficients) <= len(coefficients)


@given(SIZES, st.integers(1, 10**4), st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_the_table_gives_what_each_form_gives(
    sizes: list[int], elsewhere: int, slopes: list[int]
) -> None:
    rows = [np.array([slope * size + 7 * size * size for slope in slopes]) for size in sizes]
    expected = [slope * elsewhere + 7 * elsewhere * elsewhere for slope in slopes]
    assert FormTable.through(sizes, rows).at(elsewhere).tolist() == expected


def test_half_an_element_is_no_value() -> None:
    form = through([(2, 1), (4, 2)])
    assert form.at(10) == 5
    with pytest.raises(NoForm):
        form.at(3)
