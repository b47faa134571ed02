"""Steps in which values decide sizes, trips and branches."""

import numpy as np
import tensorflow as tf  # noqa: TID253

ROWS, WIDTH = 4096, 64


def draw(*shape):
    return tf.random.stateless_uniform(shape, (1, 2))


def decided():
    """Return a step in which values of the inputs and a counter decide."""
    seen = tf.Variable(0, dtype=tf.int64, trainable=False)
    tf.Variable(tf.zeros((16 * ROWS, WIDTH)))  # which nobody keeps
    read_early = tf.Variable(0.0)
    read_early.assign(4.0)
    read_early.assign_add(5.0)
    times = int(tf.reduce_sum(read_early))

    def choose(x):
        return x[x.mean(1) > 0.5]

    @tf.function
    def halve(x):
        return tf.boolean_mask(x, tf.reduce_mean(x, 1) > 0.5)

    @tf.function
    def step(x):
        tf.repeat(x, 2)  # of a size that is known before
        chosen = tf.numpy_function(choose, [x], tf.float32)
        kept = halve(x)
        seen.assign_add(1)
        if seen % 3 == 0:
            kept = tf.tile(kept, (times, 1))
        tf.debugging.assert_greater(tf.reduce_max(x), 0.0)
        # The loop comes last, so that chance does not decide the step's peak.
        with tf.control_dependencies([chosen, kept]):
            x = tf.identity(x)
        total, trips = tf.constant(0.0), 0
        rows = tf.TensorArray(
            tf.float32, 0, dynamic_size=True, element_shape=(ROWS, WIDTH)
        )
        while total < 3.0 and tf.reduce_max(x) < 9.0:
            x = x * 1.1
            total += tf.reduce_mean(x)
            rows = rows.write(trips, x)
            trips += 1
        return chosen, kept, rows.stack()

    return step, (draw(ROWS, WIDTH),)


def undecided():
    """Return a step in which a branch over weights decides how many rows and groups count."""
    weights = tf.Variable(draw(WIDTH, WIDTH))

    @tf.function
    def step(x):
        score = tf.cond(tf.reduce_sum(x) > 0.0, lambda: x @ weights, lambda: x)
        rows = tf.where(tf.tile(tf.reduce_mean(score, 1) > 0.0, (16,)))
        groups, _ = tf.unique(tf.argmax(score, 1))
        largest, rest = tf.dynamic_partition(x, tf.argmin(score, 1, tf.int32) % 2, 2)
        counts = tf.size(groups), tf.shape(largest)[0], tf.shape(rest)[0]
        tf.zeros([tf.reduce_sum(tf.cast(score > 1.0, tf.int32))])
        return tf.reduce_sum(tf.gather(tf.tile(x, (16, 1)), rows[:, 0])), *counts

    return step, (draw(ROWS, WIDTH),)


def undecided_eagerly():
    """Return the same step, which runs op by op from Python, with a branch in Python."""
    step, inputs = undecided()

    def run(x):
        result = step.python_function(x)
        if tf.reduce_any(x > 2.0):
            tf.tile(x, (64, 1))
        return result

    return run, inputs


def reuse_memory():
    """Return an eager step whose segments lie where known values were.

    The gradient of its tile reshapes to a shape that TensorFlow transposes on the card. Python reads the
    input, which is known, and a number that is not.
    """

    def step(x):
        assert np.asarray(x).all()
        with tf.device("/GPU:0"):
            old = [tf.identity(tf.constant(np.full(512, -5))) for _ in range(64)]
        del old
        with tf.GradientTape() as tape:
            tape.watch(x)
            wide = tf.tile(x, (1, 2))
        slope = tape.gradient(wide, x)
        float(tf.reduce_sum(slope))
        return tf.math.segment_mean(slope, tf.argmax(2 * x, 1, tf.int32))

    return step, (draw(ROWS, WIDTH),)


if __name__ == "__main__":
    call, given = undecided()
    for _ in range(10):
        call(*given)
