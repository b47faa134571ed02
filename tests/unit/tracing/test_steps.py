from __future__ import annotations

from pathlib import Path

from builders import TraceBuilder

import analyzer


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
