"""A callback of the user fills the pool in a step of `fit` long after the traced ones."""

import os
import sys

os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = "280"
import keras
import tensorflow as tf

import analyzer

model = keras.Sequential(
    [keras.layers.Input((64,)), keras.layers.Dense(256, "relu", name="wide"), keras.layers.Dense(8)]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
kept = []


class Keep(keras.callbacks.Callback):
    """Keeps a tensor of each step."""

    def on_train_batch_end(self, batch, logs=None):
        """Keep one."""
        kept.append(tf.random.normal([256, 256]))


def fit(*callbacks):
    """Train until memory runs out."""
    one = tf.data.Dataset.from_tensors((tf.zeros([2048, 64]), tf.zeros([2048], tf.int32)))
    model.fit(one.repeat(1500), verbose=0, callbacks=[Keep(), *callbacks])


if sys.argv[1] == "callback":
    fit(analyzer.MemoryCallback(on_oom="out"))
else:
    with analyzer.watch(on_oom="out"):
        fit()
