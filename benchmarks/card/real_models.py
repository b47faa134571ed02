"""Models that other people ran on real cards, as their published code and traces describe them.

Each function returns a compiled Keras model. ``real_cards.py`` estimates them; ``record.py`` runs them.
With ``TF_USE_LEGACY_KERAS=1`` the models are of Keras 2 (``pip install tf_keras``), as in the public
traces: it has a fused batch norm and one op for an update of Adam.

Figures: "Real cards" in docs/accuracy.md.
"""

# ruff: noqa: TID253

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

IS_KERAS_2 = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
if IS_KERAS_2:
    import tf_keras as keras
else:
    import keras
layers = keras.layers


class FusedBatchNorm3(layers.Layer):
    """Batch norm of Keras 3 with TensorFlow's fused kernel in place of single ops."""

    def __init__(
        self, axis: int = -1, epsilon: float = 1e-3, name: str | None = None
    ) -> None:
        super().__init__(name=name)
        self.epsilon = epsilon

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Create scale, offset and moving averages."""
        size = (shape[-1],)
        self.gamma = self.add_weight(shape=size, initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=size, initializer="zeros", name="beta")
        self.mean = self.add_weight(
            shape=size, initializer="zeros", trainable=False, name="mean"
        )
        self.variance = self.add_weight(
            shape=size, initializer="ones", trainable=False, name="variance"
        )

    def call(self, values: Any, training: bool | None = None) -> Any:
        """Return the normalized values."""
        is_training = bool(training) and self.trainable
        moments = (
            {}
            if is_training
            else {"mean": self.mean.value, "variance": self.variance.value}
        )
        result, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            values, self.gamma.value, self.beta.value, epsilon=self.epsilon,
            is_training=is_training, **moments,
        )  # fmt: skip
        if is_training:
            self.mean.assign(0.99 * self.mean + 0.01 * mean)
            self.variance.assign(0.99 * self.variance + 0.01 * variance)
        return result


FusedBatchNorm = layers.BatchNormalization if IS_KERAS_2 else FusedBatchNorm3


def make_adam() -> Any:
    """Return the Adam of that time: one op updates a variable; in Keras 3 the default one."""
    return keras.optimizers.legacy.Adam() if IS_KERAS_2 else keras.optimizers.Adam()


@contextmanager
def fused_batch_norm() -> Iterator[None]:
    """Let ``keras.applications`` build networks with the fused kernel."""
    if IS_KERAS_2:
        yield
        return
    from keras.src import layers as source_layers

    own = source_layers.BatchNormalization
    source_layers.BatchNormalization = FusedBatchNorm
    try:
        yield
    finally:
        source_layers.BatchNormalization = own


class FirstChannel(layers.Layer):
    """Slices the first channel of an image."""

    def call(self, images: Any) -> Any:
        """Return the channel, shape ``(batch, height, width, 1)``."""
        return images[..., :1]


def alexnet() -> keras.Model:
    """Five convolutions with batch norm after each, on one channel of 256 x 256 x 3; four classes."""
    model = keras.Sequential([keras.Input((256, 256, 3)), FirstChannel()])
    for filters, size, strides, has_pool in (
        (96, 11, 4, True),
        (256, 5, 1, True),
        (384, 3, 1, False),
        (384, 3, 1, False),
        (256, 3, 1, True),
    ):
        model.add(
            layers.Conv2D(
                filters,
                size,
                strides=strides,
                padding="valid" if strides > 1 else "same",
                activation="relu",
            )
        )
        model.add(FusedBatchNorm())
        if has_pool:
            model.add(layers.MaxPooling2D(3, 2))
    model.add(layers.Flatten())
    model.add(layers.Dense(4, activation="softmax"))
    model.compile(make_adam(), "categorical_crossentropy", metrics=["accuracy"])
    return model


def resnet50v2() -> keras.Model:
    """ResNet50V2 without its top at 256 x 256, Conv2D(32, 3) and four classes."""
    with fused_batch_norm():
        base = keras.applications.ResNet50V2(
            include_top=False, weights=None, input_shape=(256, 256, 3)
        )
    features = layers.Conv2D(32, 3, activation="relu")(base.output)
    classes = layers.Dense(4, activation="softmax")(layers.Flatten()(features))
    model = keras.Model(base.input, classes)
    model.compile(make_adam(), "categorical_crossentropy", metrics=["accuracy"])
    return model


def xception_frozen() -> keras.Model:
    """Xception at 299 x 299 with a frozen base and a new top."""
    with fused_batch_norm():
        base = keras.applications.Xception(
            include_top=False, weights=None, input_shape=(299, 299, 3), pooling="avg"
        )
    base.trainable = False
    images = keras.Input((299, 299, 3))
    classes = layers.Dense(2, activation="softmax")(base(images, training=False))
    model = keras.Model(images, classes)
    model.compile(make_adam(), "categorical_crossentropy", metrics=["accuracy"])
    return model


def lenet(has_norm: bool = False) -> keras.Model:
    """Three convolutions and two dense layers for Fashion MNIST."""
    model = keras.Sequential([keras.Input((28, 28, 1))])
    for filters in (32, 64, 128):
        model.add(layers.Conv2D(filters, 3, activation="relu"))
        if has_norm:
            model.add(FusedBatchNorm())
        model.add(layers.MaxPooling2D(2))
        model.add(layers.Dropout(0.25))
    model.add(layers.Flatten())
    model.add(layers.Dense(256, activation="relu"))
    if has_norm:
        model.add(layers.BatchNormalization())
    model.add(layers.Dropout(0.5))
    model.add(layers.Dense(10, activation="softmax"))
    model.compile(make_adam(), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def lenet_norm() -> keras.Model:
    """``lenet`` with batch norm."""
    return lenet(has_norm=True)


def cifar() -> keras.Model:
    """Three convolutions and two dense layers for CIFAR-10."""
    model = keras.Sequential([keras.Input((32, 32, 3))])
    for filters in (32, 64):
        model.add(layers.Conv2D(filters, 3, activation="relu"))
        model.add(layers.MaxPooling2D(2))
    model.add(layers.Conv2D(64, 3, activation="relu"))
    model.add(layers.Flatten())
    model.add(layers.Dense(64, activation="relu"))
    model.add(layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(make_adam(), loss, metrics=["accuracy"])
    return model


def cifar_half() -> keras.Model:
    """``cifar`` in ``mixed_float16``."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    return cifar()


class Sampling(layers.Layer):
    """Draws from the distribution of an image."""

    def call(self, inputs: tuple[Any, Any]) -> Any:
        """Return a draw."""
        mean, variance = inputs
        return mean + tf.exp(0.5 * variance) * tf.random.normal(tf.shape(mean))


class Autoencoder(keras.Model):
    """The training step of a variational autoencoder."""

    def __init__(self, encoder: keras.Model, decoder: keras.Model) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def call(self, images: Any) -> Any:
        """Return the reconstruction."""
        return self.decoder(self.encoder(images)[2])

    def train_step(self, data: Any) -> dict[str, Any]:
        """Update the weights by reconstruction and divergence."""
        images = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            mean, variance, drawn = self.encoder(images)
            losses = keras.losses.binary_crossentropy(images, self.decoder(drawn))
            first = tf.reduce_mean(tf.reduce_sum(losses, axis=(1, 2)))
            divergence = -0.5 * (1 + variance - tf.square(mean) - tf.exp(variance))
            loss = first + tf.reduce_mean(tf.reduce_sum(divergence, axis=1))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_weights, strict=True)
        )
        return {"loss": loss}


def autoencoder(
    depth: int, filters: int, window: int, sides: tuple[int, int]
) -> keras.Model:
    """Variational autoencoder of gray images."""
    entry = x = keras.Input((*sides, 1))
    for level in range(depth):
        width = filters << level
        x = layers.Conv2D(width, window, activation="relu", padding="same")(x)
        x = layers.MaxPooling2D(2, padding="same")(x)
    flat = layers.Flatten()(x)
    inner = layers.Dense(16)(flat)
    mean, variance = layers.Dense(16)(inner), layers.Dense(16)(inner)
    drawn = Sampling()([mean, variance])
    encoder = keras.Model(entry, [mean, variance, drawn], name="encoder")
    code = keras.Input((16,))
    x = layers.Reshape(x.shape[1:])(layers.Dense(flat.shape[1])(code))
    for level in reversed(range(depth)):
        x = layers.Conv2D(filters << level, window, activation="relu", padding="same")(
            x
        )
        x = layers.UpSampling2D(2)(x)
    last = (x.shape[1] - sides[0] + 1, x.shape[2] - sides[1] + 1)
    decoder = keras.Model(
        code, layers.Conv2D(1, last, activation="sigmoid")(x), name="decoder"
    )
    model = Autoencoder(encoder, decoder)
    model(tf.zeros((1, *sides, 1)))
    model.compile(make_adam())
    return model


def autoencoder_53() -> keras.Model:
    """Five levels from 8 filters of 5 x 5 for images of 53 x 54."""
    return autoencoder(5, 8, 5, (53, 54))


def autoencoder_40() -> keras.Model:
    """Five levels from 16 filters of 3 x 3 for images of 40 x 40."""
    return autoencoder(5, 16, 3, (40, 40))


def autoencoder_40_flat() -> keras.Model:
    """Four levels from 16 filters of 3 x 3 for images of 40 x 40."""
    return autoencoder(4, 16, 3, (40, 40))


def autoencoder_40_narrow() -> keras.Model:
    """Five levels from 8 filters of 3 x 3 for images of 40 x 40."""
    return autoencoder(5, 8, 3, (40, 40))


def resnet101() -> keras.Model:
    """ResNet101 for ImageNet."""
    with fused_batch_norm():
        model = keras.applications.ResNet101(weights=None)
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy"
    )
    return model


def bert(width: int, depth: int, heads: int, tokens: int) -> keras.Model:
    """BERT for the classification of sentences, as ``google-research/bert`` fine-tunes it."""
    ids = keras.Input((tokens,), dtype="int32")
    positions = layers.Embedding(512, width)(keras.ops.arange(tokens)[None])
    values = layers.Embedding(30522, width)(ids) + positions
    values = layers.Dropout(0.1)(layers.LayerNormalization(epsilon=1e-12)(values))
    for _ in range(depth):
        attention = layers.MultiHeadAttention(heads, width // heads, dropout=0.1)
        mixed = layers.Dropout(0.1)(attention(values, values))
        values = layers.LayerNormalization(epsilon=1e-12)(values + mixed)
        inner = layers.Dense(4 * width, activation="gelu")(values)
        inner = layers.Dropout(0.1)(layers.Dense(width)(inner))
        values = layers.LayerNormalization(epsilon=1e-12)(values + inner)
    pooled = layers.Dropout(0.1)(layers.Dense(width, activation="tanh")(values[:, 0]))
    model = keras.Model(ids, layers.Dense(2)(pooled))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(2e-5, global_clipnorm=1.0), loss)
    return model


def _name_berts() -> None:
    """Define ``bert_base_64`` to ``bert_large_512``, one model for each length of a sentence."""
    for name, sizes in (("base", (768, 12, 12)), ("large", (1024, 24, 16))):
        for tokens in (64, 128, 256, 320, 384, 512):

            def make(
                sizes: tuple[int, int, int] = sizes, tokens: int = tokens
            ) -> keras.Model:
                return bert(*sizes, tokens)

            globals()[f"bert_{name}_{tokens}"] = make


_name_berts()
