import keras
import numpy as np


def batches():
    for length in range(200, 240):
        yield np.ones((32, length, 16), "float32"), np.zeros((32, 1), "float32")


layers = keras.layers
model = keras.Sequential([keras.Input((None, 16)), layers.GlobalAveragePooling1D()])
model.compile("sgd", lambda y, mean: (mean - y) ** 2)
model.fit(batches(), verbose=0)
