from __future__ import annotations

from pathlib import Path

from builders import TraceBuilder, events_of

import analyzer
from analyzer.tracing.measure.steps import find_steps
from analyzer.tracing.parse.xplane import Span


def marker(start: int, end: int, **stats: object) -> Span:
    return Span("train", start, end, 1, stats)


EVENTS = events_of(*((1, index, 256) for index in range(10)))  # at 0, 1, ... 9 ps


def test_a_step_spans_the_events_inside_its_marker() -> None:
    steps = find_steps(EVENTS, [marker(2, 4, step_num=7), marker(6, 8, step_num=8)])
    assert [(s.index, s.number, s.first, s.last) for s in steps] == [
        (0, 7, 2, 4),
        (1, 8, 6, 8),
    ]
    assert [s.duration_s for s in steps] == [2e-12, 2e-12]


def test_only_the_outermost_of_nested_markers_counts() -> None:
    # GIVEN fit's marker inside the user's own, both starting together in the second
    markers = [
        marker(1, 5),
        marker(2, 4),
        marker(6, 7, step_num=1),
        marker(6, 9, step_num=2),
    ]
    # WHEN steps are found THEN there are two
    assert [(s.first, s.last, s.number) for s in find_steps(EVENTS, markers)] == [
        (1, 5, None),
        (6, 9, 2),
    ]


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
