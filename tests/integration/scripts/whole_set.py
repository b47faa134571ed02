"""Call a model with all data at once, or in batches."""

import sys

import keras
import numpy as np

layers = keras.layers
x = np.zeros((20_000, 512), "float32")
model = keras.Sequential(
    [keras.Input((512,)), layers.Dense(2048, activation="relu"), layers.Dense(10)]
)
if sys.argv[1] == "batches":
    model.predict(x, verbose=0)
else:
    model(x)
