import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import LIMIT_BYTES, TraceBuilder, sample_trace, small_trace

import analyzer
from analyzer.model.contract.report_file import read_report
from analyzer.model.errors import TraceError
from analyzer.model.recording.records import EVENTS
from analyzer.tracing.parse.xplane import read_trace


def test_every_column_of_an_event(tmp_path: Path) -> None:
    # GIVEN one allocation with every statistic, and its free
    trace = TraceBuilder()
    trace.allocate(
        7,
        0x7F00_0000_0100,
        512,
        requested=500,
        op="net/conv/Conv2D",
        shape="[5, 25]",
        data_type=1,
        region="temp",
        run_id=-(2**62),
    ).free(9, 0x7F00_0000_0100, op="other")
    # WHEN it is read
    events = read_trace(trace.write(tmp_path / "a.xplane.pb")).events
    # THEN each column is what was written
    assert list(events.columns) == list(EVENTS)
    assert [str(dtype) for dtype in events.dtypes] == [*EVENTS.values()]
    assert events.iloc[0].to_dict() == {
        "time_ps": 7000,
        "kind": 1,
        "allocator": "GPU_0_bfc",
        "address": 0x7F00_0000_0100,
        "requested_bytes": 500,
        "allocated_bytes": 512,
        "in_use_bytes": 512,
        "available_bytes": LIMIT_BYTES - 512,
        "peak_in_use_bytes": 512,
        "fragmentation": 0.0,
        "op": "net/conv/Conv2D",
        "run_id": -(2**62),
        "region": "temp",
        "dtype": "float32",
        "shape": "[5,25]",
        "thread": 1,
    }
    assert events.iloc[1][
        ["kind", "in_use_bytes", "op", "shape", "region"]
    ].tolist() == [
        -1,
        0,
        "other",
        "",
        "",
    ]


def test_threads_are_merged_by_time_and_equal_times_keep_their_order(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder()
    trace.allocate(30, 3, 256, op="c", thread=1)
    trace.allocate(10, 1, 256, op="a", thread=2)
    trace.allocate(20, 2, 256, op="b1", thread=2).allocate(
        20, 4, 256, op="b2", thread=2
    )
    events = read_trace(trace.write(tmp_path / "a.pb")).events
    assert events["op"].tolist() == ["a", "b1", "b2", "c"]
    assert events["thread"].tolist() == [2, 2, 2, 1]


def test_step_markers_op_runs_devices_and_notes(tmp_path: Path) -> None:
    # GIVEN a trace with all kinds of events
    trace = small_trace().run("net/conv/Conv2D:Conv2D", 110, 150)
    trace.run("not an op", 110, 150).run("a::b", 110, 150).run("time 12:30", 110, 150)
    trace.event("analyzer:snapshot", 90, index=0)
    trace.event("kernel:Conv2D", 120, duration_ns=3, plane="/device:GPU:0")
    # WHEN it is read
    raw = read_trace(trace.write(tmp_path / "a.pb"))
    # THEN each is where it belongs
    assert [
        (span.stats["step_num"], span.start_ps, span.end_ps)
        for span in raw.step_markers
    ] == [
        (0, 100_000, 200_000),
        (1, 300_000, 400_000),
    ]
    assert [span.name for span in raw.markers] == ["analyzer:snapshot"]
    assert raw.op_runs.to_dict("records") == [
        {"op": "net/conv/Conv2D", "start_ps": 110_000, "end_ps": 150_000, "thread": 1}
    ]


def test_events_without_an_address_are_counted(tmp_path: Path) -> None:
    trace = small_trace()
    trace.event("MemoryAllocation", 500, bytes_allocated=1, allocator_name="x")
    raw = read_trace(trace.write(tmp_path / "a.pb"))
    assert [(one.id, one.count) for one in raw.damages] == [("unreadable-events", 1)]
    assert len(raw.events) == 8


def test_a_cut_or_changed_file_is_read_or_refused(tmp_path: Path) -> None:
    # GIVEN a real trace, cut at many places, and a small one with three changed bytes
    whole = gzip.decompress(sample_trace("infer").read_bytes())
    rows = len(read_trace(sample_trace("infer")).events)
    chance = np.random.default_rng(3)

    cuts = [*range(1, 40), *chance.integers(len(whole), size=120)]
    changed = np.tile(np.frombuffer(small_trace().bytes(), np.uint8), (400, 1))
    for one in changed:
        one[chance.integers(len(one), size=3)] = chance.integers(256, size=3)

    path = tmp_path / "damaged.xplane.pb"

    # Some cuts fall between two fields and still parse.
    for content in (*(whole[:length] for length in cuts), *map(bytes, changed)):
        path.write_bytes(content)
        # WHEN it is read THEN it is refused, or is a shorter trace
        try:
            events = read_trace(path).events
        except TraceError:
            continue

        assert 0 < len(events) <= rows
        assert list(events.columns) == list(EVENTS)


def test_names_longer_than_any_of_tensorflows_are_cut_and_stay_apart(
    tmp_path: Path,
) -> None:
    """A report of it can be written, and read again."""
    long = "n" * 200_000
    trace = small_trace(op=long + "a")
    trace.allocate(315, 0x4000, 512, op=long + "b").free(316, 0x4000)
    result = analyzer.open_trace(trace.write(tmp_path / "host.xplane.pb"))
    names = {
        op for op in result.analysis.recording.events["op"].unique() if op[:1] == "n"
    }
    assert len(names) == 2
    assert max(map(len, names)) < 1 << 15
    result.to_json(tmp_path / "report.json")
    read_report(tmp_path / "report.json")


@pytest.mark.parametrize(
    ("written", "column", "value"),
    [
        ({"region": "(null)"}, "region", ""),  # TensorFlow 2.18 and 2.19
        (
            {"allocator": "gpu_host_bfc", "plane": "/host:other"},
            "allocator",
            "gpu_host_bfc",
        ),
    ],
)
def test_what_an_event_means(
    written: dict[str, Any], column: str, value: str, tmp_path: Path
) -> None:
    path = TraceBuilder().allocate(1, 1, 256, **written).write(tmp_path / "a.pb")
    assert read_trace(path).events[column].tolist() == [value]
