"""A model and a step that exist as soon as the file is imported."""

# ruff: noqa: TID253

import keras
import tensorflow as tf
from steps import network

model: keras.Model = network()
weight = tf.Variable(tf.ones((16, 32)), name="weight")


@tf.function(input_signature=[tf.TensorSpec((None, 16), tf.float32, name="x")])
def signed(x):
    return tf.reduce_sum(tf.nn.relu(x @ weight))
