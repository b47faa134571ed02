"""Keras models of kinds that the files beside this one lack: other layers, policies and train steps."""

from __future__ import annotations

from typing import Any

import keras  # noqa: TID253
import tensorflow as tf  # noqa: TID253
from keras import layers  # noqa: TID253


def grouped_attention() -> keras.Model:
    """A decoder of tokens: causal attention whose heads share keys, RMS norms, gated feed-forward."""
    tokens = keras.Input((48,), dtype="int32")
    x = layers.Embedding(800, 64)(tokens)
    for _ in range(2):
        y = layers.RMSNormalization()(x)
        y = layers.GroupQueryAttention(16, 4, 2)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.RMSNormalization()(x)
        y = layers.Multiply()(
            [layers.Dense(160, activation="silu")(y), layers.Dense(160)(y)]
        )
        x = layers.Add()([x, layers.Dense(64)(y)])
    return keras.Model(tokens, layers.Dense(800)(layers.RMSNormalization()(x)))


class SpectralDecoder(keras.Model):
    """Sound made from a code; its widening convolutions are normalised by their spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = [
            layers.Conv1D(w, 8, strides=4, padding="same") for w in (16, 32, 48)
        ]
        self.widen = [
            layers.SpectralNormalization(
                layers.Conv1DTranspose(w, 8, strides=4, padding="same")
            )
            for w in (32, 16, 1)
        ]

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return the sound."""
        x = inputs
        for layer in self.narrow:
            x = keras.ops.leaky_relu(layer(x))
        for layer in self.widen:
            x = keras.ops.tanh(layer(x, training=training))
        return x

    def train_step(self, data: Any) -> dict[str, Any]:
        """Learn the sound itself, and that its differences in time are as large."""
        sound = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            made = self(sound, training=True)
            steps = tf.abs(sound[:, 1:] - sound[:, :-1]) - tf.abs(
                made[:, 1:] - made[:, :-1]
            )
            loss = tf.reduce_mean(tf.square(sound - made)) + tf.reduce_mean(
                tf.square(steps)
            )
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def spectral_sound() -> keras.Model:
    model = SpectralDecoder()
    model(tf.zeros((1, 1024, 1)))
    model.compile(optimizer=keras.optimizers.RMSprop(1e-4), jit_compile=False)
    return model


def frames_convlstm() -> keras.Model:
    frames = keras.Input((6, 20, 20, 2))
    x = layers.ConvLSTM2D(12, 3, padding="same", return_sequences=True)(frames)
    x = layers.ConvLSTM2D(8, 3, padding="same")(layers.BatchNormalization()(x))
    x = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(frames, layers.Conv2D(1, 1)(x))


def augmented_bytes() -> keras.Model:
    """Images of bytes, turned and mirrored in the graph, then depthwise convolutions."""
    image = keras.Input((36, 36, 3), dtype="uint8")
    x = layers.Rescaling(1 / 127.5, offset=-1)(image)
    x = layers.RandomFlip("horizontal")(x)
    x = layers.RandomTranslation(0.1, 0.1)(x)
    x = layers.RandomContrast(0.2)(x)
    for width in (24, 48):
        x = layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.Activation("relu")(layers.GroupNormalization(6)(x))
        x = layers.DepthwiseConv2D(5, padding="same", depth_multiplier=2)(x)
        x = layers.PReLU(shared_axes=[1, 2])(layers.Conv2D(width, 1)(x))
    return keras.Model(
        image, layers.Dense(8)(layers.Flatten()(layers.MaxPooling2D(2)(x)))
    )


class Distiller(keras.Model):
    """A small network that learns what a larger one says."""

    def __init__(self) -> None:
        super().__init__()

        def classifier(width: int, depth: int) -> keras.Model:
            image = keras.Input((24, 24, 3))
            x = image
            for _ in range(depth):
                x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
                x = layers.LayerNormalization()(layers.MaxPooling2D(2)(x))
            return keras.Model(
                image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
            )

        self.teacher, self.student = classifier(48, 3), classifier(16, 2)
        self.teacher.trainable = False

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return what the small network says."""
        return self.student(inputs, training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Follow the labels and the teacher."""
        images, labels = data
        taught = tf.nn.softmax(self.teacher(images, training=False) / 4.0)
        with tf.GradientTape() as tape:
            said = self.student(images, training=True)
            hard = self.compute_loss(images, labels, said)
            soft = tf.reduce_mean(
                keras.losses.kl_divergence(taught, tf.nn.softmax(said / 4.0))
            )
            loss = 0.2 * hard + 16.0 * soft
        weights = self.student.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def distiller() -> keras.Model:
    model = Distiller()
    model(tf.zeros((1, 24, 24, 3)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Lion(1e-4), loss=loss, jit_compile=False)
    return model


def double_precision() -> keras.Model:
    """All in float64."""
    series = keras.Input((64, 6), dtype="float64")
    x = series
    for width in (24, 32):
        x = layers.Conv1D(
            width, 5, padding="same", activation="softplus", dtype="float64"
        )(x)
        x = layers.LayerNormalization(dtype="float64")(x)
    x = layers.Flatten(dtype="float64")(x)
    x = layers.Dense(96, activation="tanh", dtype="float64")(x)
    return keras.Model(series, layers.Dense(3, dtype="float64")(x))


def accumulated_clipped() -> keras.Model:
    """Gradients of four batches are summed, then cut by their norm."""
    image = keras.Input((28, 28, 1))
    x = image
    for width in (12, 24, 48):
        x = layers.Conv2D(width, 3, padding="same")(x)
        x = layers.UnitNormalization()(layers.Activation("gelu")(x))
        x = layers.AveragePooling2D(2)(x)
    x = layers.Dense(256, activation="gelu")(layers.Flatten()(x))
    model = keras.Model(image, layers.Dense(10)(x))
    rule = keras.optimizers.AdamW(
        1e-3, gradient_accumulation_steps=4, global_clipnorm=1.0
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=rule, loss=loss, jit_compile=False)
    return model


def half_residual() -> keras.Model:
    """Mixed precision: bfloat16 but for the weights and the last layer."""
    policy = keras.DTypePolicy("mixed_bfloat16")
    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(24, 3, padding="same", dtype=policy)(image)
    for _ in range(3):
        y = layers.Conv2D(24, 3, padding="same", activation="relu", dtype=policy)(x)
        y = layers.Conv2D(24, 3, padding="same", dtype=policy)(y)
        x = layers.Activation("relu", dtype=policy)(layers.Add(dtype=policy)([x, y]))
    x = layers.GlobalAveragePooling2D(dtype=policy)(x)
    return keras.Model(image, layers.Dense(10, dtype="float32")(x))


def volumes() -> keras.Model:
    """Volumes made smaller and larger again."""
    volume = keras.Input((16, 16, 16, 1))
    x = layers.Conv3D(8, 3, strides=2, padding="same", activation="elu")(volume)
    x = layers.Conv3D(16, 3, strides=2, padding="same", activation="elu")(x)
    x = layers.SpatialDropout3D(0.2)(x)
    x = layers.Conv3DTranspose(8, 3, strides=2, padding="same", activation="elu")(x)
    x = layers.UpSampling3D(2)(x)
    return keras.Model(volume, layers.Conv3D(1, 3, padding="same")(x))


def factors() -> keras.Model:
    """Tables of many fields, each pair of them multiplied, then cross layers."""
    fields = keras.Input((14,), dtype="int32")
    x = layers.Embedding(5000, 16)(fields)
    square = keras.ops.square(keras.ops.sum(x, axis=1))
    pairs = square - keras.ops.sum(keras.ops.square(x), axis=1)
    scores = keras.ops.einsum("bfe,bge->bfg", x, x)
    flat = layers.Concatenate()([layers.Flatten()(x), pairs, layers.Flatten()(scores)])
    y = flat
    for _ in range(2):
        y = layers.Add()(
            [layers.Multiply()([flat, layers.Dense(flat.shape[-1])(y)]), y]
        )
    return keras.Model(
        fields, layers.Dense(1, activation="sigmoid")(layers.Dropout(0.1)(y))
    )


def convnext() -> keras.Model:
    return keras.applications.ConvNeXtTiny(
        weights=None, input_shape=(32, 32, 3), classes=10
    )
