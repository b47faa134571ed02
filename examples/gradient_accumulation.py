"""A batch at once, and the same batch as four parts whose gradients are added up."""

import sys

import keras
import tensorflow as tf

STEPS = 12
BATCH, LARGE_BATCH, PARTS, WIDTH = 256, 4096, 4, 512


def _model():
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((WIDTH,))])
    for _ in range(6):
        made.add(keras.layers.Dense(WIDTH, activation="relu"))
    made.add(keras.layers.Dense(1))
    optimizer = keras.optimizers.Adam()
    optimizer.build(made.trainable_variables)
    return made, optimizer


def _data(batch):
    return tf.random.stateless_normal((batch, WIDTH), (1, 2)), tf.zeros((batch, 1))


def whole_batch(batch=BATCH):
    model, optimizer = _model()

    @tf.function
    def step(features, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features, training=True) - labels) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return step, _data(batch)


def accumulated(batch=BATCH):
    model, optimizer = _model()
    sums = [
        tf.Variable(tf.zeros(v.shape), trainable=False)
        for v in model.trainable_variables
    ]

    @tf.function
    def step(features, labels):
        total = tf.constant(0.0)
        for x, y in zip(tf.split(features, PARTS), tf.split(labels, PARTS)):
            # Each part begins when the one before has been added up, or all run side by side.
            with tf.control_dependencies([total]), tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2) / PARTS
            gradients = tape.gradient(loss, model.trainable_variables)
            added = [s.assign_add(g) for s, g in zip(sums, gradients)]
            with tf.control_dependencies(added):
                total += loss
        optimizer.apply_gradients(
            zip([s.read_value() for s in sums], model.trainable_variables)
        )
        for s in sums:
            s.assign(tf.zeros_like(s))
        return total

    return step, _data(batch)


def whole_large_batch():
    return whole_batch(LARGE_BATCH)


def accumulated_large_batch():
    return accumulated(LARGE_BATCH)


if __name__ == "__main__":
    makers = (whole_batch, accumulated, whole_large_batch, accumulated_large_batch)
    named = {maker.__name__: maker for maker in makers}
    for name in sys.argv[1:] or ("whole_batch", "accumulated"):
        function, args = named[name]()
        losses = [float(function(*args)) for _ in range(STEPS)]
        print(f"{name}: loss {losses[0]:.5f} to {losses[-1]:.5f}")
