"""The memory snapshot keeps to PyTorch's format, and its events reach the report's peak."""

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT, sample_folder

from analyzer.report.result import Result
from analyzer.session.opening import open_result

ESTIMATE = ROOT / "tests" / "unit" / "predict" / "notes" / "gpu"
FOLDERS = [sample_folder("cnn"), sample_folder("jit"), ESTIMATE]

# The instructions that MemoryViz.js implements.
KNOWN = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE",
    "DICT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1", "LONG_BINGET",
    "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS",
    "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, Path]:
    result = open_result(request.param)
    file = tmp_path_factory.mktemp("snapshot") / "snapshot.pickle"
    result.to_torch_snapshot(file)
    return result, file


def test_memory_viz_reads_its_instructions(written: tuple[Result, Path]) -> None:
    content = written[1].read_bytes()
    used = {code.name for code, _, _ in pickletools.genops(content)}
    assert used <= KNOWN


def test_the_events_reach_the_peak_and_leave_the_blocks(
    written: tuple[Result, Path],
) -> None:
    result, file = written
    snapshot: dict[str, Any] = pickle.loads(file.read_bytes())
    (events,) = snapshot["device_traces"]
    assert "unknown" in {event["category"] for event in events}
    assert [e["time_us"] for e in events] == sorted(e["time_us"] for e in events)

    freed = [e["addr"] for e in events if e["action"] == "free_completed"]
    allocated = [e["addr"] for e in events if e["action"] == "alloc"]
    blocks = [one for segment in snapshot["segments"] for one in segment["blocks"]]
    used = {one["address"] for one in blocks if one["state"] == "active_allocated"}
    before = len(freed) + len(used) - len(allocated)
    rows = result.analysis.rows
    assert before == int((rows["born"] < 0).sum())

    live: dict[int, int] = {}
    in_use = peak = 0
    for event in events:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
            in_use += event["size"]
        elif event["action"] == "free_completed":
            in_use -= live.pop(event["addr"], 0)
        peak = max(peak, in_use)

    assert live.keys() <= used
    if not before:
        assert peak == result.report.peak_ever.requested_bytes


def test_the_blocks_fill_their_segments(written: tuple[Result, Path]) -> None:
    for segment in pickle.loads(written[1].read_bytes())["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            assert block["requested_size"] <= block["size"]
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
