"""Targets of Keras 2 (``tf_keras``), which need it installed."""

# ruff: noqa: TID253

import tensorflow as tf
import tf_keras

LAYERS = tf_keras.layers


def network():
    return tf_keras.Sequential(
        [
            LAYERS.Input((16, 16, 3), name="image"),
            LAYERS.Conv2D(8, 3),
            LAYERS.BatchNormalization(),
            LAYERS.GlobalAveragePooling2D(),
            LAYERS.Dense(256, activation="relu"),
            LAYERS.Dense(256),
            LAYERS.Dense(4, activation="softmax"),
        ]
    )


def compiled():
    made = network()
    made.compile(
        tf_keras.optimizers.Adam(),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return made


def legacy():
    made = network()
    made.compile(tf_keras.optimizers.legacy.Adam(), "sparse_categorical_crossentropy")
    return made


def mixed():
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return compiled()
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")


def moving_average():
    trained, average = network(), network()
    average.set_weights(trained.get_weights())
    trained.compile("sgd", "sparse_categorical_crossentropy")
    return trained


def legacy_step():
    trained, optimizer = network(), tf_keras.optimizers.legacy.Adam()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf_keras.losses.sparse_categorical_crossentropy(y, trained(x))
            )
        variables = trained.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        return loss

    return step, (tf.zeros((8, 16, 16, 3)), tf.zeros((8,), tf.int32))


class Unbuilt(tf_keras.Model):
    def __init__(self):
        super().__init__(name="unbuilt")
        self.inner, self.outer = LAYERS.Dense(16), LAYERS.Dense(2)

    def call(self, x, training=False):
        return self.outer(self.inner(x))


def small_application():
    return tf_keras.applications.MobileNetV2(
        weights=None, input_shape=(32, 32, 3), alpha=0.35
    )
