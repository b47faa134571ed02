"""A step on two virtual CPU devices: what is predicted of each replica, against the real run."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import ROOT

import analyzer

TARGET = f"{ROOT / 'tests' / 'integration' / 'targets' / 'replicas.py'}:make_step"
KERNEL_BYTES = 512 * 1024 * 4


@pytest.mark.tf
@pytest.mark.slow
def test_two_replicas(tmp_path: Path) -> None:
    # GIVEN the step traced, and estimated
    traced = analyzer.trace(TARGET, out=tmp_path / "traced")
    estimated = analyzer.estimate(TARGET, out=tmp_path / "estimated")
    # THEN the peak that TensorFlow wrote lies in the range, and the one shown is near it
    stated, peak = estimated.report.uncertainty, traced.peak_bytes
    assert stated is not None
    assert stated.low_bytes is not None
    assert stated.high_bytes is not None
    assert stated.low_bytes <= peak <= stated.high_bytes
    assert estimated.peak_bytes == pytest.approx(peak, rel=0.05)
    assert not estimated.report.unmodelled
    for result in (traced, estimated):
        # AND each device has the variables and a gradient of its own, none of them one too many
        sums = result.report.categories_at_peak.by_category()
        assert sums["parameter"] == sums["gradient"] == 2 * KERNEL_BYTES
        assert 2 * KERNEL_BYTES <= sums["optimizer_state"] < 2 * KERNEL_BYTES + 1024
    roles = traced.allocations["role"].astype(str)
    assert roles.str.contains("all-reduce").any()
