"""The shapes of a graph that ran, which the graph itself has lost."""

import pytest

tf = pytest.importorskip("tensorflow")

from analyzer.capture.graph.data_sizes import (  # noqa: E402
    infer_executed_outputs,
)
from analyzer.capture.graph.estimate_capture import instantiate, read_step  # noqa: E402


def test_loop_body_has_shapes() -> None:
    # GIVEN a loop, whose body TensorFlow writes into the graph under names of its own
    @tf.function(autograph=False)
    def step(x):
        body = lambda i, h: (i + 1, tf.tanh(tf.matmul(h, h)))  # noqa: E731
        return tf.while_loop(lambda i, h: i < 3, body, (0, x))[1]

    function = step.get_concrete_function(tf.TensorSpec((8, 8)))
    partitions = instantiate(function)
    # WHEN the shapes of the executed graph are asked for
    outputs = infer_executed_outputs(function.graph, partitions)
    # THEN the product in the body has its own
    products = [
        outputs[node.name][0].shape
        for graph in partitions
        for node in graph.node
        if "MatMul" in node.op
    ]
    assert products == [(8, 8)]
    # and an eager op that ran beside the step, with a flag, does not have the step's
    flag = tf.function(tf.identity).get_concrete_function(tf.TensorSpec(None, tf.bool))
    beside = infer_executed_outputs(function.graph, instantiate(flag))
    assert "'bool', shape=(8, 8)" not in str(beside)


def test_sparse_argument_has_a_shape() -> None:
    # GIVEN a product with a sparse tensor, whose shape and values are arguments of their own
    step = tf.function(lambda x: tf.sparse.sparse_dense_matmul(x, tf.ones((6, 3))))
    sparse = tf.sparse.from_dense(tf.eye(4, 6))
    function = step.get_concrete_function(sparse)
    # WHEN the step is noted with the tensor that it would be called with
    parts = tf.nest.flatten(sparse, expand_composites=True)
    ops = {
        op.type: op for op in read_step(function, instantiate(function), parts, {})[0]
    }
    # THEN the product's shape follows from that tensor
    assert ops["SparseTensorDenseMatMul"].outputs[0].shape == (4, 3)


def _noted(step, *given, told=None):
    """Return the noted step of a function called with these tensors, composite ones taken apart."""
    function = tf.function(step).get_concrete_function(*given)
    flat = tf.nest.flatten(given, expand_composites=True)
    return read_step(function, instantiate(function), flat, told or {})


def _shape(found, kind):
    return next(op.outputs[0].shape for op in found if op.type == kind)


def test_normalisation_with_an_activation_has_a_workspace() -> None:
    # GIVEN a normalisation in training whose activation TensorFlow fuses
    scale = tf.Variable(tf.ones(16))

    def step(x):
        result = tf.compat.v1.nn.fused_batch_norm(x, scale, scale, is_training=True)[0]
        return tf.reduce_sum(tf.nn.relu(result))

    found, _ = _noted(step, tf.ones((8, 14, 128, 16)))
    # THEN its workspace has the size of a run: 114,688 bytes for 229,376 elements
    workspaces = [
        op.outputs[5].size_bytes
        for op in found
        if op.type == "_MklNativeFusedBatchNormEx"
    ]
    if not workspaces:
        pytest.skip("TensorFlow does not fuse it here")
    assert workspaces == [114_688]


def test_an_upper_bound_that_another_op_contradicts_is_not_used() -> None:
    # GIVEN rows that weights select, and an op that says how many they are
    weights = tf.Variable(tf.ones((4,)))

    def step(x):
        rows = tf.boolean_mask(x, tf.linalg.matvec(x, weights) > 0)
        return tf.tanh(rows + tf.ones((5, 4)))

    # WHEN the shapes are asked for, THEN that op decides, and not the number of all rows
    assert _shape(_noted(step, tf.ones((6, 4)))[0], "Tanh") == (5, 4)


def test_an_iterator_states_the_size_of_its_whole_batches() -> None:
    # GIVEN a step that reads batches, the last of which is smaller, from an iterator
    batches = iter(tf.data.Dataset.from_tensor_slices(tf.zeros((10, 4))).batch(3))
    # THEN the batch is a whole one, although the type of the iterator leaves it open
    assert batches.element_spec.shape.as_list() == [None, 4]
    assert _shape(
        _noted(lambda batches: tf.tanh(next(batches)), batches)[0], "Tanh"
    ) == (
        3,
        4,
    )


def test_size_that_depends_on_weights_is_the_upper_bound_or_assumed() -> None:
    # GIVEN a mask that the weights decide, so that no input tells how much it leaves
    weights = tf.Variable(tf.random.normal((8, 3)))

    def step(x):
        product = tf.matmul(x, weights)
        return tf.tanh(tf.boolean_mask(product, product[:, 0] > 0.0))

    found, sizes = _noted(step, tf.ones((5, 8)))
    # THEN all may be left
    assert _shape(found, "Tanh") == (5, 3)
    (size,) = sizes
    assert (size.size, size.basis) == (5, "most")
    # AND what the user tells goes before that
    told, told_sizes = _noted(step, tf.ones((5, 8)), told={size.op: 2})
    assert _shape(told, "Tanh") == (2, 3)
    assert [size.basis for size in told_sizes] == ["told"]


def test_shape_set_in_the_traced_function_is_used() -> None:
    # GIVEN a Python function, of whose result the user says the shape
    def step(x):
        changed = tf.numpy_function(lambda a: a, [x], tf.float32)
        changed.set_shape((7, 2))
        return tf.tanh(changed)

    # THEN what follows has it, though no node of the graph does
    found, _ = _noted(step, tf.ones((7, 2)))
    assert _shape(found, "PyFunc") == _shape(found, "Tanh") == (7, 2)
