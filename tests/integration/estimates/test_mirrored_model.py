"""A Keras model of a MirroredStrategy: traced on one device and on two cards, and estimated."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from builders import ROOT

import analyzer

TARGET = f"{ROOT / 'tests' / 'integration' / 'targets' / 'mirrored_model.py'}:build"
WEIGHTS_BYTES = 4 * (512 * 1024 + 1024 + 1024 * 256 + 256)
SMALL_BYTES = 1024  # counters and metrics


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_the_estimate_agrees_with_the_run(tmp_path: Path, mode: str) -> None:
    traced = analyzer.trace(TARGET, batch_size=64, mode=mode, out=tmp_path / "traced")
    estimated = analyzer.estimate(
        TARGET, batch_size=64, mode=mode, out=tmp_path / "estimated"
    )
    stated, peak = estimated.report.uncertainty, traced.peak_bytes
    assert stated is not None
    assert stated.low_bytes is not None
    assert stated.high_bytes is not None
    assert stated.low_bytes <= peak <= stated.high_bytes
    assert estimated.peak_bytes == pytest.approx(peak, rel=0.15)
    for result in (traced, estimated):
        sums = result.report.categories_at_peak.by_category()
        assert WEIGHTS_BYTES <= sums["parameter"] < WEIGHTS_BYTES + SMALL_BYTES
        assert sums["constant"] < WEIGHTS_BYTES / 20


@pytest.mark.tf
@pytest.mark.slow
def test_the_estimate_for_a_card_is_that_of_the_run_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_MEMORY_ANALYZER_STATIC", "1")
    options = {"batch_size": 64, "gpu": "t4", "jit": False}
    traced = analyzer.trace(TARGET, out=tmp_path / "traced", **options)
    estimated = analyzer.estimate(TARGET, out=tmp_path / "estimated", **options)
    assert estimated.peak_bytes == pytest.approx(traced.peak_bytes, rel=0.02)
    sums = estimated.report.categories_at_peak.by_category()
    assert WEIGHTS_BYTES <= sums["parameter"] < WEIGHTS_BYTES + SMALL_BYTES


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.skipif(
    tuple(map(int, version("tensorflow").split(".")[:2])) < (2, 21),
    reason="NCCL is built in",
)
def test_two_cards_share_the_batch_and_hold_the_variables(tmp_path: Path) -> None:
    traced = analyzer.trace(
        TARGET, batch_size=64, gpu="2xt4", jit=False, out=tmp_path / "two"
    )
    assert traced.report.step.batch_size == 64
    table = traced.recording.allocations
    before = traced.report.categories_at_peak.by_category()
    assert before.get("unattributed", 0) < SMALL_BYTES
    for card in ("GPU_0_bfc", "GPU_1_bfc"):
        own = table[table["allocator"] == card]
        for category, count in (("parameter", 1), ("optimizer_state", 2)):
            held = own.loc[own["category"] == category, "requested_bytes"].sum()
            assert (
                count * WEIGHTS_BYTES <= held < count * WEIGHTS_BYTES + SMALL_BYTES
            ), category
        inputs = own.loc[own["category"] == "input", "requested_bytes"]
        assert inputs.max() <= 32 * 512 * 4
