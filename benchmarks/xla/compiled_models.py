"""Steps that XLA compiles, of many kinds: what ``compiled.py`` holds against real runs."""

# ruff: noqa: TID253

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

layers, optimizers, networks = keras.layers, keras.optimizers, keras.applications
SPARSE = "sparse_categorical_crossentropy"
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model: Any, loss: Any, optimizer: Any) -> Any:
    model.compile(optimizer, loss)
    return model


def network(make: Any, size: int, optimizer: Any) -> Any:
    return compiled(
        make(input_shape=(size, size, 3), weights=None, classes=50), SPARSE, optimizer
    )


def mobilenet() -> Any:
    return network(networks.MobileNetV2, 96, optimizers.Lion())


def efficientnet() -> Any:
    return network(networks.EfficientNetB0, 64, optimizers.RMSprop(0.01, momentum=0.9))


def densenet() -> Any:
    return network(networks.DenseNet121, 64, optimizers.Adam(clipnorm=1.0))


def resnet50v2() -> Any:
    return network(
        networks.ResNet50V2, 64, optimizers.SGD(0.01, momentum=0.9, nesterov=True)
    )


def xception() -> Any:
    return network(networks.Xception, 96, optimizers.Adafactor())


class Positions(layers.Layer):
    """A learned vector for each position, added."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, x: Any) -> Any:
        return x + self.table


def block(x: Any, width: int, heads: int, causal: bool, memory: Any = None) -> Any:
    y = layers.LayerNormalization()(x)
    attend = layers.MultiHeadAttention(heads, width // heads, dropout=0.1)
    x = layers.Add()([x, attend(y, y, use_causal_mask=causal)])
    if memory is not None:
        y = layers.LayerNormalization()(x)
        x = layers.Add()(
            [x, layers.MultiHeadAttention(heads, width // heads)(y, memory)]
        )
    y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
    return layers.Add()([x, layers.Dropout(0.1)(layers.Dense(width)(y))])


def decoder() -> Any:
    entry = keras.Input((96,), dtype="int32")
    x = Positions()(layers.Embedding(6000, 192)(entry))
    for _ in range(4):
        x = block(x, 192, 6, causal=True)
    x = layers.Dense(6000)(layers.LayerNormalization()(x))
    optimizer = optimizers.AdamW(weight_decay=0.01, global_clipnorm=1.0)
    return compiled(keras.Model(entry, x), LOGITS, optimizer)


def translator() -> Any:
    source, target = (
        keras.Input((48,), dtype="int32"),
        keras.Input((40,), dtype="int32"),
    )
    memory = Positions()(layers.Embedding(3000, 128)(source))
    x = Positions()(layers.Embedding(4000, 128)(target))
    for _ in range(2):
        memory = block(memory, 128, 4, causal=False)
    for _ in range(2):
        x = block(x, 128, 4, causal=True, memory=memory)
    model = keras.Model([source, target], layers.Dense(4000)(x))
    return compiled(model, LOGITS, optimizers.Adam(gradient_accumulation_steps=3))


def bilstm() -> Any:
    entry = keras.Input((40,), dtype="int32")
    x = layers.Embedding(6000, 96, mask_zero=True)(entry)
    x = layers.Bidirectional(layers.LSTM(96, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(64))(x)
    return compiled(keras.Model(entry, layers.Dense(10)(x)), LOGITS, optimizers.Nadam())


def gru() -> Any:
    entry = keras.Input((50, 40))
    x = layers.GRU(128)(layers.GRU(128, return_sequences=True, dropout=0.1)(entry))
    return compiled(
        keras.Model(entry, layers.Dense(1)(x)), "mse", optimizers.RMSprop(centered=True)
    )


def recommender() -> Any:
    """Eight tables, a dense tower, and the products of each with each, as in DLRM."""
    dense = keras.Input((13,))
    tables = [keras.Input((), dtype="int32", name=f"table_{k}") for k in range(8)]
    x = layers.Dense(64, activation="relu")(layers.Dense(256, activation="relu")(dense))
    rows = [
        layers.Embedding(5000 * (k + 1), 64)(table) for k, table in enumerate(tables)
    ]
    stack = layers.Concatenate(axis=1)(
        [layers.Reshape((1, 64))(row) for row in [x, *rows]]
    )
    y = layers.Concatenate()([x, layers.Flatten()(layers.Dot(axes=2)([stack, stack]))])
    for width in (256, 128):
        y = layers.Dense(width, activation="relu")(y)
    model = keras.Model([dense, *tables], layers.Dense(1, activation="sigmoid")(y))
    return compiled(model, "binary_crossentropy", optimizers.Adagrad())


def unet() -> Any:
    def twice(x: Any, width: int) -> Any:
        for _ in range(2):
            x = layers.SeparableConv2D(width, 3, padding="same")(x)
            x = layers.Activation("swish")(layers.GroupNormalization(8)(x))
        return x

    entry = keras.Input((96, 96, 3))
    x = layers.Conv2D(16, 3, padding="same")(entry)
    skips = []
    for width in (16, 32, 64):
        skips.append(twice(x, width))
        x = layers.MaxPooling2D()(skips[-1])
    x = twice(x, 128)
    for width, skip in zip((64, 32, 16), reversed(skips), strict=True):
        x = layers.UpSampling2D(interpolation="bilinear")(x)
        x = twice(layers.Concatenate()([x, skip]), width)
    x = layers.Conv2D(4, 1, activation="softmax")(x)
    return compiled(keras.Model(entry, x), SPARSE, optimizers.Adamax())


class Variational(keras.Model):
    """An autoencoder that is built when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers.Dense(512, activation="relu")
        self.mean, self.spread = layers.Dense(32), layers.Dense(32)
        self.outer, self.shown = layers.Dense(512, activation="relu"), layers.Dense(784)
        self.seed = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        x = self.inner(x)
        mean, spread = self.mean(x), self.spread(x)
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seed)
        self.add_loss(
            -0.5 * keras.ops.mean(1 + spread - mean**2 - keras.ops.exp(spread))
        )
        return self.shown(self.outer(mean + keras.ops.exp(0.5 * spread) * noise))


def variational() -> Any:
    model = Variational()
    model.build((None, 784))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return compiled(model, loss, optimizers.Ftrl())


def half() -> Any:
    """In half precision, with loss scaling, clipping and an average of the weights."""
    keras.config.set_dtype_policy("mixed_float16")
    entry = x = keras.Input((48, 48, 3))
    for width in (32, 64, 96):
        x = layers.Conv2D(width, 3, padding="same")(x)
        x = layers.MaxPooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    x = layers.Dense(200, activation="relu")(layers.Flatten()(x))
    x = layers.Dense(10, dtype="float32", activation="softmax")(x)
    return compiled(
        keras.Model(entry, x), SPARSE, optimizers.Adam(use_ema=True, clipvalue=0.5)
    )


def transformer() -> Any:
    entry = keras.Input((64, 64, 3))
    x = Positions()(layers.Reshape((64, 144))(layers.Conv2D(144, 8, 8)(entry)))
    for _ in range(3):
        x = block(x, 144, 4, causal=False)
    x = layers.Dense(50)(layers.GlobalAveragePooling1D()(x))
    return compiled(keras.Model(entry, x), LOGITS, optimizers.Lamb())


def loop() -> Any:
    """A custom loop in one compiled function."""
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(32, 3, padding="same", activation="elu"),
            layers.AveragePooling2D(2),
            layers.Conv2D(64, 3, padding="same", activation="elu"),
            layers.GlobalMaxPooling2D(),
            layers.Dense(128, activation="tanh"),
            layers.Dense(10),
        ]
    )
    optimizer = optimizers.Lion(1e-4)

    @tf.function(jit_compile=True)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = LOGITS(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    step.model, step.optimizer = model, optimizer
    return step, (tf.random.normal((32, 32, 32, 3)), tf.zeros((32,), tf.int32))


def words(rule: Any) -> Any:
    entry = keras.Input((20,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(8000, 64)(entry))
    x = layers.Dense(20)(layers.Dense(128, activation="relu")(x))
    return compiled(keras.Model(entry, x), LOGITS, rule)


def words_anew() -> Any:
    """A step that TensorFlow compiles anew each time."""
    return words(optimizers.RMSprop(0.01, momentum=0.9))
