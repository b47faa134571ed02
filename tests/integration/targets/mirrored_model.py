"""A Keras model that is made and compiled in the scope of a MirroredStrategy."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers


def build() -> keras.Model:
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((512,)), layers.Dense(1024, activation="relu"), layers.Dense(256)]
        )
        model.compile("adam", "mse", metrics=["mae"])
    return model
