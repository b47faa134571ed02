"""The steps that ``benchmarks/xla/xla_gpu.py`` compiles for cards.

ResNet50 and MobileNetV2 are Keras' own, so that anybody's table can be compared. The others are of
usual sizes, chosen here.
"""

from __future__ import annotations

from typing import Any

import keras  # noqa: TID253 - a target, run in a child
from keras import layers  # noqa: TID253

LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model: Any, loss: Any, **options: Any) -> Any:
    model.compile(optimizer="adam", loss=loss, jit_compile=True, **options)
    return model


def mlp() -> Any:
    """784 inputs, three layers of 1024 with ReLU, ten classes."""
    hidden = [layers.Dense(1024, activation="relu") for _ in range(3)]
    return compiled(keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)]), LOGITS)


def lstm() -> Any:
    """100 steps of 64 values, one LSTM of 128, ten classes."""
    stack = [keras.Input((100, 64)), layers.LSTM(128), layers.Dense(10)]
    return compiled(keras.Sequential(stack), LOGITS)


class Positions(layers.Layer):
    """A learned vector for each position, added."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, x: Any) -> Any:
        return x + self.table


def decoder() -> Any:
    """Six pre-norm blocks of width 512, eight heads, 256 tokens, 8,000 words."""
    entry = keras.Input((256,), dtype="int32")
    x = Positions()(layers.Embedding(8000, 512)(entry))
    for _ in range(6):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(8, 64)(y, y, use_causal_mask=True)
        y = layers.Dense(2048, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(512)(y)
    words = layers.Dense(8000, dtype="float32")(layers.LayerNormalization()(x))
    return compiled(keras.Model(entry, words), LOGITS)


def decoder_bfloat16() -> Any:
    """The same in bfloat16 (mixed)."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    return decoder()


def resnet50() -> Any:
    return compiled(keras.applications.ResNet50(weights=None), "sparse_categorical_crossentropy")


def resnet50_float16() -> Any:
    """In half precision, without loss scaling."""
    keras.config.set_dtype_policy("mixed_float16")
    return compiled(
        keras.applications.ResNet50(weights=None),
        "sparse_categorical_crossentropy",
        auto_scale_loss=False,
    )


def mobilenetv2() -> Any:
    model = keras.applications.MobileNetV2(weights=None)
    return compiled(model, "sparse_categorical_crossentropy")
