"""Tables through the allocator: recorded traces, other options, and input that is damaged."""

import numpy as np
import pandas as pd
import pytest
from workloads import SAMPLES, allocations_table, events_table, from_events, sample

from analyzer.model.errors import TraceError
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import compare, from_allocations, replay

MIB = 1 << 20


@pytest.mark.parametrize("name", SAMPLES)
def test_recorded_traces_are_reproduced_event_by_event(name):
    events = sample(name)
    check, _ = compare(from_events(events), events, BfcOptions.cpu())
    assert check.equal == check.events == len(events)


@pytest.mark.parametrize("name", SAMPLES)
def test_where_regions_lie_need_not_be_known(name):
    events = sample(name)
    result = replay(from_events(events), BfcOptions.cpu())
    np.testing.assert_array_equal(result.chunk_bytes, events["allocated_bytes"])
    np.testing.assert_array_equal(result.in_use_bytes, events["in_use_bytes"])


def test_a_failure_is_data():
    events = events_table(
        (1, 10, 2 * MIB), (1, 20, 3 * MIB), (-1, 10, 2 * MIB), (1, 30, 4 * MIB)
    )
    result = replay(from_events(events), BfcOptions.gpu(8 * MIB))
    assert len(result) == 3
    failure = result.failure
    assert (failure.instant, result.failed_row) == (3, 2)
    assert (failure.requested_bytes, failure.free_bytes) == (4 * MIB, 5 * MIB)
    assert failure.largest_free_bytes == 3 * MIB
    assert result.fragmentation()[-1] == pytest.approx(2 / 5)


def test_rows_of_one_allocator_are_replayed():
    other = allocations_table((7, 1, 2)).assign(allocator="cpu")
    table = pd.concat([allocations_table((5, 0, 2)), other], ignore_index=True)
    assert from_allocations(table, allocator="cpu").row.tolist() == [1]
    with pytest.raises(TraceError, match="nothing to replay"):
        from_allocations(table, allocator="gpu")


def test_requests_of_0_bytes_take_no_chunk():
    table = allocations_table((0, 0, 2), (5, 1, 3))
    assert from_allocations(table).request.tolist() == [5]


def test_rows_alive_before_the_first_event_come_first_by_address():
    table = allocations_table((1000, 0, 2), (300, -1, 3), (600, -1, 1))
    table["address"] = pd.array([None, 900, 500], dtype="Int64")
    sequence = from_allocations(table)
    assert sequence.request.tolist() == [600, 300, 1000, 0, 0]
    assert sequence.row.tolist() == [0, 1, 2]


def test_rows_that_never_live_are_left_out():
    table = allocations_table((1000, 0, 2), (300, 3, 3), (600, 2, 4))
    sequence = from_allocations(table, n_events=4)
    assert sequence.request.tolist() == [1000, 0, 600]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((-5, 0, 2), "asks for -5"),
        ((1 << 60, 0, 2), "is impossible"),
        ((0, 0, 2), "nothing to replay"),
    ],
)
def test_allocations_that_cannot_be_are_refused(row, message):
    with pytest.raises(TraceError, match=message):
        from_allocations(allocations_table(row))
