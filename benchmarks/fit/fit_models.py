"""Small models of several kinds, to hold ``analyze fit`` and its remedies against real runs.

Figures: benchmarks/results/fit-cost.md.
"""

from __future__ import annotations

import keras  # noqa: TID253
from keras import layers  # noqa: TID253


def convolutional() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )


def perceptron() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((256,)),
            layers.Dense(1024, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(512, activation="relu"),
            layers.Dense(10),
        ]
    )


def decoder() -> keras.Model:
    tokens = keras.Input((64,), dtype="int32")
    x = layers.Embedding(500, 64)(tokens)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 16)(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(64)(layers.Dense(256, activation="gelu")(y))
    return keras.Model(tokens, layers.Dense(500)(x))


def unet() -> keras.Model:
    image = keras.Input((32, 32, 3))
    a = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    b = layers.Conv2D(16, 3, padding="same", activation="relu")(
        layers.MaxPooling2D()(a)
    )
    c = layers.Conv2D(32, 3, padding="same", activation="relu")(
        layers.MaxPooling2D()(b)
    )
    b = layers.Concatenate()([layers.UpSampling2D()(c), b])
    b = layers.Conv2D(16, 3, padding="same", activation="relu")(b)
    a = layers.Concatenate()([layers.UpSampling2D()(b), a])
    return keras.Model(image, layers.Conv2D(2, 3, padding="same")(a))


def recurrent() -> keras.Model:
    return keras.Sequential([keras.Input((20, 16)), layers.LSTM(64), layers.Dense(4)])


def deep() -> keras.Model:
    """Twelve convolutions with batch normalization, one after the other."""
    image = keras.Input((64, 64, 3))
    x = image
    for _ in range(12):
        x = layers.Conv2D(16, 3, padding="same")(x)
        x = layers.Activation("relu")(layers.BatchNormalization()(x))
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def residual() -> keras.Model:
    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(32, 3, padding="same")(image)
    for _ in range(8):
        y = layers.Conv2D(32, 3, padding="same", activation="relu")(
            layers.BatchNormalization()(x)
        )
        x = layers.Add()([x, layers.Conv2D(32, 3, padding="same")(y)])
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def gelu_chain() -> keras.Model:
    numbers = keras.Input((256,))
    x = numbers
    for _ in range(16):
        x = layers.Dense(256, activation="gelu")(x)
    return keras.Model(numbers, layers.Dense(10)(x))
