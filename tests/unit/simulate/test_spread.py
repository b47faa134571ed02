"""Other orders of one sequence, and the range of limits that they need."""

import numpy as np
import pytest
from test_damaged_input import check_sequence
from workloads import SAMPLES, random_operations, sample, sequence_of

from analyzer.simulate import BfcOptions, from_events, limit_spread
from analyzer.simulate.spread import reordered


@pytest.mark.parametrize("name", SAMPLES)
def test_another_order_has_the_same_operations_nearby(name):
    sequence = from_events(sample(name))
    other = reordered(sequence, np.random.default_rng(1), places=4)
    assert not np.array_equal(other.slot, sequence.slot)
    check_sequence(other)
    np.testing.assert_array_equal(np.sort(other.request), np.sort(sequence.request))
    place = np.empty(sequence.n_buffers, np.int64)
    births, moved = sequence.request > 0, other.request > 0
    place[sequence.slot[births]] = np.flatnonzero(births)
    assert np.abs(place[other.slot[moved]] - np.flatnonzero(moved)).max() <= 4


def test_what_lives_before_the_first_event_stays_first():
    sequence = sequence_of(random_operations(200, 20, seed=1)).part(100, 199)
    before = int((sequence.instant < 0).sum())
    other = reordered(sequence, np.random.default_rng(2), places=8)
    np.testing.assert_array_equal(other.slot[:before], sequence.slot[:before])
    assert (other.live_requested_bytes() >= 0).all()


def test_the_range_contains_the_own_limit_and_can_be_repeated():
    sequence = sequence_of(random_operations(600, 30, seed=9, largest=22))
    found = limit_spread(sequence, BfcOptions.cpu(), orders=5)
    assert found.lowest_bytes <= found.own_bytes <= found.highest_bytes
    assert found.lowest_bytes <= found.median_bytes <= found.highest_bytes
    assert len(found.limits_bytes) == 5
    assert found == limit_spread(sequence, BfcOptions.cpu(), orders=5)
