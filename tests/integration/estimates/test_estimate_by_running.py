"""Estimates for cards that run the step on simulated ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import analyze_in_child
from simulated_cards import NEEDS_CARDS

from analyzer.cards import find_gpu, memory_limit

pytestmark = [pytest.mark.tf, NEEDS_CARDS]

SOURCE = """
import keras
import tensorflow as tf

def network():
    layers = [keras.layers.Dense(1024, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((1024,)), *layers, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model

def broken():
    with open("builds.txt", "a") as file:
        file.write("built\\n")
    return keras.layers.Missing()

def refused():
    @tf.function
    def step(x):
        return tf.numpy_function(lambda row: row.missing, [x], tf.float32)
    return step, (tf.ones([64, 64]),)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("running")
    (folder / "steps.py").write_text(SOURCE)
    return folder


def run(
    folder: Path, command: str, out: str, *options: str, code: int = 0
) -> dict[str, Any]:
    if (folder / out).exists():  # another test has run it
        return dict(json.loads((folder / out / "report.json").read_text()))
    ended = analyze_in_child(command, *options, "--out", out, cwd=folder, timeout_s=600)
    assert ended.code == code, ended.err
    document: dict[str, Any] = json.loads((folder / out / "report.json").read_text())
    return {**document, "printed": ended.out}


STEP = ("steps.py:network", "--gpu", "t4", "--inter-op-threads", "1")


@pytest.mark.parametrize("jit", ["--jit", "--no-jit"])
def test_an_estimate_is_the_run_on_the_simulated_card(folder: Path, jit: str) -> None:
    said, ran = (
        run(folder, one, one + jit, *STEP, jit) for one in ("estimate", "trace")
    )
    assert said["kind"] == "simulated_card"
    assert said["verdict"]["card"] == find_gpu("t4").name
    assert said["verdict"]["limit_bytes"] > memory_limit(find_gpu("t4")).bytes
    assert said["peak"]["requested_bytes"] == ran["peak"]["requested_bytes"]
    assert said["step"]["jit"] is (jit == "--jit")
    opened = analyze_in_child("estimate", "estimate" + jit, cwd=folder)
    assert opened.out.splitlines()[0] == said["printed"].splitlines()[0]


def test_a_step_that_does_not_fit_has_a_need_and_remedies(folder: Path) -> None:
    options = (*STEP, "--no-jit", "--limit", "20MiB", "--what-if", "half-batch")
    said = run(folder, "estimate", "small", *options, code=3)
    ran = run(folder, "trace", "trace--no-jit", *STEP, "--no-jit")
    need, verdict = said["verdict"]["need_bytes"], ran["verdict"]
    least = verdict["need_bytes"] - verdict["need"]["beside_pool"]["bytes"]
    assert said["printed"].startswith(
        "DOES NOT FIT the given limit on Tesla T4: needs "
    )
    assert need == pytest.approx(least, rel=0.1)
    assert [remedy["id"] for remedy in said["remedies"]] == ["half-batch"]


def test_a_step_that_cannot_run_is_estimated_from_its_graph(folder: Path) -> None:
    said = run(folder, "estimate", "refused", "steps.py:refused", "--gpu", "t4")
    assert said["kind"] == "estimate"
    assert any("without a run on a simulated card" in note for note in said["notes"])


def test_a_failure_of_the_targets_own_code_is_reported_at_once(folder: Path) -> None:
    ended = analyze_in_child("estimate", "steps.py:broken", "--gpu", "t4", cwd=folder)
    assert ended.code == 2
    assert "has no attribute 'Missing'" in ended.err
    assert (folder / "builds.txt").read_text() == "built\n"


def test_several_cards(folder: Path) -> None:
    said = run(
        folder, "estimate", "two", "steps.py:network", "--gpu", "2xt4", "--no-jit"
    )
    assert said["simulated_card"]["cards"] == ["t4", "t4"]
