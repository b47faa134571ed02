"""Traces of the simulated card without their graph, opened with a graph from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from builders import analyze_in_child
from simulated_cards import NEEDS_CARDS

import analyzer
from analyzer.tracing.parse.logdir import find_traces

pytestmark = [
    pytest.mark.tf,
    pytest.mark.slow,
    NEEDS_CARDS,
]
TARGETS = Path(__file__).parent / "targets"


def test_a_target_gives_a_trace_its_graph(tmp_path: Path) -> None:
    # GIVEN a captured step on the simulated card, and its trace alone
    shutil.copy(TARGETS / "gpu_steps.py", tmp_path)
    options = (
        "--gpu",
        "t4",
        "--no-jit",
        "--batch-size",
        "8",
        "--inter-op-threads",
        "1",
    )
    ended = analyze_in_child(
        "trace", "gpu_steps.py:cnn", *options, "--out", "run", cwd=tmp_path
    )
    assert ended.code == 0, ended.err
    shutil.copy(find_traces(tmp_path / "run")[0], tmp_path / "alone.xplane.pb")
    # WHEN it is opened with the target, whose default batch size differs
    arguments = (
        "trace",
        "alone.xplane.pb",
        "--target",
        "gpu_steps.py:cnn",
        "--gpu",
        "t4",
    )
    joined = analyze_in_child(
        *arguments, "--no-jit", "--json", "joined.json", cwd=tmp_path
    )
    # THEN almost all tensors are joined
    assert joined.code == 0, joined.err
    notes = " ".join(json.loads((tmp_path / "joined.json").read_text())["notes"])
    found = re.search(r"([\d.]+)% of the tensors of the traced steps", notes)
    assert found is not None, notes
    assert float(found[1]) >= 98
    # AND the activations at the peak are those of the capture
    captured = analyzer.open_trace(tmp_path / "run").report
    document = (tmp_path / "joined.json").read_text()
    activations = re.search(
        r'"categories_at_peak": *{[^}]*"activation": *(\d+)', document
    )
    assert activations is not None
    assert int(activations[1]) == pytest.approx(
        captured.categories_at_peak.activation, rel=0.01
    )


def test_variables_without_gradients_are_parameters(tmp_path: Path) -> None:
    # GIVEN a step with a frozen base, whose variables the capture knows by their addresses
    target = f"{TARGETS}/causes.py:frozen_base"
    options = ("--gpu", "t4", "--no-jit", "--batch-size", "4")
    ended = analyze_in_child("trace", target, *options, "--out", "run", cwd=tmp_path)
    assert ended.code == 0, ended.err
    # WHEN its trace is opened without the capture's note
    shutil.copy(find_traces(tmp_path / "run")[0], tmp_path / "alone.xplane.pb")
    alone = analyzer.open_trace(tmp_path / "alone.xplane.pb").report
    # THEN the parameters are the same bytes
    captured = analyzer.open_trace(tmp_path / "run").report.categories_at_peak
    assert alone.categories_at_peak.parameter == pytest.approx(
        captured.parameter, rel=0.01
    )
