from __future__ import annotations

import json

import pytest
from make_recording import Made, make_recording

from analyzer.report.exports import chrome_trace


@pytest.fixture(scope="module")
def made() -> Made:
    return make_recording(600)


def test_the_counter_reaches_the_peak_and_its_parts(made: Made) -> None:
    events = json.loads(chrome_trace(made.recording))["traceEvents"]
    peak = made.document["peak"]
    time_us = made.recording.events["time_ps"].iloc[peak["instant"]] / 1e6
    at_peak = [
        e
        for e in events
        if e["ph"] == "C" and e["name"] == "requested bytes" and e["ts"] == time_us
    ]
    stated = made.document["categories_at_peak"]
    used = set(made.recording.allocations["category"])
    expected = {name: size for name, size in stated.items() if name in used}
    assert [event["args"] for event in at_peak] == [expected]
    allocated = [
        e["args"]["allocated"] for e in events if e["name"] == "allocated bytes"
    ]
    assert allocated == made.recording.events["in_use_bytes"].tolist()
