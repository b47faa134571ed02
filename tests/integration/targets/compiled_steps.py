"""A step that XLA compiles."""

import keras  # noqa: TID253


def anew():
    """A model whose step TensorFlow compiles again each time."""
    words = keras.Input((8,), dtype="int32")
    values = keras.layers.Flatten()(keras.layers.Embedding(2000, 32)(words))
    model = keras.Model(words, keras.layers.Dense(4)(values))
    model.compile(keras.optimizers.RMSprop(momentum=0.9), "mse", jit_compile=True)
    return model
