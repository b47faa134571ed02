"""Estimates of steps that XLA compiles, against traces of the same steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import analyze_in_child

import analyzer

pytestmark = pytest.mark.tf
TARGETS = Path(__file__).parents[1] / "targets"


def documents(
    folder: Path, name: str, *options: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the documents of an estimate and of a trace of one step."""
    shutil.copy(TARGETS / "compiled_steps.py", folder)
    for command, more in (("estimate", ()), ("trace", ("--inter-op-threads", "1"))):
        ended = analyze_in_child(
            command, f"compiled_steps.py:{name}", "--device", "cpu", "--out", command, *more, *options,
            cwd=folder,
        )  # fmt: skip
        assert ended.code == 0, ended.err
    return tuple(
        json.loads((folder / command / "report.json").read_text(encoding="utf-8"))
        for command in ("estimate", "trace")
    )


def test_a_compiled_step(tmp_path: Path) -> None:
    predicted, measured = documents(tmp_path, "whole")
    peak = measured["peak"]["requested_bytes"]
    assert predicted["peak"]["requested_bytes"] == pytest.approx(peak, rel=0.005)
    allocated = measured["peak"]["allocated_bytes"]
    stated = predicted["uncertainty"]
    low, high = stated["allocated_low_bytes"], stated["allocated_high_bytes"]
    assert 0.99 * low <= allocated <= 1.01 * high
    # The trace has noted the plan that ran: both show what lies inside XLA's one buffer, and agree.
    for category, size in measured["categories_at_peak"].items():
        other = predicted["categories_at_peak"][category]
        assert other == pytest.approx(size, abs=0.02 * peak), category
    for document in (predicted, measured):
        assert any(row["instruction"] for row in document["tensors_at_peak"])
        assert any(row["layer"] for row in document["ops"])
    assert measured["fragmentation"]["replay_equals_trace"]
    # Opened again, it is predicted from the folder alone, to the same tables.
    again = analyzer.estimate(tmp_path / "estimate")
    assert again.document["peak"] == predicted["peak"]
    assert not (tmp_path / "estimate" / ".xla").exists()


@pytest.mark.slow
def test_a_compiled_step_whose_signature_leaves_the_batch_open(tmp_path: Path) -> None:
    predicted, measured = documents(tmp_path, "of_any_batch", "--batch-size", "128")
    for figure in ("requested_bytes", "allocated_bytes"):
        assert predicted["peak"][figure] == pytest.approx(
            measured["peak"][figure], rel=0.005
        )


@pytest.mark.slow
def test_compiled_functions_in_a_step_that_runs_op_by_op(tmp_path: Path) -> None:
    predicted, measured = documents(tmp_path, "partly")
    assert predicted["unmodelled"] == []
    stated = predicted["uncertainty"]
    peak = measured["peak"]["requested_bytes"]
    assert 0.98 * stated["low_bytes"] <= peak <= 1.02 * stated["high_bytes"]
