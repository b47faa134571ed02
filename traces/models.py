"""The small models and steps that the sample traces are of."""

from __future__ import annotations

import keras
import tensorflow as tf


def cnn() -> keras.Model:
    """Two convolutions with batch normalisation, pooling and a classifier; Adam."""
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(32, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, activation="softmax"),
        ],
        name="cnn",
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def transformer() -> keras.Model:
    """A decoder of two blocks with causal attention; AdamW."""
    tokens = keras.Input((48,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(1000, 64, name="embedding")(tokens)
    for block in range(2):
        h = keras.layers.LayerNormalization(name=f"block{block}_norm1")(x)
        h = keras.layers.MultiHeadAttention(4, 16, name=f"block{block}_attention")(
            h, h, use_causal_mask=True
        )
        x = keras.layers.Add(name=f"block{block}_add1")([x, h])
        h = keras.layers.LayerNormalization(name=f"block{block}_norm2")(x)
        h = keras.layers.Dense(256, activation="gelu", name=f"block{block}_up")(h)
        h = keras.layers.Dense(64, name=f"block{block}_down")(h)
        x = keras.layers.Add(name=f"block{block}_add2")([x, h])
    logits = keras.layers.Dense(1000, name="logits")(x)
    model = keras.Model(tokens, logits, name="transformer")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-3), loss)
    return model


def lstm() -> keras.Model:
    """An embedding, one LSTM and a classifier; RMSprop."""
    model = keras.Sequential(
        [
            keras.Input((20,), dtype="int32"),
            keras.layers.Embedding(2000, 32),
            keras.layers.LSTM(48),
            keras.layers.Dense(5, activation="softmax"),
        ],
        name="lstm",
    )
    model.compile("rmsprop", "sparse_categorical_crossentropy")
    return model


def mlp() -> keras.Model:
    """Three dense layers; Adam. Traced with XLA."""
    model = keras.Sequential(
        [
            keras.Input((128,)),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(10),
        ],
        name="mlp",
    )
    model.compile("adam", "mse")
    return model


def eager() -> keras.Model:
    """The same kind of network as `cnn`, run op by op from Python."""
    model = cnn()
    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
    return model


def too_large() -> keras.Model:
    """A network whose activations do not fit in the 48 MiB that it is given."""
    model = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, activation="softmax"),
        ],
        name="too_large",
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def accumulation() -> tuple[object, tuple[tf.Tensor, tf.Tensor]]:
    """A custom step that accumulates the gradients of four micro-batches."""
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(8)]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    sums = [
        tf.Variable(tf.zeros(variable.shape), trainable=False, name=f"sum_{index}")
        for index, variable in enumerate(model.trainable_variables)
    ]

    @tf.function
    def step(features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for part in range(4):
            x, y = features[part * 16 : part * 16 + 16], labels[part * 16 : part * 16 + 16]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            for sum_, gradient in zip(
                sums, tape.gradient(loss, model.trainable_variables), strict=True
            ):
                sum_.assign_add(gradient / 4)
            total += loss / 4
        optimizer.apply_gradients(
            zip([s.read_value() for s in sums], model.trainable_variables, strict=True)
        )
        for sum_ in sums:
            sum_.assign(tf.zeros_like(sum_))
        return total

    return step, (tf.random.normal((64, 64)), tf.random.normal((64, 8)))
