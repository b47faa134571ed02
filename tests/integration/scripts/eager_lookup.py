"""Factors of a matrix, looked up in an eager loop over a shuffled data set."""

import numpy as np
import tensorflow as tf

rows = tf.Variable(tf.random.normal((6000, 64)))
columns = tf.Variable(tf.random.normal((2000, 64)))
optimizer = tf.keras.optimizers.Adam()
data = tf.data.Dataset.from_tensor_slices(
    (np.random.randint(0, 6000, 8192), np.random.randint(0, 2000, 8192))
)

for one, other in data.shuffle(4096).batch(1024):
    with tf.GradientTape() as tape:
        first = tf.nn.embedding_lookup(rows, one)
        second = tf.nn.embedding_lookup(columns, other)
        loss = tf.reduce_mean((tf.reduce_sum(first * second, 1) - 1) ** 2)
    gradients = tape.gradient(loss, [rows, columns])
    optimizer.apply_gradients(zip(gradients, [rows, columns], strict=True))
