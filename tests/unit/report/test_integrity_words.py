"""What is said of a damaged trace, and where: before any figure, in every output."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from builders import sample_trace

import analyzer
from analyzer.tracing.parse.protobuf import Space
from analyzer.tracing.parse.xplane import read_trace


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a trace without every tenth allocation."""
    space = Space.FromString(gzip.decompress(sample_trace("accumulation").read_bytes()))
    for plane in space.planes:
        births = {
            x.key for x in plane.event_metadata if x.value.name == b"MemoryAllocation"
        }
        for line in plane.lines:
            found = [
                at
                for at, event in enumerate(line.events)
                if event.metadata_id in births
            ]
            for at in reversed(found[5::10]):
                del line.events[at]
    path = tmp_path_factory.mktemp("damaged") / "a.xplane.pb"
    path.write_bytes(space.SerializeToString())
    return path


def test_the_document(damaged: Path) -> None:
    document = analyzer.open_trace(damaged).document
    found, whole = (
        document["integrity"],
        read_trace(sample_trace("accumulation")).events,
    )
    assert found["is_damaged"]
    assert 0 < found["events_disagreeing"] <= found["events"]
    assert found["largest_difference_bytes"] > 0
    assert "lost-events" in [damage["id"] for damage in found["damages"]]
    last = read_trace(damaged).step_markers[-1]
    inside = whole["time_ps"].between(last.start_ps, last.end_ps)
    assert found["counter_peak_bytes"] == pytest.approx(
        whole["in_use_bytes"][inside].max(), rel=0.1
    )
    assert found["counter_peak_bytes"] != document["peak"]["allocated_bytes"]
    json.dumps(document, allow_nan=False)
