import tensorflow as tf

weights = tf.Variable(tf.ones((1000,)))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.tile(x * weights, [500, 1]))
    weights.assign_sub(1e-6 * tape.gradient(loss, weights))
    return loss


for _ in range(10):
    step(tf.ones((1000, 1000)))
