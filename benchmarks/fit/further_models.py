"""More models that ``analyze fit`` was not made with, each of another kind than those before."""

from __future__ import annotations

import keras  # noqa: TID253
from keras import layers  # noqa: TID253


def dense_blocks() -> keras.Model:
    """Each convolution reads all that came before it."""
    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(24, 3, padding="same")(image)
    for _ in range(2):
        for _ in range(4):
            y = layers.Activation("relu")(layers.BatchNormalization()(x))
            x = layers.Concatenate()([x, layers.Conv2D(12, 3, padding="same")(y)])
        x = layers.AveragePooling2D(2)(layers.Conv2D(24, 1)(x))
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def squeeze_excite() -> keras.Model:
    image = keras.Input((40, 40, 3))
    x = image
    for width in (16, 32, 64):
        x = layers.Conv2D(width, 3, strides=2, padding="same", activation="swish")(x)
        gate = layers.Dense(width // 4, activation="relu")(
            layers.GlobalAveragePooling2D()(x)
        )
        gate = layers.Reshape((1, 1, width))(
            layers.Dense(width, activation="sigmoid")(gate)
        )
        x = layers.Multiply()([x, gate])
    return keras.Model(image, layers.Dense(7)(layers.GlobalMaxPooling2D()(x)))


def mixer() -> keras.Model:
    """Dense layers over places, then over channels."""
    image = keras.Input((32, 32, 3))
    x = layers.Reshape((64, 64))(layers.Conv2D(64, 4, strides=4)(image))
    for _ in range(3):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        y = layers.Dense(64)(layers.Dense(128, activation="gelu")(y))
        x = layers.Add()([x, layers.Permute((2, 1))(y)])
        y = layers.Dense(256, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(64)(y)])
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def encoder() -> keras.Model:
    """A transformer over tokens, without dropout."""
    tokens = keras.Input((40,), dtype="int32")
    x = layers.Embedding(1000, 64)(tokens)
    for _ in range(2):
        x = layers.LayerNormalization()(
            layers.Add()([x, layers.MultiHeadAttention(4, 16)(x, x)])
        )
        y = layers.Dense(64)(layers.Dense(192, activation="relu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    return keras.Model(tokens, layers.Dense(4)(layers.GlobalMaxPooling1D()(x)))


def stacked_lstm() -> keras.Model:
    series = keras.Input((32, 12))
    x = layers.LSTM(48, return_sequences=True)(series)
    return keras.Model(series, layers.Dense(3)(layers.LSTM(32)(x)))


def causal_convolutions() -> keras.Model:
    series = keras.Input((128, 8))
    x = layers.Conv1D(32, 1)(series)
    for rate in (1, 2, 4, 8):
        y = layers.Conv1D(
            32, 3, padding="causal", dilation_rate=rate, activation="tanh"
        )(x)
        x = layers.Add()([x, layers.Conv1D(32, 1)(y)])
    return keras.Model(series, layers.Dense(2)(layers.Flatten()(x)))


def autoencoder() -> keras.Model:
    image = keras.Input((32, 32, 3))
    x = image
    for width in (16, 32):
        x = layers.Conv2D(width, 3, strides=2, padding="same", activation="elu")(x)
    x = layers.Dense(64)(layers.Flatten()(x))
    x = layers.Reshape((8, 8, 32))(layers.Dense(2048, activation="elu")(x))
    for width in (32, 16):
        x = layers.Conv2DTranspose(
            width, 3, strides=2, padding="same", activation="elu"
        )(x)
    return keras.Model(image, layers.Conv2D(3, 3, padding="same")(x))


def wide_and_deep() -> keras.Model:
    """Categories looked up in tables, numbers beside them."""
    names = keras.Input((20,), dtype="int32")
    numbers = keras.Input((30,))
    x = layers.Flatten()(layers.Embedding(5000, 16)(names))
    x = layers.Concatenate()([x, numbers])
    for width in (256, 128):
        x = layers.Dense(width, activation="relu")(x)
    x = layers.Concatenate()([x, layers.Dense(16)(numbers)])
    return keras.Model([names, numbers], layers.Dense(1)(x))


def towers() -> keras.Model:
    """Two inputs through the same layers, compared."""
    tower = keras.Sequential(
        [
            keras.Input((24, 24, 1)),
            layers.Conv2D(20, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(40, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(48),
        ]
    )
    left, right = keras.Input((24, 24, 1)), keras.Input((24, 24, 1))
    apart = layers.Subtract()([tower(left), tower(right)])
    return keras.Model(
        [left, right], layers.Dense(1)(layers.Multiply()([apart, apart]))
    )


def video() -> keras.Model:
    frames = keras.Input((8, 20, 20, 2))
    x = layers.Conv3D(8, 3, padding="same", activation="relu")(frames)
    x = layers.Conv3D(16, 3, padding="same", strides=2, activation="relu")(x)
    return keras.Model(frames, layers.Dense(5)(layers.GlobalAveragePooling3D()(x)))
