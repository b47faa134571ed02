"""Steps on cards that are not there: TensorFlow's own GPU runtime, and estimates held against it."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import analyze_in_child

from analyzer.gpus import find_gpu, memory_limit
from analyzer.phantom.compiling import find_compiler

pytestmark = [
    pytest.mark.tf,
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64" or not find_compiler(),
        reason="Linux on x86-64, and a compiler",
    ),
]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phantom")
    shutil.copy(HERE / "gpu_steps.py", folder)
    return folder


def run(folder: Path, command: str, name: str, *options: str, code: int = 0) -> dict[str, Any]:
    out = "-".join((command, name, *options)).replace("/", "")
    arguments = (command, f"gpu_steps.py:{name}", "--gpu", "t4", "--out", out, *options)
    ended = analyze_in_child(*arguments, cwd=folder)
    assert ended.code == code, ended.err
    document: dict[str, Any] = json.loads((folder / out / "report.json").read_text())
    return {**document, "printed": ended.out}


def test_a_step_runs_on_the_card_and_an_estimate_agrees(folder: Path) -> None:
    options = ("--no-jit", "--batch-size", "8")
    ran = run(folder, "trace", "cnn", *options)
    assert ran["printed"].startswith("TensorFlow's own GPU runtime on a phantom t4: no kernel ran")
    assert ran["kind"] == "phantom"
    assert ran["device"]["kind"] == "gpu"
    assert ran["device"]["memory_limit_bytes"] == memory_limit(find_gpu("t4")).bytes
    assert sum(ran["categories_at_peak"].values()) == ran["peak"]["requested_bytes"]
    assert len(ran["steps"]) == 3
    said = run(folder, "estimate", "cnn", *options)
    for figure, tolerance in (("requested_bytes", 0.001), ("allocated_bytes", 0.03)):
        assert said["peak"][figure] == pytest.approx(ran["peak"][figure], rel=tolerance), figure
    first, ever = said["peak_ever"]["requested_bytes"], ran["peak_ever"]["requested_bytes"]
    assert first == pytest.approx(ever, rel=0.02)  # the first step's trials, in an order of chance


def test_a_limit_is_tensorflows_own_and_the_end_its_own_message(folder: Path) -> None:
    tight = ("--no-jit", "--batch-size", "8", "--limit", "20MiB")
    ran = run(folder, "trace", "cnn", *tight, code=5)
    assert ran["device"]["memory_limit_bytes"] == 20 << 20
    assert "RESOURCE_EXHAUSTED" in ran["error"]["message"]
    assert ran["failure"]["memory_limit_bytes"] == 20 << 20
