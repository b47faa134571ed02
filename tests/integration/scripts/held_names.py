import tensorflow as tf

weight = tf.Variable(tf.ones((2048, 2048)) / 2048)


for i in range(40):
    with tf.GradientTape() as tape:
        hidden = tf.nn.relu(tf.random.normal((256, 2048)) @ weight)
        loss = tf.reduce_mean(hidden**2)
    gradient = tape.gradient(loss, weight)
    weight.assign_sub(0.1 * gradient)
