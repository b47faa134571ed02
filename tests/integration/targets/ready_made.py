"""A model and a step that exist as soon as the file is imported."""

# ruff: noqa: TID253

import keras
import tensorflow as tf
from steps import compiled, network

model: keras.Model = network()
weight = tf.Variable(tf.ones((16, 32)), name="weight")


@tf.function(input_signature=[tf.TensorSpec((None, 16), tf.float32, name="x")])
def signed(x):
    return tf.reduce_sum(tf.nn.relu(x @ weight))


def looked_up():
    table = tf.Variable(tf.random.normal((3000, 16)))
    tf.nn.embedding_lookup(table, [1, 2])  # from now on, each read copies the table

    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, rows) ** 2)
        change = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(0.1 * change.values, change.indices))
        return loss

    return step, (tf.range(8),)


def saved():
    """Return a compiled model that has been saved in each form."""
    made = compiled()
    made.save("saved.keras")
    made.save("saved.h5")
    made.export("saved_model", verbose=False)
    return made
