"""Against XProf's own reading of the same files; where it differs, why it is off."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from builders import SAMPLES, TraceBuilder, sample_folder, sample_trace

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


def named_bytes(profile: dict[str, Any]) -> int:
    """Return the bytes at the peak to which XProf can give an op."""
    total = 0
    for row in profile["activeAllocations"]:
        if int(row["snapshotIndex"]) >= 0:
            snapshot = profile["memoryProfileSnapshots"][int(row["snapshotIndex"])]
            size = int(snapshot["activityMetadata"]["allocationBytes"])
            total += size * int(row["numOccurrences"])
    return total


@cache
def opened(name: str) -> analyzer.Result:
    return analyzer.open_trace(sample_folder(name))


@pytest.mark.parametrize("name", SAMPLES)
def test_same_peak_and_capacity(name: str, tmp_path: Path) -> None:
    # GIVEN XProf's reading of a sample
    content = gzip.decompress(sample_trace(name).read_bytes())
    profile = memory_profile(content, tmp_path)
    summary = profile["profileSummary"]
    # THEN the peak and the capacity are ours
    document = opened(name).document
    assert peak_of(profile) == document["peak_ever"]["allocated_bytes"]
    assert (
        int(summary["peakBytesUsageLifetime"])
        == document["peak_ever"]["allocated_bytes"]
    )
    assert int(summary["memoryCapacity"]) == document["device"]["memory_limit_bytes"]
    # AND its time is one at which our books, too, are at the peak
    events, line = opened(name).recording.events, opened(name).analysis.line
    at_peak = events["time_ps"][line.allocated[1:] == line.allocated.max()]
    space = Space.FromString(content)
    zero = min(
        line.timestamp_ns
        for plane in space.planes
        for line in plane.lines
        if line.events
    )
    assert int(summary["peakStatsTimePs"]) + zero * 1000 in set(at_peak)


def test_the_lifetime_peak_follows_the_order_of_lines(tmp_path: Path) -> None:
    # GIVEN a worker thread that reaches 4 KiB, and a main thread that ended long before at 1 KiB
    def trace(first: int) -> bytes:
        built = TraceBuilder()
        built.line(first)  # which line comes first in the file says nothing of time
        main, worker = 1, 2
        built.allocate(10, 0x100, 1024, thread=main).free(20, 0x100, thread=main)
        built.allocate(30, 0x200, 4096, thread=worker).free(40, 0x200, thread=worker)
        return built.bytes()

    in_order, out_of_order = trace(first=1), trace(first=2)
    # WHEN XProf reads the same events with the lines in either order
    right = memory_profile(in_order, tmp_path / "a")
    wrong = memory_profile(out_of_order, tmp_path / "b")
    # THEN its lifetime peak is that of the last line, not of the last moment
    assert int(right["profileSummary"]["peakBytesUsageLifetime"]) == 4096
    assert int(wrong["profileSummary"]["peakBytesUsageLifetime"]) == 1024
    # AND ours is the same for both
    for name, content in (("a", in_order), ("b", out_of_order)):
        path = tmp_path / f"{name}.xplane.pb"
        path.write_bytes(content)
        assert (
            analyzer.open_trace(path).document["peak_ever"]["allocated_bytes"] == 4096
        )


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
        == (opened("accumulation").document["peak_ever"]["allocated_bytes"])
    )


def test_what_is_alive_from_earlier_steps_has_no_name(tmp_path: Path) -> None:
    # GIVEN a training step, most of whose variables were made before it
    profile = memory_profile(
        gzip.decompress(sample_trace("jit").read_bytes()), tmp_path
    )
    special = [row["tfOpName"] for row in profile["specialAllocations"]]
    # THEN XProf names only what was made in the step of the peak
    assert special == ["unused preallocated device memory"]
    assert named_bytes(profile) < 0.7 * peak_of(profile)
    # AND ours names each variable
    alive = opened("jit").analysis.alive
    variables = alive[alive["variable"] != ""]["allocated_bytes"].sum()
    assert variables > 0.5 * opened("jit").document["peak"]["allocated_bytes"]
    assert (alive["category"] != "unattributed").mean() > 0.5


def test_the_memory_profile_of_xprof_alone(tmp_path: Path) -> None:
    # GIVEN the file that XProf derives from a sample, which holds all of its events
    content = gzip.decompress(sample_trace("infer").read_bytes())
    profile = memory_profile(content, tmp_path)
    allocator = opened("infer").recording.allocator
    path = tmp_path / "memory_profile.json.gz"
    text = json.dumps({"memoryProfilePerAllocator": {allocator: profile}})
    path.write_bytes(gzip.compress(text.encode()))
    # WHEN it is opened THEN its peak is XProf's, with the ops of its tensors
    result = analyzer.open_trace(path)
    assert result.report.peak_ever.allocated_bytes == peak_of(profile)
    assert any(row.op for row in result.report.tensors_at_peak)
