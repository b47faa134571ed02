import tensorflow as tf

w = tf.Variable(tf.random.normal((64, 64)))


@tf.function
def step(x, rate):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.matmul(x, w))
    w.assign_sub(rate * tape.gradient(loss, w))
    return loss


rate = 1e-3
for i in range(40):
    rate *= 0.99
    step(tf.ones((32, 64)), rate)
