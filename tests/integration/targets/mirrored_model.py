"""A Keras model that is made and compiled in the scope of a MirroredStrategy."""

from __future__ import annotations

from typing import Any


def build() -> Any:
    import tensorflow as tf
    from keras import Input, Sequential, layers

    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = Sequential(
            [Input((512,)), layers.Dense(1024, activation="relu"), layers.Dense(256)]
        )
        model.compile("adam", "mse", metrics=["mae"])
    return model


if __name__ == "__main__":
    import numpy as np

    examples = 3 * 64 - 10  # the last batch is short
    build().fit(
        np.zeros((examples, 512), np.float32),
        np.zeros((examples, 256), np.float32),
        batch_size=64,
        epochs=4,
        verbose=0,
    )
