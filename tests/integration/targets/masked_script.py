"""A script with a recurrent layer whose mask is checked, so that values of the input decide."""

import keras  # noqa: TID253
import numpy as np

tokens = np.random.default_rng(0).integers(1, 100, (32, 20))
network = keras.Sequential([keras.layers.Embedding(100, 16, mask_zero=True)])
network.add(keras.layers.GRU(16))
network.add(keras.layers.Dense(1))
network.compile("adam", "mse")
network.fit(tokens, np.ones((32, 1)), batch_size=8, epochs=2, verbose=0)
