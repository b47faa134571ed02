"""The allocator's findings: titles with the bytes in them, evidence that adds up."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analyzer.explain import pool_facts
from analyzer.explain.analysis import analyse
from analyzer.explain.pool_facts import find_allocator
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.recording.records import Device, Kind, Recording
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS, conform, empty
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import from_recording, replay

MIB = 1 << 20


def recording_of(rows):
    """Return a recording from (op, bytes, born, dies)."""
    table = pd.DataFrame(rows, columns=["op", "requested_bytes", "born", "dies"])
    for name, column in ALLOCATIONS.items():
        if name not in table:
            text = column.dtype == "category"
            table[name] = "" if text else pd.array([pd.NA] * len(table), dtype="Int64")
    table["allocator"], table["category"] = "bfc", "temporary"
    table["allocated_bytes"] = table["requested_bytes"]
    table["run_id"] = 0
    return Recording(
        kind=Kind.ESTIMATE,
        target={"name": "test"},
        device=Device(kind="gpu", name="test"),
        step_config=StepConfig(),
        events=empty(EVENTS),
        allocations=conform(table, ALLOCATIONS),
        allocator="bfc",
        steps=(),
    )


HOLES = [
    *((f"piece{i}", MIB, i, 6 if i % 2 == 0 else 20) for i in range(6)),
    ("large", 2 * MIB, 9, 12),
]


def find(options, rows=HOLES):
    return {
        finding.id: finding for finding in find_allocator(recording_of(rows), options)
    }


def test_a_request_that_does_not_fit_is_named_with_the_free_bytes():
    finding = find(BfcOptions.gpu(6 * MIB))["does-not-fit"]
    assert finding.title == "Out of memory under 6.00 MiB: 2.00 MiB for large"
    assert "3.00 MiB are free, and the largest chunk has 1.00 MiB" in finding.detail


def test_too_much_alive_is_told_from_fragmentation():
    finding = find(BfcOptions.gpu(MIB))["does-not-fit"]
    assert "need more than this limit" in finding.detail


def test_the_setting_that_lowers_the_limit_most_is_recommended():
    rows = []
    for step in range(10):
        rows += [(f"t{step}", (10 - step) * MIB, 3 * step, 3 * step + 2)]
        rows += [(f"keep{step}", 1000, 3 * step + 1, 30)]
    found = find(BfcOptions.gpu(64 * MIB, growth=True), rows)
    finding = found["allocator-remedies"]
    saved = [row["saves_bytes"] for row in finding.evidence]
    assert saved == sorted(saved, reverse=True)
    assert finding.saves_bytes == saved[0] > 0
    assert finding.evidence[0]["way"] in finding.title


@pytest.mark.parametrize("limit", [6 * MIB, 64 * MIB])
def test_nothing_is_said_twice(limit):
    found = find_allocator(recording_of(HOLES), BfcOptions.gpu(limit))
    ids = [finding.id for finding in found]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("pool", [64 * MIB, 64 * MIB + 1792])
def test_a_pool_padded_to_virtual_memory_is_replayed(pool):
    """TensorFlow's nightly takes 64 MiB from the driver for a limit that is 256 KiB lower."""
    limit = 64 * MIB - (256 << 10)
    recording = recording_of(HOLES)
    result = replay(from_recording(recording), BfcOptions.gpu(pool))
    events = pd.DataFrame(
        {
            "address": result.address,
            "allocated_bytes": result.chunk_bytes,
            "in_use_bytes": result.in_use_bytes,
            "peak_in_use_bytes": np.maximum.accumulate(result.in_use_bytes),
            "fragmentation": result.fragmentation(),
        }
    )
    events = (
        events.groupby(result.instant).last().reindex(range(result.instant.max() + 1))
    )
    analysis = analyse(replace(recording, events=events.reindex(range(21))))
    analysis = replace(analysis, recording=replace(recording, events=events))
    found = pool_facts._add_measured_pool(
        analysis, BfcOptions.gpu(limit), BfcOptions.gpu(limit)
    )
    assert found.fragmentation.replay_equals_trace is (pool == 64 * MIB)
