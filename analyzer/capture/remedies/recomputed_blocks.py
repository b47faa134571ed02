"""Blocks of a Keras model whose activations are computed again in the backward pass.

``keras.RematScope`` recomputes inside one layer, and TensorFlow refuses it for layers that are called
with ``training``; what saves memory is to keep nothing between the ends of a run of layers. A user is
given what stands between the two marks below, to paste.

``tf.recompute_grad`` returns the gradients of a block together (``IdentityN``), so that no earlier block
is computed again before this one is done with. But Grappler passes that op by
(``dependency_optimizer.cc``), and then gradients of weights wait, and hold what was computed again for
them, while other blocks are computed. So the gradient that goes on waits for them here.
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
        if tf.executing_eagerly():
            return tf.recompute_grad(lambda y: self.block(y, training=training))(x)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def recomputed_in_turn(y: Any) -> Any:
            def gradient(of_made: Any, variables: Any = ()) -> Any:
                # Not before the gradient comes in: XLA follows data alone, so a zero is made of it.
                some = tf.cast(tf.reduce_max(tf.reshape(of_made, [-1])[:1]), tf.bool)
                zero = tf.where(tf.equal(some, some), 0.0, float("nan"))
                with tf.GradientTape() as tape:
                    again = y + tf.cast(zero, y.dtype)
                    if again.dtype.is_floating:
                        tape.watch(again)
                    made = self.block(again, training=training)
                of_y, *of_weights = tape.gradient(made, [again, *variables], of_made)
                if of_y is not None:  # and no earlier block before this one's weights have theirs
                    with tf.control_dependencies([one for one in of_weights if one is not None]):
                        of_y = tf.identity(of_y)
                return (of_y, of_weights) if variables else of_y

            return self.block(y, training=training), gradient

        return recomputed_in_turn(x)

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
