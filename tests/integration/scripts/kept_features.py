import tensorflow as tf

kernel = tf.random.normal([3, 3, 16, 16])
image = tf.Variable(tf.random.normal([1, 128, 128, 16]))
history = []

for i in range(30):
    with tf.GradientTape() as tape:
        first = tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "SAME"))
        last = tf.nn.relu(tf.nn.conv2d(first, kernel, 1, "SAME"))
        loss = tf.reduce_mean(last**2)
    image.assign_sub(tape.gradient(loss, image))
    history.append(last)
