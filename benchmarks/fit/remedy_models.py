"""Models whose activations outweigh their weights, to hold remedies against runs."""

from __future__ import annotations

import keras  # noqa: TID253
from keras import layers  # noqa: TID253


def resnet50_v2() -> keras.Model:
    return keras.applications.ResNet50V2(
        weights=None, input_shape=(56, 56, 3), classes=10
    )


def small_gpt() -> keras.Model:
    """A decoder of four blocks over 128 tokens."""
    tokens = keras.Input((128,), dtype="int32")
    x = layers.Embedding(4000, 128)(tokens)
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, 32)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(128)(y)])
    return keras.Model(tokens, layers.Dense(4000)(layers.LayerNormalization()(x)))


def segmentation() -> keras.Model:
    """A U-Net of three depths with batch normalization."""
    image = keras.Input((96, 96, 3))
    kept, x = [], image
    for width in (16, 32, 64):
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.Activation("relu")(layers.BatchNormalization()(x))
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    for width in (64, 32, 16):
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = layers.Concatenate()([x, kept.pop()])
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return keras.Model(image, layers.Conv2D(4, 1)(x))


def click_rate() -> keras.Model:
    """Eight categories looked up in tables of their own, numbers, and a tower of dense layers."""
    numbers = keras.Input((13,))
    names = [keras.Input((1,), dtype="int32") for _ in range(8)]
    looked_up = [layers.Flatten()(layers.Embedding(20000, 24)(one)) for one in names]
    x = layers.Concatenate()([*looked_up, layers.Dense(64, activation="relu")(numbers)])
    for width in (512, 512, 256, 256, 128, 128):
        x = layers.Dense(width, activation="relu")(x)
        x = layers.BatchNormalization()(x)
    return keras.Model([numbers, *names], layers.Dense(1, activation="sigmoid")(x))
