"""A script that needs true values on a card, and ends where it reads one that depends on weights."""

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

counter = tf.Variable(0, dtype=tf.int64)
count = tf.function(lambda: counter.assign_add(1))
for number in range(1, 4):
    count()
    counter.assign_add(1)
    assert counter % 4 == 2 * number % 4

sums = tf.function(lambda rows: tf.reduce_sum(rows, 1))
assert sums(tf.ragged.constant([[1.0, 2.0], [], [3.0]])).shape == 3
pairs = tf.sparse.from_dense([[1, 0], [0, 2]])
assert tf.sparse.to_dense(pairs).shape == (2, 2)
weight = tf.Variable(5.0)
assert np.array_equal(tf.range(0.0, 2.0, 0.5), [0, 0.5, 1, 1.5])
with tf.GradientTape() as tape:
    scale = tf.constant(2.0)
    tape.watch(scale)
    area = scale * scale
assert tape.gradient(area, scale) is not None
assert (weight * 3.0).numpy() == 15.0
