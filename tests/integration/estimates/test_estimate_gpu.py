"""Estimates for cards without a run: the graph, the totals and invariants."""

from typing import Any

import pytest
from workbench import Workbench

from analyzer.cards.catalogue import find_gpu, memory_limit

OP_BY_OP = ("--no-jit", "--batch-size", "8", "--inter-op-threads", "1")


def estimate(workbench: Workbench, name: str, *options: str) -> dict[str, Any]:
    words = ("estimate", f"gpu_steps.py:{name}", *options)
    return workbench.run(*words, TF_MEMORY_ANALYZER_STATIC="1").document


@pytest.mark.parametrize(
    ("name", "card"),
    [("cnn", "t4"), pytest.param("transformer", "a100-40gb", marks=pytest.mark.slow)],
)
def test_the_books_of_an_estimate_for_a_card_balance(
    workbench: Workbench, name: str, card: str
) -> None:
    document = estimate(workbench, name, "--gpu", card, *OP_BY_OP)
    gpu, peak = find_gpu(card), document["peak"]
    assert document["device"]["memory_limit_bytes"] == memory_limit(gpu).bytes
    categories = document["categories_at_peak"]
    state = (
        categories["parameter"] + categories["optimizer_state"] + categories["input"]
    )
    assert (
        0.99 * state <= document["resident"]["requested_bytes"] <= 1.05 * state + 4096
    )
    assert peak["requested_bytes"] <= peak["allocated_bytes"] <= peak["pool_bytes"]
    assert not any("have no rule" in one for one in document["warnings"])


def test_float32_training_uses_channels_first(workbench: Workbench) -> None:
    document = estimate(workbench, "cnn", "--gpu", "t4", *OP_BY_OP)
    shapes = {row["shape"] for row in document["tensors_at_peak"]}
    assert any(shape.startswith(("[8,16,", "[8,32,")) for shape in shapes), shapes


def test_recurrent_layers_use_cudnn(workbench: Workbench) -> None:
    document = estimate(workbench, "recurrent", "--gpu", "t4", "--batch-size", "8")
    assert document["step"]["jit"] is False
    assert any(row["type"] == "CudnnRNNV3" for row in document["ops"])


def test_grouped_convolution_has_known_sizes(workbench: Workbench) -> None:
    document = estimate(workbench, "grouped", "--gpu", "t4", *OP_BY_OP)
    assert document["uncertainty"]["unsized"] == 0
    assert document["fits"] is True


def test_a_step_that_returns_nothing_keeps_its_gradients_together(
    workbench: Workbench,
) -> None:
    """The simulated T4's run: no gradient is used up before the last one is there."""
    document = estimate(workbench, "silent", "--gpu", "t4")
    assert document["peak"]["requested_bytes"] == pytest.approx(31_552_636, rel=0.001)
