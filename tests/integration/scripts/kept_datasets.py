"""A new tf.data pipeline from the whole array on each epoch, iterators kept."""

import numpy as np
import tensorflow as tf

data = np.random.rand(1024, 256).astype("float32")
epochs = []
w = tf.Variable(tf.zeros([256, 1]))


@tf.function
def step(x):
    with tf.GradientTape() as t:
        loss = tf.reduce_mean((x @ w - 1) ** 2)
    w.assign_sub(0.01 * t.gradient(loss, w))


for e in range(12):
    ds = tf.data.Dataset.from_tensor_slices(data).batch(128)
    epochs.append(ds)
    for x in ds:
        step(x)
