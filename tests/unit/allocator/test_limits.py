"""The smallest limit: worked examples, and an exhaustive search."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workloads import random_operations, sequence_of

from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import (
    find_shared_limits,
    fits,
    from_allocations,
    minimum_limit,
)

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([(0, 250), (1, 1000), (2, 2000)], 1024 + 2048 + 256),
        # A hole that nothing fits into.
        ([(0, 10 * KIB), (1, KIB), (0, 0), (2, 12 * KIB)], 23 * KIB),
        # Only a chunk of 16 KiB is split for the 8 KiB; the 10 KiB before got all 16.
        ([(0, KIB), (1, 10 * KIB), (1, 0), (2, 8 * KIB), (3, 2 * KIB)], 17 * KIB),
    ],
)
def test_worked_examples(operations, expected):
    assert minimum_limit(sequence_of(operations), BfcOptions.gpu(1)).low == expected


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), growth=st.booleans())
def test_an_exhaustive_search_finds_limits_inside_the_range(seed, growth):
    sequence = sequence_of(random_operations(120, 12, seed=seed, largest=23))
    options = BfcOptions(growth=growth)
    found = minimum_limit(sequence, options)
    assert fits(sequence, options.under(found.low))
    assert fits(sequence, options.under(found.high))
    for limit in (found.low - MIB, found.high - MIB):
        bound = sequence.live_rounded_bytes().max()
        assert limit < bound or not fits(sequence, options.under(limit))


def test_an_optional_buffer_does_not_raise_the_limit_but_takes_room_if_it_fits():
    """A copy of 4 KiB is left out if it does not fit; if it does, a later request may not."""
    rows = pd.DataFrame(
        {
            "requested_bytes": [1024, 4096, 1024],
            "born": [0, 1, 2],
            "dies": [6, 4, 3],
            "region": ["", "trial", "temp"],
        }
    )
    sequence = from_allocations(rows, n_events=6)
    options = BfcOptions(growth=False)
    assert fits(sequence, options.under(2048))  # without the copy
    assert not fits(
        sequence, options.under(5120)
    )  # with room for the copy, and not for more
    found = minimum_limit(sequence, options, also=[5120])
    assert found.low == 2048
    assert found.high > 5120


@pytest.mark.parametrize("growth", [True, False])
def test_all_of_several_orders_run_under_their_shared_limit(growth):
    orders = [
        sequence_of(random_operations(200, 14, seed=n, largest=23)) for n in range(4)
    ]
    options = BfcOptions(growth=growth)
    found = find_shared_limits(orders, options)
    assert all(fits(order, options.under(found.high)) for order in orders)
    assert not any(fits(order, options.under(found.low - 256)) for order in orders)


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_a_limit_of_the_user_need_not_be_a_whole_step(seed):
    sequence = sequence_of(random_operations(120, 12, seed=seed, largest=23))
    options = BfcOptions.gpu(1)
    asked = minimum_limit(sequence, options).low + 1700
    found = minimum_limit(sequence, options, also=[asked])
    assert found.low <= asked
    assert fits(sequence, options.under(found.low))
