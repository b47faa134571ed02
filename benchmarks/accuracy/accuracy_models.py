"""The models of the accuracy protocol: small ones of different kinds, one attribute a case.

``accuracy_models.py:resnet_8_adam`` is the network ``resnet`` with batches of 8 and Adam: a compiled
Keras model, or ``(tf_function, args)`` for a training loop written by hand. Sizes are chosen so that a
fresh run takes seconds and most of the memory is tensors, not small change.

Figures: the rows "requested peak, CPU" and "card" of docs/accuracy.md.
"""

# ruff: noqa: TID253

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

layers = keras.layers
SPARSE = "sparse_categorical_crossentropy"
SPARSE_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "rmsprop": keras.optimizers.RMSprop,
    "adagrad": keras.optimizers.Adagrad,
    "adafactor": keras.optimizers.Adafactor,
    "lion": keras.optimizers.Lion,
    "clipped": lambda: keras.optimizers.Adam(global_clipnorm=1.0),
    "ema": lambda: keras.optimizers.Adam(use_ema=True),
    "accumulate": lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
}


def conv(x: Any, width: int, size: int = 3, stride: int = 1) -> Any:
    x = layers.Conv2D(width, size, stride, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def classify(entry: Any, x: Any, classes: int = 100) -> tuple[Any, Any]:
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(entry, layers.Dense(classes, activation="softmax")(x)), SPARSE


# -- the tuning half ---------------------------------------------------------------------------


def plain() -> tuple[Any, Any]:
    entry = x = keras.Input((48, 48, 3))
    for width in (32, 64, 128):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.5)(layers.Dense(256, activation="relu")(layers.Flatten()(x)))
    return keras.Model(entry, layers.Dense(10, activation="softmax")(x)), SPARSE


def vgg() -> tuple[Any, Any]:
    entry = x = keras.Input((64, 64, 3))
    for width, repeats in ((32, 2), (64, 2), (128, 3), (256, 3)):
        for _ in range(repeats):
            x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dense(1024, activation="relu")(layers.Flatten()(x))
    x = layers.Dense(1024, activation="relu")(x)
    return keras.Model(entry, layers.Dense(100, activation="softmax")(x)), SPARSE


def resnet() -> tuple[Any, Any]:
    entry = keras.Input((64, 64, 3))
    x = layers.MaxPooling2D(3, 2, padding="same")(conv(entry, 32, 7, 2))
    for stage, width in enumerate((32, 64, 128, 256)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            short = x
            if stride == 2:
                short = layers.Conv2D(width, 1, 2, use_bias=False)(x)
                short = layers.BatchNormalization()(short)
            y = conv(x, width, 3, stride)
            y = layers.BatchNormalization()(
                layers.Conv2D(width, 3, padding="same", use_bias=False)(y)
            )
            x = layers.ReLU()(layers.Add()([short, y]))
    return classify(entry, x)


def depthwise() -> tuple[Any, Any]:
    entry = keras.Input((96, 96, 3))
    x = conv(entry, 16, 3, 2)
    for width, stride in ((32, 2), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        y = layers.Conv2D(4 * x.shape[-1], 1, use_bias=False)(x)
        y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
        y = layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False)(y)
        y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
        y = layers.BatchNormalization()(layers.Conv2D(width, 1, use_bias=False)(y))
        x = layers.Add()([x, y]) if x.shape == y.shape else y
    return classify(entry, x)


def attend(x: Any, width: int, heads: int, causal: bool, rate: float = 0.0) -> Any:
    h = layers.LayerNormalization()(x)
    h = layers.MultiHeadAttention(heads, width // heads, dropout=rate)(
        h, h, use_causal_mask=causal
    )
    x = layers.Add()([x, layers.Dropout(rate)(h) if rate else h])
    h = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
    h = layers.Dense(width)(h)
    return layers.Add()([x, layers.Dropout(rate)(h) if rate else h])


def encoder() -> tuple[Any, Any]:
    entry = keras.Input((64,), dtype="int32")
    x = layers.Embedding(4000, 128)(entry)
    for _ in range(3):
        x = attend(x, 128, 4, causal=False, rate=0.1)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(entry, layers.Dense(20)(x)), SPARSE_LOGITS


def lstm() -> tuple[Any, Any]:
    entry = keras.Input((30,), dtype="int32")
    x = layers.LSTM(128, return_sequences=True)(layers.Embedding(5000, 128)(entry))
    return keras.Model(entry, layers.Dense(20)(layers.LSTM(128)(x))), SPARSE_LOGITS


def unet() -> tuple[Any, Any]:
    entry = x = keras.Input((64, 64, 3))
    skips = []
    for width in (16, 32, 64):
        x = conv(conv(x, width), width)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = conv(x, 128)
    for width, skip in zip((64, 32, 16), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(width, 2, 2, padding="same")(x)
        x = conv(conv(layers.Concatenate()([x, skip]), width), width)
    return keras.Model(
        entry, layers.Conv2D(1, 1, activation="sigmoid")(x)
    ), "binary_crossentropy"


def recommender() -> tuple[Any, Any]:
    user, item = keras.Input((), dtype="int32"), keras.Input((20,), dtype="int32")
    a = layers.Embedding(20000, 64)(user)
    b = layers.GlobalAveragePooling1D()(layers.Embedding(30000, 64)(item))
    x = layers.Concatenate()([a, b])
    for width in (256, 128):
        x = layers.Dense(width, activation="relu")(x)
    return keras.Model([user, item], layers.Dense(1, activation="sigmoid")(x)), (
        "binary_crossentropy"
    )


def half() -> tuple[Any, Any]:
    keras.config.set_dtype_policy("mixed_float16")
    entry = keras.Input((32, 32, 3))
    x = conv(conv(entry, 32), 64, 3, 2)
    x = layers.GlobalAveragePooling2D()(conv(x, 128, 3, 2))
    x = layers.Dense(10, dtype="float32", activation="softmax")(x)
    return keras.Model(entry, x), SPARSE


def accumulation(batch: int, optimizer: str) -> tuple[Any, Any]:
    """Gradients of two halves of the batch summed in variables, then applied."""
    model = keras.Sequential(
        [
            keras.Input((200,)),
            layers.Dense(800, activation="relu"),
            layers.Dense(800, activation="gelu"),
            layers.Dense(10),
        ]
    )
    rule = OPTIMIZERS[optimizer]()
    sums = [
        tf.Variable(tf.zeros(v.shape), trainable=False)
        for v in model.trainable_variables
    ]

    @tf.function
    def step(x: Any, y: Any) -> Any:
        for part in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(
                    (model(x[part::2], training=True) - y[part::2]) ** 2
                )
            gradients = tape.gradient(loss, model.trainable_variables)
            for total, gradient in zip(sums, gradients, strict=True):
                total.assign_add(gradient)
        rule.apply_gradients(
            zip([t.read_value() for t in sums], model.trainable_variables, strict=True)
        )
        for total in sums:
            total.assign(tf.zeros_like(total))
        return loss

    step.model, step.optimizer = model, rule
    return step, (tf.random.normal((batch, 200)), tf.random.normal((batch, 10)))


# -- second half: looked at only when the kernels' rules are done --------------------------------


def dense() -> tuple[Any, Any]:
    entry = keras.Input((64, 64, 3))
    x = layers.MaxPooling2D()(conv(entry, 32, 5, 2))
    for block in range(3):
        for _ in range(4):
            y = layers.ReLU()(layers.BatchNormalization()(x))
            y = layers.Conv2D(64, 1, use_bias=False)(y)
            y = layers.ReLU()(layers.BatchNormalization()(y))
            y = layers.Conv2D(16, 3, padding="same", use_bias=False)(y)
            x = layers.Concatenate()([x, y])
        if block < 2:
            x = layers.AveragePooling2D(2)(layers.Conv2D(x.shape[-1] // 2, 1)(x))
    return classify(entry, x)


def inception() -> tuple[Any, Any]:
    entry = keras.Input((64, 64, 3))
    x = layers.MaxPooling2D(3, 2)(conv(entry, 32, 3, 2))
    for width in (32, 64, 64):
        branches = [
            conv(x, width, 1),
            conv(conv(x, width // 2, 1), width, 3),
            conv(conv(conv(x, width // 2, 1), width // 2, 3), width, 3),
            conv(layers.AveragePooling2D(3, 1, padding="same")(x), width, 1),
        ]
        x = layers.Concatenate()(branches)
    return classify(entry, x)


def decoder() -> tuple[Any, Any]:
    entry = keras.Input((64,), dtype="int32")
    x = layers.Embedding(3000, 128)(entry)
    for _ in range(3):
        x = attend(x, 128, 8, causal=True)
    return keras.Model(
        entry, layers.Dense(3000)(layers.LayerNormalization()(x))
    ), SPARSE_LOGITS


class Positions(layers.Layer):
    """Adds a trained vector to each patch."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, x: Any) -> Any:
        return x + self.table


def vit() -> tuple[Any, Any]:
    entry = keras.Input((64, 64, 3))
    x = layers.Reshape((64, 128))(layers.Conv2D(128, 8, 8)(entry))
    x = Positions()(x)
    for _ in range(3):
        x = attend(x, 128, 4, causal=False)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(entry, layers.Dense(100)(x)), SPARSE_LOGITS


def gru() -> tuple[Any, Any]:
    entry = keras.Input((30,), dtype="int32")
    x = layers.Embedding(5000, 96)(entry)
    x = layers.Bidirectional(layers.GRU(96, return_sequences=True))(x)
    x = layers.GlobalMaxPooling1D()(x)
    return keras.Model(entry, layers.Dense(20)(x)), SPARSE_LOGITS


def temporal() -> tuple[Any, Any]:
    entry = x = keras.Input((256, 24))
    for rate in (1, 2, 4, 8):
        y = layers.Conv1D(
            64, 3, padding="causal", dilation_rate=rate, activation="relu"
        )(x)
        y = layers.LayerNormalization()(layers.SpatialDropout1D(0.1)(y))
        x = layers.Add()([layers.Conv1D(64, 1)(x) if x.shape[-1] != 64 else x, y])
    return keras.Model(entry, layers.Dense(1)(layers.GlobalMaxPooling1D()(x))), "mse"


def autoencoder() -> tuple[Any, Any]:
    entry = x = keras.Input((64, 64, 3))
    for width in (32, 64, 96):
        x = layers.Conv2D(width, 3, 2, padding="same")(x)
        x = layers.LeakyReLU(0.2)(x)
    x = layers.Dense(64)(layers.Flatten()(x))
    x = layers.Reshape((8, 8, 96))(layers.Dense(8 * 8 * 96, activation="relu")(x))
    for width in (64, 32):
        x = layers.Conv2DTranspose(width, 3, 2, padding="same", activation="relu")(x)
    x = layers.UpSampling2D()(x)
    return keras.Model(
        entry, layers.Conv2D(3, 3, padding="same", activation="tanh")(x)
    ), "mse"


def gan(batch: int, optimizer: str) -> tuple[Any, Any]:
    """A generator and a discriminator, each with its own tape and optimizer, in one step."""
    maker = keras.Sequential(
        [keras.Input((64,)), layers.Dense(8 * 8 * 64), layers.LeakyReLU()]
    )
    maker.add(layers.Reshape((8, 8, 64)))
    for width in (64, 32):
        maker.add(layers.Conv2DTranspose(width, 4, 2, padding="same"))
        maker.add(layers.BatchNormalization())
        maker.add(layers.LeakyReLU())
    maker.add(layers.Conv2D(3, 3, padding="same", activation="tanh"))
    judge = keras.Sequential([keras.Input((32, 32, 3))])
    for width in (32, 64):
        judge.add(layers.Conv2D(width, 4, 2, padding="same"))
        judge.add(layers.LeakyReLU())
        judge.add(layers.Dropout(0.3))
    judge.add(layers.Flatten())
    judge.add(layers.Dense(1))
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    rules = [OPTIMIZERS[optimizer](), OPTIMIZERS[optimizer]()]

    @tf.function
    def step(real: Any) -> Any:
        noise = tf.random.normal((batch, 64))
        with tf.GradientTape() as first, tf.GradientTape() as second:
            fake = maker(noise, training=True)
            said_real, said_fake = (
                judge(real, training=True),
                judge(fake, training=True),
            )
            made = entropy(tf.ones_like(said_fake), said_fake)
            told = entropy(tf.ones_like(said_real), said_real)
            told += entropy(tf.zeros_like(said_fake), said_fake)
        for rule, tape, loss, model in (
            (rules[0], first, made, maker),
            (rules[1], second, told, judge),
        ):
            variables = model.trainable_variables
            rule.apply_gradients(
                zip(tape.gradient(loss, variables), variables, strict=True)
            )
        return made, told

    return step, (tf.random.normal((batch, 32, 32, 3)),)


def convnext() -> tuple[Any, Any]:
    entry = keras.Input((64, 64, 3))
    x = layers.LayerNormalization()(layers.Conv2D(48, 4, 4)(entry))
    for width in (48, 96):
        if width != x.shape[-1]:
            x = layers.Conv2D(width, 2, 2)(layers.LayerNormalization()(x))
        for _ in range(2):
            y = layers.LayerNormalization()(
                layers.DepthwiseConv2D(7, padding="same")(x)
            )
            y = layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))
            x = layers.Add()([x, y])
    return classify(entry, x)


def brain() -> tuple[Any, Any]:
    keras.config.set_dtype_policy("mixed_bfloat16")
    model, loss = encoder()
    return model, loss


def swish() -> tuple[Any, Any]:
    """Inverted residuals with squeeze and excitation, as in EfficientNet."""
    entry = keras.Input((64, 64, 3))
    x = layers.Activation("swish")(
        layers.BatchNormalization()(
            layers.Conv2D(16, 3, 2, padding="same", use_bias=False)(entry)
        )
    )
    for width, stride in ((24, 2), (24, 1), (48, 2), (48, 1)):
        y = layers.Conv2D(4 * x.shape[-1], 1, use_bias=False)(x)
        y = layers.Activation("swish")(layers.BatchNormalization()(y))
        y = layers.DepthwiseConv2D(5, stride, padding="same", use_bias=False)(y)
        y = layers.Activation("swish")(layers.BatchNormalization()(y))
        s = layers.GlobalAveragePooling2D(keepdims=True)(y)
        s = layers.Conv2D(y.shape[-1] // 8, 1, activation="swish")(s)
        y = layers.Multiply()(
            [y, layers.Conv2D(y.shape[-1], 1, activation="sigmoid")(s)]
        )
        y = layers.BatchNormalization()(layers.Conv2D(width, 1, use_bias=False)(y))
        x = layers.Add()([x, layers.Dropout(0.2)(y)]) if x.shape == y.shape else y
    return classify(entry, x)


LOOPS = ("accumulation", "gan")


def make(name: str) -> Any:
    """Return the model or the step of ``NETWORK_BATCH_OPTIMIZER``."""
    network, batch, optimizer = name.split("_")
    if network in LOOPS:
        return globals()[network](int(batch), optimizer)
    model, loss = globals()[network]()
    model.compile(OPTIMIZERS[optimizer](), loss, jit_compile=False)
    return model


def __getattr__(name: str) -> Any:
    parts = name.split("_")
    if len(parts) == 3 and parts[1].isdigit():
        return functools.partial(make, name)
    raise AttributeError(name)
