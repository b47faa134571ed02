"""Trains on batches of a generator that are larger than all other tensors of a step."""

import keras
import numpy as np


def batches():
    while True:
        yield np.zeros((16, 200, 200, 3), "float32"), np.zeros((16, 1), "float32")


layers = [keras.Input((200, 200, 3)), keras.layers.AveragePooling2D(20)]
layers += [keras.layers.Flatten(), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile("sgd", "mse", jit_compile=False)
model.fit(batches(), steps_per_epoch=14, verbose=0)
