import tensorflow as tf

weights = tf.Variable(tf.ones((512, 512)))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.matmul(x, weights) ** 2)
    weights.assign_sub(1e-6 * tape.gradient(loss, weights))
    return loss


for index in range(10):
    step(tf.ones((256 if index < 5 else 500_000, 512)))
