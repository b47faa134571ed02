"""Gradients are added up by one function, and another one updates the variables."""

import keras
import tensorflow as tf

layers = [keras.layers.Dense(width, activation="relu") for width in (512, 256)]
model = keras.Sequential([keras.Input((128,)), *layers])
optimizer = keras.optimizers.Adam()
sums = [tf.Variable(tf.zeros_like(one), trainable=False) for one in model.weights]


@tf.function
def add(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    for total, one in zip(sums, tape.gradient(loss, model.weights), strict=True):
        total.assign_add(one)
    return loss


@tf.function
def update():
    optimizer.apply_gradients(zip(sums, model.weights, strict=True))
    for total in sums:
        total.assign(tf.zeros_like(total))


rows = tf.data.Dataset.from_tensor_slices(tf.random.normal((1024, 128)))
data = rows.shuffle(500).batch(64).prefetch(2)
tf.profiler.experimental.start("profile")
print(sum(one.numpy().nbytes for one in model.weights))

for epoch in range(3):
    total = 0.0
    for number, x in enumerate(data, 1):
        total += float(add(x))
        if number % 4 == 0:
            update()
    print(epoch, total)

tf.profiler.experimental.stop()
