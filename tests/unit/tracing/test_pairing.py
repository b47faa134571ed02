from __future__ import annotations

from pathlib import Path

import pandas as pd
from builders import TraceBuilder, events_of

from analyzer.model.recording.schema import ALLOCATIONS
from analyzer.tracing.measure.free_pairing import name_xla_requests, pair_frees
from analyzer.tracing.measure.measured_recording import open_measured


def lives(table: pd.DataFrame) -> list[tuple[int, int, int]]:
    return list(
        table[["address", "born", "dies"]].astype("int64").itertuples(index=False, name=None)
    )


def test_a_free_ends_the_buffer_at_its_address() -> None:
    table = pair_frees(events_of((1, 16, 256), (1, 32, 512), (-1, 16, 256), (-1, 32, 512)))
    assert lives(table) == [(16, 0, 2), (32, 1, 3)]


def test_an_address_is_used_again() -> None:
    table = pair_frees(events_of((1, 16, 256), (-1, 16, 256), (1, 16, 512), (-1, 16, 512)))
    assert lives(table) == [(16, 0, 1), (16, 2, 3)]
    assert table["allocated_bytes"].tolist() == [256, 512]


def test_what_is_never_freed_lives_to_the_end() -> None:
    table = pair_frees(events_of((1, 16, 256), (1, 32, 256), (-1, 32, 256)))
    assert lives(table) == [(16, 0, 3), (32, 1, 2)]
    assert table["dies_ps"].isna().tolist() == [True, False]


def test_a_free_of_an_unknown_address_was_alive_before() -> None:
    # GIVEN a free of something that the trace did not see being born, while another op ran
    events = events_of((1, 16, 256), (-1, 99, 1024))
    # WHEN the events are paired
    row = pair_frees(events).iloc[1]
    # THEN it lived from before the trace, and the op that ran at its free is not its maker
    assert (row["born"], row["dies"], row["allocated_bytes"]) == (-1, 1, 1024)
    assert pd.isna(row["born_ps"])
    assert row["op"] == ""


def test_a_lost_free_ends_the_old_buffer_where_the_new_one_begins() -> None:
    table = pair_frees(events_of((1, 16, 256), (1, 16, 512), (-1, 16, 512)))
    assert lives(table) == [(16, 0, 1), (16, 1, 2)]


def test_a_second_free_of_one_address_is_another_buffer() -> None:
    table = pair_frees(events_of((1, 16, 256), (-1, 16, 256), (-1, 16, 256)))
    assert lives(table) == [(16, 0, 1), (16, -1, 2)]


def test_allocators_have_addresses_of_their_own() -> None:
    # GIVEN the same address in two allocators
    first = events_of((1, 16, 256), (-1, 16, 256))
    second = events_of((1, 16, 512), (-1, 16, 512), allocator="gpu_host_bfc")
    events = pd.concat([first.iloc[:1], second.iloc[:1], first.iloc[1:], second.iloc[1:]])
    for name in first.columns:
        events[name] = events[name].astype(first[name].dtype.name)
    # WHEN the events are paired THEN neither ends the other
    table = pair_frees(events.reset_index(drop=True))
    assert lives(table) == [(16, 0, 2), (16, 1, 3)]
    assert table["allocator"].tolist() == ["GPU_0_bfc", "gpu_host_bfc"]


def test_every_column_of_an_allocation(tmp_path: Path) -> None:
    # GIVEN a buffer of a step in a trace of others, which has no graph
    trace = TraceBuilder().step(5, 100)
    trace.allocate(
        10, 64, 512, requested=500, op="net/conv/Conv2D", shape="[5, 25]", data_type=1, run_id=3
    ).free(20, 64, op="other")
    # WHEN it is measured
    table = open_measured(trace.write(tmp_path / "a.xplane.pb")).recording.allocations
    # THEN each column is filled as far as the trace tells
    assert list(table.columns) == list(ALLOCATIONS)
    assert [str(dtype) for dtype in table.dtypes] == [
        column.dtype for column in ALLOCATIONS.values()
    ]
    row = table.iloc[0].to_dict()
    assert pd.isna(row.pop("turns_at"))
    assert pd.isna(row.pop("part_of"))
    assert row.pop("instruction") == ""
    assert row == {
        "allocator": "GPU_0_bfc",
        "address": 64,
        "requested_bytes": 500,
        "allocated_bytes": 512,
        "born": 0,
        "dies": 1,
        "born_ps": 10_000,
        "dies_ps": 20_000,
        "step": 0,
        "run_id": 3,
        "op": "net/conv/Conv2D",
        "op_type": "Conv2D",
        "layer": "net/conv",
        "source": "",
        "region": "output",
        "dtype": "float32",
        "shape": "[5,25]",
        "tensor": "net/conv/Conv2D:0",
        "variable": "",
        "category": "temporary",
        "role": "forward temporary",
    }


def test_requests_of_an_op_that_xla_compiles_alone_get_its_name() -> None:
    # GIVEN two requests without an op in the run of such an op, one of another thread, and one after it
    events = events_of(*((1, 16 * n, 256) for n in range(4))).assign(op="", thread=[1, 2, 1, 1])
    runs = pd.DataFrame({"op": ["write"], "start_ps": [0], "end_ps": [2], "thread": [1]})
    named = name_xla_requests(events, runs, {"write": "XlaDynamicUpdateSlice"})
    assert named["op"].tolist() == ["write", "", "write", ""]
    assert name_xla_requests(events, runs, {"write": "AddV2"}) is events
