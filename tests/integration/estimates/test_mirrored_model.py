"""A Keras model of a MirroredStrategy: traced on one device and on two cards, and estimated."""

import json
from pathlib import Path

import pytest
from builders import ROOT, analyze_in_child
from simulated_cards import NEEDS_NCCL_BY_NAME

import analyzer

TARGET = f"{ROOT / 'tests' / 'integration' / 'targets' / 'mirrored_model.py'}:build"
WEIGHTS_BYTES = 4 * (512 * 1024 + 1024 + 1024 * 256 + 256)
SMALL_BYTES = 1024  # counters and metrics


pytestmark = [pytest.mark.slow, NEEDS_NCCL_BY_NAME]


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


def test_a_script_on_two_cards_reaches_the_end_of_its_data(tmp_path: Path) -> None:
    script, out = TARGET.removesuffix(":build"), tmp_path / "two"
    analyze_in_child("trace", script, "--gpu", "2xt4", "--out", str(out), cwd=tmp_path)
    report = json.loads((out / "report.json").read_text())
    assert report["error"] is None
    assert report["program"]["steps"] == 4 * 3
