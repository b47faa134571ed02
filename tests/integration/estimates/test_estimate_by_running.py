"""Estimates for cards that run the step on simulated ones."""

from typing import Any

import pytest
from simulated_cards import NEEDS_CARDS
from workbench import Workbench

from analyzer.cards.catalogue import find_gpu, memory_limit

pytestmark = NEEDS_CARDS

SOURCE = """
import keras
import tensorflow as tf

def network():
    hidden = keras.layers.Dense(3072, activation="relu")
    model = keras.Sequential([keras.Input((1024,)), hidden, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model

def broken():
    with open("builds.txt", "a") as file:
        file.write("built\\n")
    return keras.layers.Missing()

def from_python(is_graph=False):
    kernel = tf.Variable(tf.ones([256, 256]) / 256)

    def step(x):
        with tf.GradientTape() as tape:
            for _ in range(4):
                x = tf.square(tf.nn.relu(x @ kernel) * 0.5 + 1.0)
            loss = tf.reduce_mean(x)
        kernel.assign_sub(tape.gradient(loss, kernel))
    return tf.function(step) if is_graph else step, (tf.ones([4096, 256]),)

def in_graph():
    return from_python(is_graph=True)

def refused():
    @tf.function
    def step(x):
        return tf.numpy_function(lambda row: row.missing, [x], tf.float32)
    return step, (tf.ones([64, 64]),)
"""


@pytest.fixture(scope="module")
def bench(workbench: Workbench) -> Workbench:
    (workbench.folder / "steps_on_cards.py").write_text(SOURCE)
    return workbench


STEP = ("steps_on_cards.py:network", "--gpu", "t4", "--inter-op-threads", "1")


@pytest.fixture(scope="module")
def op_by_op(bench: Workbench) -> dict[str, Any]:
    document: dict[str, Any] = bench.run("trace", *STEP, "--no-jit").document
    return document


@pytest.mark.parametrize("jit", ["--jit", "--no-jit"])
def test_an_estimate_is_the_run_on_the_simulated_card(
    bench: Workbench, op_by_op: dict[str, Any], jit: str
) -> None:
    estimate = bench.run("estimate", *STEP, jit)
    said, ran = estimate.document, op_by_op
    if jit == "--jit":
        ran = bench.run("trace", *STEP, jit).document
    assert said["kind"] == "simulated_card"
    assert said["verdict"]["card"] == find_gpu("t4").name
    assert said["verdict"]["limit_bytes"] > memory_limit(find_gpu("t4")).bytes
    requested, bounds = said["peak"]["requested_bytes"], ran["uncertainty"]
    if jit == "--jit":
        assert requested == ran["peak"]["requested_bytes"]
    # Op by op, the order of ops differs between two processes.
    assert bounds["low_bytes"] <= requested <= bounds["high_bytes"]
    assert said["step"]["jit"] is (jit == "--jit")
    opened = bench.analyze("estimate", estimate.folder.name)
    assert opened.out.splitlines()[0] == estimate.ended.out.splitlines()[0]


def test_a_step_that_does_not_fit_has_a_need(
    bench: Workbench, op_by_op: dict[str, Any]
) -> None:
    estimate = bench.run("estimate", *STEP, "--no-jit", "--limit", "20MiB", code=3)
    said = estimate.document
    need, verdict = said["verdict"]["need_bytes"], op_by_op["verdict"]
    least = verdict["need_bytes"] - verdict["need"]["beside_pool"]["bytes"]
    answer = "DOES NOT FIT the given limit on Tesla T4: needs "
    assert estimate.ended.out.startswith(answer)
    assert need == pytest.approx(least, rel=0.1)


def test_a_step_from_python_is_tried_in_a_function(bench: Workbench) -> None:
    options = ("--gpu", "t4", "--inter-op-threads", "1")
    target = "steps_on_cards.py:from_python"
    ran = bench.run("estimate", target, *options, "--what-if", "tf-function")
    said = ran.document
    assert ran.ended.err.startswith(said["verdict"]["headline"])  # before any change
    [found] = [one for one in said["findings"] if one["id"] == "from-python"]
    [remedy] = said["remedies"]
    graph = bench.run("estimate", "steps_on_cards.py:in_graph", *options).document
    less = said["peak"]["requested_bytes"] - graph["peak"]["requested_bytes"]
    assert found["saves_bytes"] == remedy["saves_bytes"]
    assert remedy["saves_bytes"] == pytest.approx(less, rel=0.02)
    assert less > 1 << 20


def test_a_step_that_cannot_run_is_estimated_from_its_graph(bench: Workbench) -> None:
    target = "steps_on_cards.py:refused"
    said = bench.run("estimate", target, "--gpu", "t4").document
    assert said["kind"] == "estimate"
    assert "without a run on a simulated card" in " ".join(said["warnings"])


def test_a_failure_of_the_targets_own_code_is_reported_at_once(
    bench: Workbench,
) -> None:
    ended = bench.analyze("estimate", "steps_on_cards.py:broken", "--gpu", "t4")
    assert ended.code == 2
    assert "has no attribute 'Missing'" in ended.err
    assert (bench.folder / "builds.txt").read_text() == "built\n"
