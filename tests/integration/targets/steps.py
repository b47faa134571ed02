"""Small models and steps for the tests of the whole way; imported by the traced process only."""

# ruff: noqa: TID253

import keras
import tensorflow as tf


def network() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((8,), name="features"),
            keras.layers.Dense(64, activation="relu", name="hidden"),
            keras.layers.Dense(4, name="out"),
        ],
        name="network",
    )


def compiled() -> keras.Model:
    made = network()
    made.compile("adam", "mse", jit_compile=False)
    return made


def eager() -> keras.Model:
    made = network()
    made.compile("adam", "mse", run_eagerly=True)
    return made


def make_step():
    trained = network()
    optimizer = keras.optimizers.Adam()
    optimizer.build(trained.trainable_variables)
    sums = [
        tf.Variable(tf.zeros(v.shape), trainable=False, name=f"sum{i}")
        for i, v in enumerate(trained.trainable_variables)
    ]

    @tf.function
    def step(x, y):
        for part in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(
                    (trained(x[part::2], training=True) - y[part::2]) ** 2
                )
            gradients = tape.gradient(loss, trained.trainable_variables)
            for total, gradient in zip(sums, gradients, strict=True):
                total.assign_add(gradient)
        optimizer.apply_gradients(
            zip(
                [total.read_value() for total in sums],
                trained.trainable_variables,
                strict=True,
            )
        )
        for total in sums:
            total.assign(tf.zeros_like(total))
        return loss

    step.model, step.optimizer = trained, optimizer
    return step, (tf.ones((8, 8)), tf.ones((8, 4)))


def failing():
    @tf.function
    def step(x):
        big = tf.nn.relu(x @ tf.ones((64, 64)))
        tf.debugging.assert_less(tf.reduce_sum(big), 0.0, message="the loss is no loss")
        return big

    return step, (tf.ones((8, 64)),)


def large() -> keras.Model:
    made = keras.Sequential(
        [
            keras.Input((32, 32, 16)),
            keras.layers.Conv2D(64, 3),
            keras.layers.Conv2D(64, 3),
        ],
        name="large",
    )
    made.compile("sgd", "mse", jit_compile=False)
    return made
