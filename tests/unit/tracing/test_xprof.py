"""Against XProf's own reading of the same files; where it differs, why it is off."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from builders import SAMPLES, opened_sample, sample_trace

import analyzer
from analyzer.tracing.parse.protobuf import Space

xprof = pytest.importorskip("xprof.convert.raw_to_tool_data")


def memory_profile(content: bytes, folder: Path) -> dict[str, Any]:
    """Return what XProf says of the trace's only allocator."""
    run = folder / "plugins" / "profile" / "run"
    run.mkdir(parents=True, exist_ok=True)
    path = run / "host.xplane.pb"
    path.write_bytes(content)
    data, _ = xprof.xspace_to_tool_data(
        [str(path)], "memory_profile", {"use_saved_result": False}
    )
    profiles = json.loads(data)["memoryProfilePerAllocator"]
    assert len(profiles) == 1
    return next(iter(profiles.values()))


def peak_of(profile: dict[str, Any]) -> int:
    return int(profile["profileSummary"]["peakStats"]["heapAllocatedBytes"])


@pytest.mark.parametrize("name", SAMPLES)
def test_same_peak_and_capacity(name: str, tmp_path: Path) -> None:
    # GIVEN XProf's reading of a sample
    content = gzip.decompress(sample_trace(name).read_bytes())
    profile = memory_profile(content, tmp_path)
    summary = profile["profileSummary"]
    # THEN the peak and the capacity are ours
    document = opened_sample(name).document
    assert peak_of(profile) == document["peak_ever"]["allocated_bytes"]
    assert (
        int(summary["peakBytesUsageLifetime"])
        == document["peak_ever"]["allocated_bytes"]
    )
    assert int(summary["memoryCapacity"]) == document["device"]["memory_limit_bytes"]
    # AND its time is one at which our books, too, are at the peak
    events, line = (
        opened_sample(name).recording.events,
        opened_sample(name).analysis.line,
    )
    at_peak = events["time_ps"][line.allocated[1:] == line.allocated.max()]
    space = Space.FromString(content)
    zero = min(
        line.timestamp_ns
        for plane in space.planes
        for line in plane.lines
        if line.events
    )
    assert int(summary["peakStatsTimePs"]) + zero * 1000 in set(at_peak)


def test_a_real_trace_with_its_lines_reversed(tmp_path: Path) -> None:
    # GIVEN a sample with the same events in another order of lines
    space = Space.FromString(gzip.decompress(sample_trace("accumulation").read_bytes()))
    for plane in space.planes:
        lines = list(plane.lines)[::-1]
        del plane.lines[:]
        plane.lines.extend(lines)
    path = tmp_path / "reversed.xplane.pb"
    path.write_bytes(space.SerializeToString())
    # THEN nothing changes for us
    ours = analyzer.open_trace(path).document
    assert (
        ours["peak_ever"]["allocated_bytes"]
        == (opened_sample("accumulation").document["peak_ever"]["allocated_bytes"])
    )


def test_the_memory_profile_of_xprof_alone(tmp_path: Path) -> None:
    # GIVEN the file that XProf derives from a sample, which holds all of its events
    content = gzip.decompress(sample_trace("infer").read_bytes())
    profile = memory_profile(content, tmp_path)
    allocator = opened_sample("infer").recording.allocator
    path = tmp_path / "memory_profile.json.gz"
    text = json.dumps({"memoryProfilePerAllocator": {allocator: profile}})
    path.write_bytes(gzip.compress(text.encode()))
    # WHEN it is opened THEN its peak is XProf's, with the ops of its tensors
    result = analyzer.open_trace(path)
    assert result.report.peak_ever.allocated_bytes == peak_of(profile)
    assert any(row.op for row in result.report.tensors_at_peak)
