"""Traces of the simulated card, opened without the note of their capture."""

import shutil
from pathlib import Path

import pytest
from builders import analyze_in_child
from simulated_cards import NEEDS_CARDS

import analyzer
from analyzer.tracing.parse.run_folder import find_traces

pytestmark = [pytest.mark.slow, NEEDS_CARDS]
TARGETS = Path(__file__).parent / "targets"


def test_variables_without_gradients_are_parameters(tmp_path: Path) -> None:
    # GIVEN a step with a frozen base, whose variables the capture knows by their addresses
    target = f"{TARGETS}/causes.py:pretrained_mended"
    options = ("--gpu", "t4", "--no-jit")
    analyze_in_child("trace", target, *options, "--out", "run", cwd=tmp_path)
    # WHEN its trace is opened without the capture's note
    shutil.copy(find_traces(tmp_path / "run")[0], tmp_path / "alone.xplane.pb")
    alone = analyzer.open_trace(tmp_path / "alone.xplane.pb").report
    # THEN the parameters are the same bytes
    captured = analyzer.open_trace(tmp_path / "run").report.categories_at_peak
    assert alone.categories_at_peak.parameter == pytest.approx(
        captured.parameter, rel=0.01
    )
