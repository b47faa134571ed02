"""Blocks of a Keras model whose activations are computed again in the backward pass.

``keras.RematScope`` recomputes inside one layer, and TensorFlow refuses it for layers that are called
with ``training``; what saves memory is to keep nothing between the ends of a run of layers. A user is
given what stands between the two marks below, to paste.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

# --- what is pasted ---


class Recomputed(keras.layers.Layer):  # type: ignore[misc]
    """Keeps a block's input alone, and computes the block again for its gradient."""

    def __init__(self, block: keras.Model, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.block = block

    def call(self, x: Any, training: Any = None) -> Any:
        """Return what the block returns."""
        return tf.recompute_grad(lambda y: self.block(y, training=training))(x)

    def compute_output_spec(self, x: Any, training: Any = None) -> Any:
        """Return the block's output without running it."""
        return self.block.compute_output_spec(x)


def recomputed(model: keras.Model, blocks: list[list[str]]) -> keras.Model:
    """Return a model of the same layers that recomputes each block: a run of layers by name."""
    start = model.inputs[0] if len(model.inputs) == 1 else model.inputs
    x = start
    for names in blocks:
        first, last = model.get_layer(names[0]), model.get_layer(names[-1])
        if first.input is not start:
            x = keras.Model(start, first.input)(x)
        block = keras.Model(first.input, last.output)
        x = Recomputed(block, name=f"recomputed_{names[0]}")(x)
        start = last.output
    if [start] != model.outputs:
        x = keras.Model(start, model.outputs)(x)
    return keras.Model(model.inputs, x, name=model.name)


# --- up to here ---
