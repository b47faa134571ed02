"""Estimates for cards without a run: the graph, the totals and invariants."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import analyze_in_child

from analyzer.cards import find_gpu, memory_limit

pytestmark = pytest.mark.tf
TARGETS = Path(__file__).parents[1] / "targets"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    shutil.copy(TARGETS / "gpu_steps.py", folder)
    return folder


def estimate(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """Return the document of an estimate, made once."""
    out = "".join((name, *options))
    if not (folder / out).exists():
        arguments = ("estimate", f"gpu_steps.py:{name}", "--out", out, *options)
        ended = analyze_in_child(*arguments, cwd=folder, TF_MEMORY_ANALYZER_STATIC="1")
        assert ended.code == 0, ended.err
    document: dict[str, Any] = json.loads((folder / out / "report.json").read_text())
    return document


@pytest.mark.parametrize(
    ("name", "card"),
    [("cnn", "t4"), pytest.param("transformer", "a100-40gb", marks=pytest.mark.slow)],
)
def test_the_books_of_an_estimate_for_a_card_balance(
    folder: Path, name: str, card: str
) -> None:
    document = estimate(folder, name, "--gpu", card, "--no-jit", "--batch-size", "8")
    gpu, peak = find_gpu(card), document["peak"]
    assert document["device"]["memory_limit_bytes"] == memory_limit(gpu).bytes
    categories = document["categories_at_peak"]
    assert sum(categories.values()) == peak["requested_bytes"]
    slots = 2 * categories["parameter"]  # Adam's; moving statistics have none
    assert 0.9 * slots < categories["optimizer_state"] <= slots + 64
    state = (
        categories["parameter"] + categories["optimizer_state"] + categories["input"]
    )
    assert (
        0.99 * state <= document["resident"]["requested_bytes"] <= 1.05 * state + 4096
    )
    assert peak["requested_bytes"] <= peak["allocated_bytes"] <= peak["pool_bytes"]
    assert document["fits"] is True
    assert not any("have no rule" in one for one in document["warnings"])


def test_float32_training_uses_channels_first(folder: Path) -> None:
    document = estimate(folder, "cnn", "--gpu", "t4", "--no-jit", "--batch-size", "8")
    shapes = {row["shape"] for row in document["tensors_at_peak"]}
    assert any(shape.startswith(("[8,16,", "[8,32,")) for shape in shapes), shapes


@pytest.mark.slow
def test_a_larger_batch_needs_more(folder: Path) -> None:
    small, large = (
        estimate(folder, "cnn", "--gpu", "t4", "--no-jit", "--batch-size", size)
        for size in ("8", "64")
    )
    assert large["peak"]["requested_bytes"] > 4 * small["peak"]["requested_bytes"]
    assert large["verdict"]["margin_bytes"] < small["verdict"]["margin_bytes"]


def test_recurrent_layers_use_cudnn(folder: Path) -> None:
    document = estimate(folder, "recurrent", "--gpu", "t4", "--batch-size", "8")
    assert document["step"]["jit"] is False
    assert any(row["type"] == "CudnnRNNV3" for row in document["ops"])


def test_grouped_convolution_has_known_sizes(folder: Path) -> None:
    document = estimate(
        folder, "grouped", "--gpu", "t4", "--no-jit", "--batch-size", "8"
    )
    assert document["uncertainty"]["unsized"] == 0
    assert document["fits"] is True


def test_a_step_that_returns_nothing_keeps_its_gradients_together(folder: Path) -> None:
    """The simulated T4's run: no gradient is used up before the last one is there."""
    document = estimate(folder, "silent", "--gpu", "t4")
    assert document["peak"]["requested_bytes"] == pytest.approx(31_552_636, rel=0.001)
