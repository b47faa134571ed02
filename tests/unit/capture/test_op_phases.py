"""The phase of each op of a function, by the calls that make it."""

from dataclasses import replace

import keras  # noqa: TID253
import pytest
import tensorflow as tf  # noqa: TID253

from analyzer.capture.graph.op_phases import RanGraph
from analyzer.capture.run.instrumentation import observe_step

pytestmark = pytest.mark.tf


def test_each_op_has_the_phase_of_the_call_that_makes_it():
    # GIVEN a step with a custom gradient in a loop over a data set, an own momentum, and a teacher
    weight, other, momentum = (tf.Variable(tf.ones([2, 2])) for _ in range(3))
    optimizer = keras.optimizers.SGD()
    optimizer.build([other])

    @tf.function
    def run(data):
        for rows in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.silu(rows @ weight, beta=2.0) @ other)

            first, second = tape.gradient(loss, [weight, other])
            decayed = tf.multiply(momentum, 0.9, name="decayed")
            momentum.assign(tf.add(decayed, first, name="new"))
            optimizer.apply([second], [other])
            tf.print(tf.exp(rows, name="teacher"))

    with observe_step() as observed:
        function = run.get_concrete_function(
            tf.data.Dataset.from_tensor_slices(tf.ones([4, 3, 2]))
        )

    # WHEN the ops of the loop are read
    loop = next(RanGraph(function.graph).list_loops())
    ops, gradients = observed.find_phases().mark(loop.graph, loop.read_ops())
    types = {(op.type, op.phase) for op in ops}
    phases = {op.name: op.phase for op in ops}

    # THEN a second sigmoid is of the custom gradient, and the values are of the phase that reads them
    assert {("Sigmoid", "forward"), ("Sigmoid", "backward")} <= types
    assert {phases["decayed"], phases["new"]} == {"update"}
    assert ("AssignSubVariableOp", "update") in types
    assert phases["teacher"] == "forward"
    assert len(gradients) == 2
    # AND the parts into which Grappler splits a sum, and its layout copies, have the phase of the op
    for end in ("/tmp_var_accum_0", "-2-TransposeNHWCToNCHW-LayoutOptimizer"):
        parts = [replace(op, name=f"{op.name}{end}") for op in ops]
        marked = observed.find_phases().mark(loop.graph, parts)[0]
        assert [op.phase for op in marked] == [op.phase for op in ops]
    # AND the parameters are the sources of the gradients
    assert observed.trained == {id(weight), id(other)}
