"""One training step run op by op from Python, as a graph, and compiled by XLA."""

import sys

import keras
import tensorflow as tf

BATCH, SIDE, STEPS = 16, 32, 12


def make_step(**how):
    """Return a step and its arguments; ``how`` goes to ``tf.function``, None of it runs eagerly."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    images = tf.random.normal((BATCH, SIDE, SIDE, 3))
    labels = tf.zeros((BATCH,), tf.int32)
    return (tf.function(step, **how) if how else step), (images, labels)


def eager():
    return make_step()


def graph():
    return make_step(autograph=True)


def xla():
    return make_step(jit_compile=True)


if __name__ == "__main__":
    makers = {maker.__name__: maker for maker in (eager, graph, xla)}
    for name in sys.argv[1:] or makers:
        step, args = makers[name]()
        losses = [float(step(*args)) for _ in range(STEPS)]
        print(f"{name:>6}: loss {losses[0]:.4f} to {losses[-1]:.4f}")
