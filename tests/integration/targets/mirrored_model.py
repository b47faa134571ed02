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
