from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from builders import TraceBuilder, events_of, small_trace

import analyzer
from analyzer.model.recording.records import Step
from analyzer.tracing.measure.free_pairing import find_steps, find_steps_of_births
from analyzer.tracing.parse.xplane import Span


def marker(start: int, end: int, **stats: object) -> Span:
    return Span("train", start, end, 1, stats)


EVENTS = events_of(*((1, index, 256) for index in range(10)))  # at 0, 1, ... 9 ps


def test_a_step_spans_the_events_inside_its_marker() -> None:
    steps = find_steps(EVENTS, [marker(2, 4, step_num=7), marker(6, 8, step_num=8)])
    assert [(s.index, s.number, s.first, s.last) for s in steps] == [(0, 7, 2, 4), (1, 8, 6, 8)]
    assert [s.duration_s for s in steps] == [2e-12, 2e-12]


def test_only_the_outermost_of_nested_markers_counts() -> None:
    # GIVEN fit's marker inside the user's own, both starting together in the second
    markers = [marker(1, 5), marker(2, 4), marker(6, 7, step_num=1), marker(6, 9, step_num=2)]
    # WHEN steps are found THEN there are two
    assert [(s.first, s.last, s.number) for s in find_steps(EVENTS, markers)] == [
        (1, 5, None),
        (6, 9, 2),
    ]


def test_markers_of_any_order_are_steps_in_order_of_time() -> None:
    steps = find_steps(EVENTS, [marker(6, 8, step_num=0), marker(2, 4, step_num=1)])
    assert [(s.index, s.number, s.first) for s in steps] == [(0, 1, 2), (1, 0, 6)]


def test_a_marker_without_events_is_an_empty_step() -> None:
    (step,) = find_steps(EVENTS, [marker(20, 30)])
    assert step.last < step.first


def test_births_outside_steps_have_none() -> None:
    steps = find_steps(EVENTS, [marker(2, 4), marker(6, 8)])
    found = pd.Series(find_steps_of_births(EVENTS.index.to_numpy() - 1, steps))
    assert found.fillna(-1).tolist() == [-1, -1, -1, 0, 0, 0, -1, 1, 1, 1]


def test_births_are_found_in_any_number_of_steps() -> None:
    rng = np.random.default_rng(3)
    born = rng.integers(-1, 5000, 4000)
    steps, instant = [], 0
    for index in range(900):
        first, last = instant, instant + int(rng.integers(-1, 6))
        steps.append(Step(index=index, number=None, first=first, last=last))
        instant = max(last, first) + int(rng.integers(0, 3))
    found = find_steps_of_births(born, steps)
    slowly = [max((s.index for s in steps if s.first <= at <= s.last), default=None) for at in born]
    assert [None if value is pd.NA else value for value in found] == slowly


def test_without_markers_the_peak_is_that_of_the_whole_trace(tmp_path: Path) -> None:
    # GIVEN a trace without step markers
    trace = TraceBuilder().allocate(1, 1, 512).allocate(2, 2, 256).free(3, 1).free(4, 2)
    # WHEN it is opened
    result = analyzer.open_trace(trace.write(tmp_path / "a.xplane.pb"))
    # THEN its peak is found all the same, and the report says what it is
    document = result.document
    assert document["steps"] == []
    assert document["peak"]["allocated_bytes"] == 768
    assert document["peak"]["step"] is None
    assert document["peak_ever"]["phase"] == "whole trace"
    assert any("no step markers" in warning for warning in document["warnings"])


def test_the_steady_step_is_the_last_with_events(tmp_path: Path) -> None:
    # GIVEN two steps, something large between them, and a marker after all events
    trace = small_trace().allocate(250, 0x9000, 1 << 20).free(260, 0x9000).step(900, 950, 2)
    # WHEN it is opened
    document = analyzer.open_trace(trace.write(tmp_path / "a.xplane.pb")).document
    # THEN the peak is the second step's, and the highest ever is said apart
    assert document["peak"]["step"] == 1
    assert document["peak"]["allocated_bytes"] == 768
    assert document["peak"]["requested_bytes"] == 504
    assert document["peak_ever"] == {
        "requested_bytes": 1 << 20,
        "allocated_bytes": 1 << 20,
        "pool_bytes": document["peak_ever"]["pool_bytes"],
        "phase": "between steps",
        "since_start_bytes": 1 << 20,
    }
    assert [step["allocated_bytes"] for step in document["steps"][:2]] == [768, 768]


def test_memory_from_before_the_trace_is_counted(tmp_path: Path) -> None:
    # GIVEN a trace that began late: 4096 B were in use, of which 1024 B are freed in it
    trace = TraceBuilder()
    trace.allocate(0, 0x100, 1024).allocate(1, 0x900, 3072)
    del trace.line().events[:]
    trace.step(5, 100).allocate(10, 0x2000, 256).free(20, 0x100).free(30, 0x2000)
    # WHEN it is opened
    result = analyzer.open_trace(trace.write(tmp_path / "a.xplane.pb"))
    # THEN in use is what TensorFlow wrote at every event
    line = result.analysis.line
    assert line.allocated[1:].tolist() == result.recording.events["in_use_bytes"].tolist()
    assert result.document["resident"]["allocated_bytes"] == 4096
    (row,) = [r for r in result.document["tensors_at_peak"] if r["requested_bytes"] == 3072]
    assert (row["category"], row["why_alive"]) == (
        "unattributed",
        "allocated before the trace began",
    )
    told = "71% of the maximum in use (3.00 KiB) was allocated before the trace began"
    assert any(w.startswith(told) for w in result.document["warnings"])
    assert result.document["peak"]["pool_bytes"] is None
