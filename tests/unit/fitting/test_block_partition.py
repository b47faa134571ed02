"""The blocks to recompute are the best partition of the chain, by trying every one of them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from analyzer.fitting.remedy_plans import (
    ChainUnit,
    choose_blocks,
    find_peak,
)


def chain(
    sizes: Sequence[tuple[int, int]], random: Sequence[int] = ()
) -> list[ChainUnit]:
    return [
        ChainUnit(
            layers=(f"a{number}", f"b{number}"),
            kept_bytes=kept,
            leaves_bytes=leaves,
            is_random=number in random,
        )
        for number, (kept, leaves) in enumerate(sizes)
    ]


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=7)
)
def test_a_partition_lowers_the_peak(sizes: list[tuple[int, int]]) -> None:
    units = chain(sizes)
    blocks = choose_blocks(units)
    if blocks:
        assert find_peak(units, blocks) < find_peak(units, [])
    stops = [0, *(stop for _, stop in blocks)]
    assert all(
        stop <= start < end for stop, (start, end) in zip(stops, blocks, strict=False)
    )


def test_equal_units_are_cut_near_the_square_root_of_their_number() -> None:
    units = chain([(100, 100)] * 100)
    assert find_peak(units, choose_blocks(units)) <= 0.25 * find_peak(units, [])


def test_what_draws_random_numbers_is_never_recomputed() -> None:
    units = chain([(50, 5)] * 6, random=(2,))
    blocks = choose_blocks(units)
    assert blocks
    for start, stop in blocks:
        assert not start <= 2 < stop
