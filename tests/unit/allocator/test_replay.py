"""Tables through the allocator: recorded traces, other options, and input that is damaged."""

import numpy as np
import pandas as pd
import pytest
from workloads import SAMPLES, allocations_table, events_table, sample

from analyzer.model.errors import InputError, TraceError
from analyzer.simulate.allocator import (
    BfcOptions,
    compare,
    from_allocations,
    from_events,
    replay,
)

MIB = 1 << 20


@pytest.mark.parametrize("name", SAMPLES)
def test_recorded_traces_are_reproduced_event_by_event(name):
    events = sample(name)
    match = compare(events)
    assert match.equal == match.events
    assert match.is_exact
    assert match.equal == match.events == len(events)


@pytest.mark.parametrize("name", SAMPLES)
def test_where_regions_lie_need_not_be_known(name):
    events = sample(name)
    result = replay(from_events(events), BfcOptions.cpu())
    np.testing.assert_array_equal(result.chunk_bytes, events["allocated_bytes"])
    np.testing.assert_array_equal(result.in_use_bytes, events["in_use_bytes"])


@pytest.mark.parametrize("name", SAMPLES)
def test_allocations_replay_as_their_events_do(name):
    events = sample(name)
    by_events = from_events(events)
    born = by_events.instant[by_events.request > 0]
    dies = np.full(by_events.n_buffers, len(events))
    dies[by_events.slot[by_events.request == 0]] = by_events.instant[by_events.request == 0]
    table = allocations_table(*zip(by_events.requested_bytes, born, dies, strict=True))
    result = replay(from_allocations(table, n_events=len(events)), BfcOptions.cpu())
    np.testing.assert_array_equal(result.chunk_bytes, events["allocated_bytes"])
    np.testing.assert_array_equal(result.instant, np.arange(len(events)))


def test_a_failure_is_data():
    events = events_table((1, 10, 2 * MIB), (1, 20, 3 * MIB), (-1, 10, 2 * MIB), (1, 30, 4 * MIB))
    result = replay(from_events(events), BfcOptions.gpu(8 * MIB))
    assert len(result) == 3
    failure = result.failure
    assert (failure.op, failure.instant, failure.row) == (3, 3, 3)
    assert (failure.requested_bytes, failure.free_bytes) == (4 * MIB, 5 * MIB)
    assert (failure.largest_free_bytes, failure.available_bytes) == (3 * MIB, 0)
    assert result.fragmentation()[-1] == pytest.approx(2 / 5)


def test_rows_of_one_allocator_are_replayed():
    table = pd.concat(
        [events_table((1, 10, 5)), events_table((1, 99, 7)).assign(allocator="cpu")],
        ignore_index=True,
    )
    with pytest.raises(InputError, match="2 allocators: bfc, cpu"):
        from_events(table)
    assert from_events(table, allocator="cpu").row.tolist() == [1]
    with pytest.raises(TraceError, match="'gpu'"):
        from_events(table, allocator="gpu")


def test_frees_of_unknown_addresses_are_left_out():
    events = events_table((1, 10, 500), (-1, 77, 0), (-1, 10, 500))
    sequence = from_events(events)
    assert sequence.slot.tolist() == [0, 0]
    assert sequence.instant.tolist() == [0, 2]


def test_a_second_free_is_left_out():
    events = events_table((1, 10, 500), (-1, 10, 500), (-1, 10, 500), (1, 10, 700))
    sequence = from_events(events)
    assert sequence.request.tolist() == [500, 0, 700]


def test_an_address_allocated_twice_ends_the_first_buffer():
    sequence = from_events(events_table((1, 10, 500), (1, 10, 700), (-1, 10, 700)))
    assert sequence.slot.tolist() == [0, 0, 1, 1]
    assert sequence.request.tolist() == [500, 0, 700, 0]
    assert sequence.instant.tolist() == [0, 1, 1, 2]


def test_requests_of_0_bytes_take_no_chunk():
    sequence = from_events(events_table((1, 10, 0), (1, 20, 5), (-1, 10, 0)))
    assert sequence.request.tolist() == [5]
    table = allocations_table((0, 0, 2), (5, 1, 3))
    assert from_allocations(table).request.tolist() == [5]


def test_events_out_of_order_are_sorted_where_that_explains_the_bytes_in_use():
    events = sample("mlp_jit")
    shuffled = events.sample(frac=1, random_state=1)
    sequence = from_events(shuffled)
    np.testing.assert_array_equal(
        replay(sequence, BfcOptions.cpu()).in_use_bytes, events["in_use_bytes"]
    )


def test_times_that_contradict_the_bytes_in_use_are_not_followed():
    events = events_table((1, 10, 500), (1, 20, 600), (-1, 10, 500), (-1, 20, 600))
    events["time_ps"] = [0, 5, 3, 9]
    sequence = from_events(events)
    assert sequence.request.tolist() == [500, 600, 0, 0]


def test_lost_events_are_noticed():
    events = sample("mlp_jit").drop(index=[100, 101, 102]).reset_index(drop=True)
    assert not compare(events).is_exact


def test_a_trace_that_begins_late_keeps_what_was_alive():
    events = sample("mlp_jit")
    late = events.iloc[400:].reset_index(drop=True)
    sequence = from_events(late)
    before = events["in_use_bytes"][399]
    held = sequence.requested_bytes[sequence.row == -1].sum()
    assert before * 0.9 <= held <= before
    assert len(sequence) == len(late) + int((sequence.row == -1).sum())


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
    ("column", "value", "message"),
    [
        ("requested_bytes", -5, "asks for -5 bytes"),
        ("requested_bytes", 1 << 60, "which is impossible"),
        ("allocated_bytes", -256, "asks for -256 bytes"),
        ("kind", 2, "neither"),
        ("kind", 7, "neither"),
        ("address", float("nan"), "address is nan"),
        ("requested_bytes", 2.5, "no whole number"),
        ("requested_bytes", "many", "values other than numbers"),
    ],
)
def test_events_that_cannot_be_are_refused_in_one_line(column, value, message):
    events = sample("mlp_jit").astype(object)
    events.loc[17, column] = value
    with pytest.raises(TraceError, match=message) as caught:
        from_events(events)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [((-5, 0, 2), "asks for -5"), ((5, -2, 2), "before -1"), ((0, 0, 2), "nothing to replay")],
)
def test_allocations_that_cannot_be_are_refused(row, message):
    with pytest.raises(TraceError, match=message):
        from_allocations(allocations_table(row))


def test_nothing_to_replay_is_refused():
    for events in (events_table(), events_table((-1, 10, 5))):
        with pytest.raises(TraceError):
            from_events(events)
    with pytest.raises(TraceError, match="lacks the column"):
        from_events(events_table((1, 10, 5)).drop(columns="address"))
