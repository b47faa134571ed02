"""A callback of the user fills the pool long after the traced steps of `fit`."""

import os
import sys

os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = "280"
import keras
import tensorflow as tf

import analyzer

model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(256, "relu", name="wide"),
        keras.layers.Dense(8),
    ]
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
    size = (
        32 if sys.argv[1] == "own" else 2048
    )  # then the callback runs out of memory, else the step
    one = tf.data.Dataset.from_tensors(
        (tf.zeros([size, 64]), tf.zeros([size], tf.int32))
    )
    model.fit(one.repeat(1500), verbose=0, callbacks=[Keep(), *callbacks])


if sys.argv[1] == "watch":
    with analyzer.watch(on_oom="out"):
        fit()
else:
    fit(analyzer.MemoryCallback(on_oom="out"))
