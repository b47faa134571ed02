"""Blocks of a Keras model that recompute their activations in the backward pass.

``keras.RematScope`` recomputes inside one layer, and TensorFlow rejects it for layers that are called
with ``training``. The code between the two marks is given to users to paste. ``tf.recompute_grad``
returns the gradients of a block together (``IdentityN``), but Grappler removes that op
(``dependency_optimizer.cc``): gradients of weights then keep their recomputed activations while other
blocks are recomputed. So here the gradient that goes on to earlier blocks waits for them.
"""

from typing import Any

import keras
import tensorflow as tf

# --- begin of the pasted code ---


class Recomputed(keras.layers.Layer):  # type: ignore[misc]
    """Keeps only the input of a block, and recomputes the block for its gradient."""

    def __init__(self, block: keras.Model, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.block = block

    def call(self, x: Any, training: Any = None) -> Any:
        """Return the output of the block."""
        if tf.executing_eagerly():
            return tf.recompute_grad(lambda y: self.block(y, training=training))(x)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def run_block(y: Any) -> Any:
            def gradient(of_output: Any, variables: Any = ()) -> Any:
                # Recompute only once the gradient has arrived. XLA follows data only, so a zero is made
                # of the gradient and added.
                some = tf.cast(tf.reduce_max(tf.reshape(of_output, [-1])[:1]), tf.bool)
                zero = tf.where(tf.equal(some, some), 0.0, float("nan"))
                with tf.GradientTape() as tape:
                    again = y + tf.cast(zero, y.dtype)
                    if again.dtype.is_floating:
                        tape.watch(again)

                    output = self.block(again, training=training)

                of_y, *of_weights = tape.gradient(
                    output, [again, *variables], of_output
                )
                if (
                    of_y is not None
                ):  # earlier blocks wait for the gradients of the weights
                    with tf.control_dependencies(
                        [one for one in of_weights if one is not None]
                    ):
                        of_y = tf.identity(of_y)

                return (of_y, of_weights) if variables else of_y

            return self.block(y, training=training), gradient

        return run_block(x)

    def compute_output_spec(self, x: Any, training: Any = None) -> Any:
        """Return the spec of the block's output without running it."""
        return self.block.compute_output_spec(x)


def recompute_blocks(model: keras.Model, blocks: list[list[str]]) -> keras.Model:
    """Return a model of the same layers that recomputes each block: a run of layers by name."""
    ends = {}
    if isinstance(model, keras.Sequential):  # add() connects the layers anew each time
        x = model.inputs[0]
        for layer in model.layers:
            before, x = x, layer(x)
            ends[layer.name] = before, x

        model = keras.Model(model.inputs[0], x, name=model.name)

    def ends_of(name: str) -> Any:
        layer = model.get_layer(name)
        return ends.get(name) or (layer.input, layer.output)

    start = model.inputs[0] if len(model.inputs) == 1 else model.inputs
    x = start
    for names in blocks:
        first, last = ends_of(names[0])[0], ends_of(names[-1])[1]
        if first is not start:
            x = keras.Model(start, first)(x)

        x = Recomputed(keras.Model(first, last), name=f"recomputed_{names[0]}")(x)
        start = last

    if [start] != model.outputs:
        x = keras.Model(start, model.outputs)(x)

    return keras.Model(model.input, x, name=model.name)


# --- up to here ---
