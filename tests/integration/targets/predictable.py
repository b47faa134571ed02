"""Small steps to estimate and to trace, and some that cannot be estimated."""

import keras  # noqa: TID253
import numpy as np
import tensorflow as tf  # noqa: TID253

layers = keras.layers


def convolutions():
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(24, 3, padding="same", activation="relu")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(48, 3, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def dictionary():
    image = keras.Input((64, 64, 3), name="image")
    words = keras.Input((32,), dtype="int32", name="words")
    seen = layers.Conv2D(16, 3, activation="relu")(image)
    read = layers.Embedding(5000, 64)(words)
    both = [
        layers.GlobalAveragePooling2D()(seen),
        layers.GlobalAveragePooling1D()(read),
    ]
    outputs = layers.Dense(10, activation="softmax")(layers.Concatenate()(both))
    model = keras.Model({"image": image, "words": words}, {"class": outputs})
    model.compile("adam", {"class": "sparse_categorical_crossentropy"})
    return model


def step():
    model = keras.Sequential(
        [keras.Input((40,)), layers.Dense(600, activation="relu"), layers.Dense(1)]
    )
    optimizer = keras.optimizers.SGD()

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    step.model, step.optimizer = model, optimizer
    return step, (tf.random.normal((64, 40)), tf.random.normal((64, 1)))


def arrays():
    """A NumPy array comes before the tensors of a sparse one, and the step captures a third."""
    shifts = tf.constant(np.ones((1000, 64), "float32"))
    table = keras.Variable(tf.random.normal((16, 64)))
    optimizer = keras.optimizers.Nadam()

    @tf.function(autograph=False)
    def step(features, adjacency, target):
        with tf.GradientTape() as tape:
            rows = tf.sparse.sparse_dense_matmul(adjacency, features @ table)
            loss = tf.reduce_mean((tf.nn.relu(rows + shifts)[:30, 0] - target) ** 2)
        optimizer.apply(tape.gradient(loss, [table]), [table])
        return loss

    step.optimizer = optimizer
    pairs = tf.stack([tf.range(1000, dtype=tf.int64)] * 2, axis=1)
    adjacency = tf.SparseTensor(pairs, tf.random.normal((1000,)), (1000, 1000))
    return step, (np.ones((1000, 16), "float32"), adjacency, np.ones(30, "float32"))


def reading():
    """A step that takes its batches from an iterator, whose type does not state their size."""
    model = keras.Sequential(
        [keras.Input((64,)), layers.Dense(300, activation="relu"), layers.Dense(1)]
    )
    rows = tf.data.Dataset.range(5000).map(
        lambda n: tf.fill((64,), tf.cast(n, tf.float32))
    )
    iterator = iter(rows.shuffle(2000).repeat().batch(32))

    @tf.function(autograph=False)
    def step(batches):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(next(batches), training=True) ** 2)
        for variable, change in zip(
            model.trainable_variables,
            tape.gradient(loss, model.trainable_variables),
            strict=True,
        ):
            variable.assign_sub(0.01 * change)
        return loss

    step.model = model
    return step, (iterator,)


def accumulating():
    model = keras.Sequential(
        [keras.Input((500,)), layers.Dense(400, activation="relu"), layers.Dense(10)]
    )
    model.compile(keras.optimizers.Adam(gradient_accumulation_steps=2), "mse")
    return model


def enormous():
    size = 1 << 17
    model = keras.Sequential(
        [keras.Input((size,)), *(layers.Dense(size) for _ in range(2))]
    )
    model.compile(keras.optimizers.SGD(), "mse")
    return model


def eager():
    model = convolutions()
    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
    return model


class Called(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = layers.Dense(300, activation="relu")
        self.last = layers.Dense(7)

    def call(self, inputs):
        return self.last(self.first(inputs))


def called():
    model = Called()
    model(tf.zeros((1, 50)))
    model.compile("adam", "mse")
    return model


def inference():
    return convolutions()
