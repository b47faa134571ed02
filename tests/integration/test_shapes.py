"""The shapes of a graph that ran, which the graph itself has lost."""

import pytest

tf = pytest.importorskip("tensorflow")

from analyzer.capture.shapes import executed_outputs  # noqa: E402
from analyzer.capture.static import instantiate  # noqa: E402

pytestmark = pytest.mark.tf


def test_the_body_of_a_loop_has_its_shapes() -> None:
    # GIVEN a loop, whose body TensorFlow writes into the graph under names of its own
    @tf.function(autograph=False)
    def step(x):
        body = lambda i, h: (i + 1, tf.tanh(tf.matmul(h, h)))  # noqa: E731
        return tf.while_loop(lambda i, h: i < 3, body, (0, x))[1]

    function = step.get_concrete_function(tf.TensorSpec((8, 8)))
    partitions, _ = instantiate(function, list(function.inputs), [])
    # WHEN the shapes of the executed graph are asked for
    outputs = executed_outputs(function, partitions)
    # THEN the product in the body has its own
    products = [
        outputs[node.name][0].shape
        for graph in partitions
        for node in graph.node
        if "MatMul" in node.op
    ]
    assert products == [(8, 8)]
