"""What is told of traced functions: which inputs are compiled in, which variables written in part."""

import json

import tensorflow as tf  # noqa: TID253

from analyzer.capture.graph.plain_graphs import collect_function_graphs, decode_name
from analyzer.capture.run.step_variables import _find_sparse_variables
from analyzer.capture.xla.compile_time_inputs import FixedInputs

WHOLE = tf.TensorSpec((), tf.int32)
VALUES = tf.TensorSpec((4,), tf.float32)


def looked_at(values):
    return tf.reshape(values, tf.shape(values)[:1])


def computed(rows, values):
    return tf.fill([rows * 2], values[0])


def branch(chosen, rows, values):
    found, _ = tf.cond(
        chosen > 0, lambda: (rows + 1, values), lambda: (rows, tf.square(values))
    )
    return tf.zeros([found])


def loop(count, rows, values):
    # The number of rows goes through the loop unchanged; the other inputs do not matter.
    _, found, _ = tf.while_loop(
        lambda i, r, v: i < count,
        lambda i, r, v: (i + 1, r, v * 2.0),
        (tf.constant(0), rows, values),
    )
    return tf.zeros([found])


@tf.function
def called(rows):
    return tf.range(rows)


def calling(rows, values):
    return called(rows), values


CASES = {
    "a shape is looked at": (looked_at, (VALUES,)),
    "a shape is computed": (computed, (WHOLE, VALUES)),
    "through a branch": (branch, (WHOLE, WHOLE, VALUES)),
    "through a loop": (loop, (WHOLE, WHOLE, VALUES)),
    "in a called function": (calling, (WHOLE, VALUES)),
}

found = {}
for name, (body, specs) in CASES.items():
    function = tf.function(
        body, jit_compile=True, autograph=False
    ).get_concrete_function(*specs)
    found[name] = list(
        FixedInputs(collect_function_graphs(function)).find(decode_name(function.name))
    )


def written_in_part(jit):
    """Count the variables that a step writes in part, in a function of its own."""
    table = tf.Variable(tf.zeros([8, 4]))
    whole = tf.Variable(tf.zeros([8, 4]))

    @tf.function(jit_compile=jit)
    def inner(rows):
        whole.assign_add(tf.ones([8, 4]))
        table.scatter_add(tf.IndexedSlices(tf.ones([2, 4]), rows))

    step = tf.function(lambda rows: inner(rows))
    rows = tf.TensorSpec((2,), tf.int32)
    return len(_find_sparse_variables(step.get_concrete_function(rows)))


def written_in_part_in_a_branch_or_loop():
    """Return the shapes of the variables that a step accesses in part; it uses others as a whole."""
    read, written, whole = (tf.Variable(tf.zeros([rows, 4])) for rows in (3, 5, 8))

    @tf.function
    def step(rows):
        if rows[0] > 0:
            written.scatter_add(tf.IndexedSlices(tf.ones([2, 4]), rows))
            whole.assign_add(tf.ones([8, 4]))
        total = tf.zeros([2, 4])
        for _ in tf.range(rows[1]):
            total += tf.gather(read, rows) + tf.reduce_sum(whole)
        return total

    function = step.get_concrete_function(tf.TensorSpec((2,), tf.int32))
    names = {id(one): one.shape[0] for one in (read, written, whole)}
    return sorted(names[one] for one in _find_sparse_variables(function))


found["written in part"] = [written_in_part(jit) for jit in (False, True)]
found["in a branch or loop"] = written_in_part_in_a_branch_or_loop()
print(json.dumps(found))
