"""A script whose layers need true values on a card: those of a vocabulary, and a checked mask."""

import keras  # noqa: TID253
import numpy as np
import tensorflow as tf  # noqa: TID253

words = [f"word{number}" for number in range(3000)]
adapted = keras.layers.StringLookup()
adapted.adapt(tf.constant(words))
inverse = keras.layers.StringLookup(vocabulary=adapted.get_vocabulary(), invert=True)
assert inverse(adapted(words[2000:])).numpy()[0] == b"word2000"

tokens = np.random.default_rng(0).integers(1, 100, (32, 20))
network = keras.Sequential([keras.layers.Embedding(100, 16, mask_zero=True)])
network.add(keras.layers.GRU(16))
network.add(keras.layers.Dense(1))
network.compile("adam", "mse")
network.fit(tokens, np.ones((32, 1)), batch_size=8, epochs=2, verbose=0)
assert network.predict(tokens, batch_size=8, verbose=0).shape == (32, 1)
