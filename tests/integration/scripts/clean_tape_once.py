import tensorflow as tf

w = tf.Variable(tf.random.normal([64, 32], stddev=0.1))
v = tf.Variable(tf.random.normal([32, 1], stddev=0.1))
x_all = tf.random.normal([256, 64])
tape = tf.GradientTape()
for i in range(40):
    with tape:
        loss = tf.reduce_mean(tf.square(tf.tanh(x_all @ w) @ v - 1.0))
    gw, gv = tape.gradient(loss, [w, v])
    w.assign_sub(0.1 * gw)
    v.assign_sub(0.1 * gv)
    if i % 10 == 0:
        print(i, float(loss))
