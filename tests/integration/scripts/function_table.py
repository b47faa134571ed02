import tensorflow as tf

w = tf.Variable(tf.random.normal((64, 64)))
cache = {}


def make(i):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, w) * float(i))
        w.assign_sub(1e-3 * tape.gradient(loss, w))
        return loss

    return step


for i in range(40):
    cache[i] = make(i)
    cache[i](tf.ones((32, 64)))
