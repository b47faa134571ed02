"""Models that ``analyze fit`` was not made with: what its answers are held against real runs on."""

from __future__ import annotations

import keras  # noqa: TID253
import tensorflow as tf  # noqa: TID253
from keras import layers  # noqa: TID253


def mobilenet_v3() -> keras.Model:
    return keras.applications.MobileNetV3Small((96, 96, 3), weights=None, classes=10)


def efficientnet_v2() -> keras.Model:
    return keras.applications.EfficientNetV2B0(
        weights=None, input_shape=(64, 64, 3), classes=10
    )


def gru_text() -> keras.Model:
    tokens = keras.Input((48,), dtype="int32")
    x = layers.Embedding(2000, 48)(tokens)
    x = layers.Bidirectional(layers.GRU(40, return_sequences=True))(x)
    return keras.Model(tokens, layers.Dense(5)(layers.GRU(32)(x)))


def unet_skips() -> keras.Model:
    image = keras.Input((48, 48, 1))
    kept, x = [], image
    for width in (12, 24, 48):
        x = layers.Conv2D(width, 3, padding="same")(x)
        x = layers.Activation("relu")(layers.BatchNormalization()(x))
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    for width in (48, 24, 12):
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = layers.Concatenate()([x, kept.pop()])
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return keras.Model(image, layers.Conv2D(3, 1)(x))


def vision_transformer() -> keras.Model:
    image = keras.Input((32, 32, 3))
    x = layers.Reshape((64, 48))(layers.Conv2D(48, 4, strides=4)(image))
    for _ in range(3):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(3, 16, dropout=0.1)(y, y)])
        y = layers.Dense(96, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(48)(y)])
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def tabular() -> keras.Model:
    numbers = keras.Input((60,))
    x = numbers
    for width in (384, 192, 96):
        x = layers.Dense(width, activation="selu")(x)
        x = layers.Dropout(0.3)(layers.BatchNormalization()(x))
    return keras.Model(numbers, layers.Dense(1, activation="sigmoid")(x))


class Adversaries(keras.Model):  # type: ignore[misc]
    """A generator and a discriminator, trained in one step."""

    def __init__(self) -> None:
        critic = keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                layers.Conv2D(32, 4, strides=2, padding="same"),
                layers.LeakyReLU(0.2),
                layers.Conv2D(48, 4, strides=2, padding="same"),
                layers.LeakyReLU(0.2),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        super().__init__(critic.inputs, critic.outputs)
        self.critic = critic
        self.generator = keras.Sequential(
            [
                keras.Input((32,)),
                layers.Dense(7 * 7 * 32),
                layers.Reshape((7, 7, 32)),
                layers.Conv2DTranspose(
                    32, 4, strides=2, padding="same", activation="relu"
                ),
                layers.Conv2DTranspose(
                    1, 4, strides=2, padding="same", activation="tanh"
                ),
            ]
        )
        self.of_critic = keras.optimizers.Adam(1e-4)

    def train_step(self, data: tf.Tensor) -> dict[str, tf.Tensor]:
        """Train the critic, then the generator."""
        images = data[0] if isinstance(data, tuple) else data
        crossed = keras.losses.BinaryCrossentropy(from_logits=True)
        count = tf.shape(images)[0]
        with tf.GradientTape(persistent=True) as tape:
            made = self.generator(tf.random.normal([count, 32]), training=True)
            real, false = (
                self.critic(images, training=True),
                self.critic(made, training=True),
            )
            of_critic = crossed(tf.ones_like(real), real) + crossed(
                tf.zeros_like(false), false
            )
            of_maker = crossed(tf.ones_like(false), false)
        for loss, part, rule in (
            (of_critic, self.critic, self.of_critic),
            (of_maker, self.generator, self.optimizer),
        ):
            weights = part.trainable_variables
            rule.apply(tape.gradient(loss, weights), weights)
        return {"critic": of_critic, "generator": of_maker}


def audio() -> keras.Model:
    sound = keras.Input((2048, 1))
    x = sound
    for width in (16, 24, 32):
        x = layers.Conv1D(width, 9, strides=2, padding="same", activation="relu")(x)
        x = layers.MaxPooling1D(2)(layers.BatchNormalization()(x))
    return keras.Model(sound, layers.Dense(12)(layers.GlobalMaxPooling1D()(x)))


def separable() -> keras.Model:
    image = keras.Input((40, 40, 4))
    x = image
    for width in (16, 32, 64):
        x = layers.SeparableConv2D(width, 3, padding="same", activation="swish")(x)
        x = layers.AveragePooling2D(2)(layers.GroupNormalization(4)(x))
    return keras.Model(image, layers.Dense(6)(layers.Flatten()(x)))


def generator_pair() -> keras.Model:
    model = Adversaries()
    model.compile(optimizer=keras.optimizers.Adam(1e-4), jit_compile=False)
    return model
