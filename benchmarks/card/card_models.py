"""Models of common kinds whose steps are traced on a card, beside those of ``real_models.py``.

They make the rows "h200" of ``benchmarks/results/real-cards.md``. Each function returns a compiled Keras
model, or a step and its inputs. Names with ``half`` use the policy ``mixed_float16``.
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

layers = keras.layers
SPARSE = "sparse_categorical_crossentropy"


def _compile(entry: Any, result: Any, loss: Any = SPARSE) -> keras.Model:
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


def _attend(x: Any, heads: int, *, is_causal: bool) -> Any:
    """Return the result of one block of a transformer."""
    width = x.shape[-1]
    y = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(heads, width // heads)
    x = x + attention(y, y, use_causal_mask=is_causal)
    y = layers.LayerNormalization()(x)
    y = layers.Dense(4 * width, activation="gelu")(y)
    return x + layers.Dense(width)(y)


def _decoder(width: int, depth: int, heads: int, tokens: int) -> keras.Model:
    entry = keras.Input((tokens,), dtype="int32")
    positions = layers.Embedding(tokens, width)(keras.ops.arange(tokens)[None])
    x = layers.Embedding(32000, width)(entry) + positions
    for _ in range(depth):
        x = _attend(x, heads, is_causal=True)
    logits = layers.Dense(32000, dtype="float32")(layers.LayerNormalization()(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return _compile(entry, logits, loss)


def decoder() -> keras.Model:
    return _decoder(768, 8, 12, 512)


def decoder_half() -> keras.Model:
    return _in_half(decoder)


def decoder_1b() -> keras.Model:
    """A decoder of 1.14 billion parameters."""
    return _decoder(2048, 20, 16, 512)


def vision_transformer() -> keras.Model:
    entry = keras.Input((224, 224, 3))
    x = layers.Reshape((196, 384))(layers.Conv2D(384, 16, 16)(entry))
    x = x + layers.Embedding(196, 384)(keras.ops.arange(196)[None])
    for _ in range(12):
        x = _attend(x, 6, is_causal=False)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return _compile(entry, layers.Dense(1000, activation="softmax")(x))


def recommender() -> keras.Model:
    history = keras.Input((50,), dtype="int32")
    user = keras.Input((), dtype="int32")
    mean = layers.GlobalAveragePooling1D()(layers.Embedding(500_000, 64)(history))
    x = layers.Concatenate()([layers.Embedding(1_000_000, 64)(user), mean])
    for width in (1024, 512):
        x = layers.Dropout(0.2)(layers.Dense(width, activation="relu")(x))
    clicks = layers.Dense(1, activation="sigmoid")(x)
    return _compile([user, history], clicks, "binary_crossentropy")


def speech() -> keras.Model:
    entry = x = keras.Input((800, 80))
    for width in (256, 512):
        x = layers.Conv1D(width, 11, strides=2, padding="same", activation="relu")(x)
        x = layers.BatchNormalization()(x)
    for _ in range(2):
        x = layers.Bidirectional(layers.GRU(256, return_sequences=True))(x)
    return _compile(entry, layers.Dense(40, activation="softmax")(x))


def resnet50_half_scaled() -> keras.Model:
    """``resnet50_half`` with a loss scale of 8, which does not overflow: every step updates."""
    model = resnet50_half()
    adam = keras.optimizers.Adam()
    scaled = keras.optimizers.LossScaleOptimizer(adam, initial_scale=8.0)
    model.compile(scaled, SPARSE)
    return model


def strided() -> keras.Model:
    """Convolutions with strides and wide windows, whose gradients have no closed form."""
    entry = x = keras.Input((256, 256, 3))
    for width, window, stride in ((64, 7, 2), (96, 5, 3), (192, 5, 2), (256, 4, 2)):
        x = layers.Conv2D(width, window, stride, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return _compile(entry, layers.Dense(10, activation="softmax")(x))


def three_axes_strided() -> keras.Model:
    entry = x = keras.Input((64, 64, 64, 1))
    for width, window in ((32, 5), (64, 3), (128, 3)):
        x = layers.Conv3D(width, window, 2, padding="same", activation="relu")(x)
    for width in (64, 32):
        x = layers.Conv3DTranspose(width, 2, 2, activation="relu")(x)
    x = layers.GlobalAveragePooling3D()(x)
    return _compile(entry, layers.Dense(10, activation="softmax")(x))


def diffusion_unet() -> keras.Model:
    """A U-Net that predicts noise, with the time as input and attention at 16 x 16."""
    entry, time = keras.Input((64, 64, 4)), keras.Input((256,))

    def convolve(x: Any, width: int) -> Any:
        shortcut = layers.Conv2D(width, 1)(x)
        y = layers.Conv2D(width, 3, padding="same")(layers.Activation("silu")(x))
        y = y + layers.Reshape((1, 1, width))(layers.Dense(width)(time))
        y = layers.Activation("silu")(layers.GroupNormalization(8)(y))
        return shortcut + layers.Conv2D(width, 3, padding="same")(y)

    x = layers.Conv2D(128, 3, padding="same")(entry)
    skips = []
    for width in (128, 256, 512):
        x = convolve(convolve(x, width), width)
        skips.append(x)
        x = layers.Conv2D(width, 3, 2, padding="same")(x)
    flat = layers.Reshape((64, 512))(x)
    x = layers.Reshape((8, 8, 512))(_attend(flat, 8, is_causal=False))
    for width, skip in zip((512, 256, 128), reversed(skips), strict=True):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skip])
        x = convolve(convolve(x, width), width)
    noise = layers.Conv2D(4, 3, padding="same")(x)
    return _compile([entry, time], noise, "mean_squared_error")


def masked_tokens() -> tuple[Any, tuple[Any, ...]]:
    """A step whose sizes follow from values: only the masked tokens get logits."""
    table = layers.Embedding(30000, 512)
    encoder = keras.Sequential(
        [layers.Dense(2048, activation="gelu"), layers.Dense(512)]
    )
    head = layers.Dense(30000)
    optimizer = keras.optimizers.Adam()
    tokens = tf.range(64 * 256, dtype=tf.int32) % 997
    head(encoder(table(tokens[:1])))
    weights = [*table.weights, *encoder.weights, *head.weights]
    optimizer.build(weights)

    @tf.function
    def step(tokens: Any) -> Any:
        is_masked = tokens % 7 == 0
        with tf.GradientTape() as tape:
            chosen = tf.boolean_mask(encoder(table(tokens)), is_masked)
            wanted = tf.boolean_mask(tokens, is_masked)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                wanted, head(chosen)
            )
            loss = tf.reduce_mean(losses)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss

    return step, (tokens,)


def limited() -> keras.Model:
    """``resnet50`` with a limit of 16 GiB for TensorFlow, so that two processes share a card."""
    card = tf.config.list_physical_devices("GPU")[0]
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=16 << 10)
    tf.config.set_logical_device_configuration(card, [limit])
    return resnet50()
