from pathlib import Path

import pandas as pd
import pytest
from builders import TraceBuilder, events_of

from analyzer.model.recording.records import ALLOCATIONS
from analyzer.tracing.measure.buffers_and_steps import pair_frees
from analyzer.tracing.measure.measured_recording import open_measured


def lives(table: pd.DataFrame) -> list[tuple[int, int, int]]:
    return list(
        table[["address", "born", "dies"]]
        .astype("int64")
        .itertuples(index=False, name=None)
    )


def test_every_column_of_an_allocation(tmp_path: Path) -> None:
    # GIVEN a buffer of a step in a trace of others, which has no graph
    trace = TraceBuilder().step(5, 100)
    trace.allocate(
        10,
        64,
        512,
        requested=500,
        op="net/conv/Conv2D",
        shape="[5, 25]",
        data_type=1,
        run_id=3,
    ).free(20, 64, op="other")
    # WHEN it is measured
    table = open_measured(trace.write(tmp_path / "a.xplane.pb")).allocations
    # THEN each column is filled as far as the trace tells
    assert list(table.columns) == list(ALLOCATIONS)
    assert [str(dtype) for dtype in table.dtypes] == list(ALLOCATIONS.values())
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


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (
            [(1, 16, 256), (1, 32, 512), (-1, 16, 256), (-1, 32, 512)],
            [(16, 0, 2), (32, 1, 3)],
        ),
        (
            [(1, 16, 256), (-1, 16, 256), (1, 16, 512)],
            [(16, 0, 1), (16, 2, 3)],
        ),  # used again
        (
            [(1, 16, 256), (1, 16, 512), (-1, 16, 512)],
            [(16, 0, 1), (16, 1, 2)],
        ),  # a lost free
        (
            [(1, 16, 256), (-1, 16, 256), (-1, 16, 256)],
            [(16, 0, 1), (16, -1, 2)],
        ),  # freed twice
    ],
)
def test_a_free_ends_the_buffer_at_its_address(
    events: list[tuple[int, int, int]], found: list[tuple[int, int, int]]
) -> None:
    assert lives(pair_frees(events_of(*events))) == found
