"""The shapes of a graph that ran, which the graph itself has lost."""

import pytest

tf = pytest.importorskip("tensorflow")

from analyzer.capture.shapes import executed_outputs  # noqa: E402
from analyzer.capture.static import instantiate, static_step  # noqa: E402

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


def test_the_shape_of_a_sparse_argument_is_known() -> None:
    # GIVEN a product with a sparse tensor, whose shape and values are arguments of their own
    step = tf.function(lambda x: tf.sparse.sparse_dense_matmul(x, tf.ones((6, 3))))
    sparse = tf.sparse.from_dense(tf.eye(4, 6))
    function = step.get_concrete_function(sparse)
    # WHEN the step is noted with the tensor that it would be called with
    parts = tf.nest.flatten(sparse, expand_composites=True)
    ops = {op.type: op for op in static_step(function, parts).ops}
    # THEN the product's shape follows from that tensor
    assert ops["SparseTensorDenseMatMul"].outputs[0].shape == (4, 3)


def test_a_look_up_keeps_the_shape_of_its_keys() -> None:
    # GIVEN a look-up of strings, as StringLookup makes it
    entries = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1, 2], tf.int64))
    table = tf.lookup.StaticHashTable(entries, 0)
    step = tf.function(lambda keys: table.lookup(keys) + 1)
    # WHEN the step is noted
    found = static_step(step.get_concrete_function(tf.TensorSpec((5, 2), tf.string)))
    # THEN shapes are known from there on
    shapes = {op.type: op.outputs[0].shape for op in found.ops if op.outputs}
    assert shapes["LookupTableFindV2"] == shapes["AddV2"] == (5, 2)


def test_a_number_between_equal_bounds_is_known() -> None:
    # GIVEN a count of values into a given number of bins, as CategoryEncoding makes it
    step = tf.function(lambda x: tf.math.bincount(x, minlength=7, maxlength=7, axis=-1))
    # WHEN the step is noted
    found = static_step(step.get_concrete_function(tf.TensorSpec((3, 5), tf.int32)))
    # THEN the number of bins is known, which TensorFlow works out from the largest value
    counts = [op.outputs[0].shape for op in found.ops if op.type == "DenseBincount"]
    assert counts == [(3, 7)]
