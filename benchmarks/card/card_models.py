"""Models of common kinds whose steps are traced on a card, beside those of ``real_models.py``.

Each function returns a compiled Keras model. Names with ``half`` use the policy ``mixed_float16``.
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

layers = keras.layers
SPARSE = "sparse_categorical_crossentropy"


def _compile(entry: Any, result: Any, loss: str = SPARSE) -> keras.Model:
    model = keras.Model(entry, result)
    model.compile("adam", loss)
    return model


def _application(name: str) -> keras.Model:
    model = getattr(keras.applications, name)(weights=None)
    model.compile("adam", SPARSE)
    return model


def _in_half(make: Callable[[], keras.Model]) -> keras.Model:
    keras.config.set_dtype_policy("mixed_float16")
    return make()


def resnet50() -> keras.Model:
    return _application("ResNet50")


def resnet50_half() -> keras.Model:
    return _in_half(resnet50)


def vgg16() -> keras.Model:
    return _application("VGG16")


def mobilenet() -> keras.Model:
    return _application("MobileNetV2")


def densenet() -> keras.Model:
    return _application("DenseNet121")


def inception() -> keras.Model:
    return _application("InceptionV3")


def efficientnet() -> keras.Model:
    return _application("EfficientNetB0")


def efficientnet_half() -> keras.Model:
    return _in_half(efficientnet)


def convnext() -> keras.Model:
    return _application("ConvNeXtTiny")


def gpt2() -> keras.Model:
    """GPT-2 124M of keras-hub, for sentences of 128 tokens, in ``mixed_float16``."""
    import keras_hub

    keras.config.set_dtype_policy("mixed_float16")
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=50257, num_layers=12, num_heads=12, hidden_dim=768,
        intermediate_dim=3072, max_sequence_length=128,
    )  # fmt: skip
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    model.compile(
        keras.optimizers.AdamW(
            5e-5, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    return model


def bert512_half() -> keras.Model:
    import real_models

    return _in_half(real_models.bert_base_512)  # type: ignore[attr-defined]


def lstm() -> keras.Model:
    entry = keras.Input((200,), dtype="int32")
    x = layers.Embedding(20000, 256)(entry)
    x = layers.Bidirectional(layers.LSTM(256, return_sequences=True))(x)
    return _compile(entry, layers.Dense(2, activation="softmax")(layers.LSTM(256)(x)))


def three_axes() -> keras.Model:
    entry = x = keras.Input((32, 64, 64, 4))
    for width in (16, 32, 64):
        x = layers.Conv3D(width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling3D()(x)
    x = layers.GlobalAveragePooling3D()(x)
    return _compile(entry, layers.Dense(10, activation="softmax")(x))


def unet() -> keras.Model:
    entry = x = keras.Input((128, 128, 3))
    skips = []
    for width in (32, 64, 128):
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(256, 3, padding="same", activation="relu")(x)
    for width, skip in zip((128, 64, 32), skips[::-1], strict=True):
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = layers.Concatenate()([x, skip])
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return _compile(
        entry, layers.Conv2D(1, 1, activation="sigmoid")(x), "binary_crossentropy"
    )


def one_axis() -> keras.Model:
    entry = x = keras.Input((4000, 8))
    for width in (64, 128, 256):
        x = layers.Conv1D(width, 9, strides=2, padding="same", activation="relu")(x)
        x = layers.SeparableConv1D(width, 5, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling1D()(x)
    return _compile(entry, layers.Dense(5, activation="softmax")(x))


def dense() -> keras.Model:
    entry = x = keras.Input((4096,))
    for _ in range(4):
        x = layers.Dense(4096, activation="relu")(x)
    return _compile(entry, layers.Dense(1000, activation="softmax")(x))
