import tensorflow as tf

W = tf.Variable(tf.random.normal([64, 64]))
failures = []


def check(x):
    big = tf.exp(tf.matmul(x, W))
    raise ValueError("values too large", big.shape)


def train_once(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, W)))
    W.assign_sub(0.001 * tape.gradient(loss, W))


for i in range(40):
    batch = tf.random.normal([500, 64])
    train_once(batch)
    try:
        check(batch)
    except ValueError as e:
        failures.append(e)
