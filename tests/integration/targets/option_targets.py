"""Targets that bring something of their own, for the tests of what each option does to them."""

# ruff: noqa: TID253

import keras
import tensorflow as tf

LAYERS = keras.layers


def network(batch_size=None, name="network"):
    return keras.Sequential(
        [
            keras.Input((8,), batch_size, name="features"),
            LAYERS.Dense(16),
            LAYERS.Dense(4),
        ],
        name=name,
    )


def compiled():
    made = network()
    made.compile(
        keras.optimizers.RMSprop(0.01),
        "mae",
        metrics=["mse"],
        loss_weights=[2.0],
        jit_compile=False,
    )
    return made


def scaled():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        made = network()
    finally:
        keras.config.set_dtype_policy("float32")
    made.compile("adam", "mse", jit_compile=False)
    return made


def run_eagerly():
    made = network()
    made.compile("adam", "mse", run_eagerly=True)
    return made


def two_inputs():
    left, right = keras.Input((None,), name="left"), keras.Input((None,), name="right")
    means = [tf.keras.ops.mean(one, -1, keepdims=True) for one in (left, right)]
    return keras.Model([left, right], LAYERS.Dense(2)(means[0] + means[1]))


def own_policy():
    keras.config.set_dtype_policy("float32")
    return network()


class Passing(keras.Model):
    """Trains with an optimizer and a loss of its own, whatever it is compiled with."""

    def __init__(self):
        super().__init__(name="passing")
        self.inner, self.own = LAYERS.Dense(4), keras.optimizers.SGD()

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        self.own.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        return {"loss": loss}


def step():
    trained = network()
    optimizer = keras.optimizers.Adam()

    @tf.function
    def run(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.cast(trained(x), tf.float32) - y) ** 2)
        optimizer.apply(
            tape.gradient(loss, trained.trainable_variables),
            trained.trainable_variables,
        )
        return loss

    run.model, run.optimizer = trained, optimizer
    return run, (tf.ones((8, 8)), tf.ones((8, 4)))


def eager_step():
    run, args = step()
    return run.python_function, args


@tf.function(input_signature=[tf.TensorSpec((None, 8), name="features")])
def signature(x):
    return tf.reduce_sum(x * x)


@tf.function(input_signature=[tf.TensorSpec((6, 8), name="features")])
def fixed_signature(x):
    return tf.reduce_sum(x * x)


@tf.function(
    input_signature=[
        tf.TensorSpec((None, None), tf.int32),
        (tf.TensorSpec((None, 3)), tf.TensorSpec((None, None, 2))),
    ]
)
def unnamed_signature(tokens, pair):
    return tf.shape(tokens)[0], tf.reduce_sum(pair[0]) + tf.reduce_sum(pair[1])


@tf.function
def nothing():
    return tf.ones((8, 8)) @ tf.ones((8, 8))


def saved(folder):
    made = network()
    made.export(str(folder / "saved"), verbose=False)
    made.save(folder / "model.keras")
