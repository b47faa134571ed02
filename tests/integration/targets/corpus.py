"""Small targets of many forms, as people write them; imported by the traced process only."""

# ruff: noqa: TID253

import tempfile

import keras
import numpy as np
import tensorflow as tf

LAYERS = keras.layers
OPS = keras.ops


def network(name="network"):
    return keras.Sequential(
        [
            keras.Input((16,), name="features"),
            LAYERS.Dense(32, activation="relu"),
            LAYERS.Dense(4),
        ],
        name=name,
    )


def step_of(trained, optimizer, loss_of, update=None):
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        variables = trained.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        if update is not None:
            update()
        return loss

    return step, (tf.zeros((8, 16)), tf.zeros((8, 4)))


def moving_average():
    trained, average = network(), network("average")
    average.set_weights(trained.get_weights())

    def update():
        for old, new in zip(average.variables, trained.variables, strict=True):
            old.assign(0.99 * old + 0.01 * new)

    return step_of(
        trained,
        keras.optimizers.Adam(),
        lambda x, y: tf.reduce_mean((trained(x) - y) ** 2),
        update,
    )


def target_network():
    trained = network()
    target = keras.models.clone_model(trained)
    target.set_weights(trained.get_weights())
    return step_of(
        trained,
        keras.optimizers.RMSprop(momentum=0.9),
        lambda x, y: tf.reduce_mean((trained(x) - y - 0.9 * target(x)) ** 2),
    )


def loaded_weights():
    made = network()
    with tempfile.TemporaryDirectory() as folder:
        made.save_weights(f"{folder}/a.weights.h5")
        made.load_weights(f"{folder}/a.weights.h5")
    return made


def checkpoint():
    made = network()
    made.compile("adam", "mse", jit_compile=False)
    made.optimizer.build(made.trainable_variables)
    with tempfile.TemporaryDirectory() as folder:
        kept = tf.train.Checkpoint(model=made, optimizer=made.optimizer)
        kept.restore(kept.write(f"{folder}/a")).expect_partial()
    return made


def reads_and_assigns():
    made = network()
    kernel = made.layers[0].kernel
    assert kernel.numpy().shape == np.array(kernel).shape == (16, 32)
    values = kernel.numpy()
    values[:] = 1.0
    kernel.assign(values)
    kernel.assign(made.layers[0].kernel * 0.5)
    kernel.assign_add(np.ones((16, 32), np.float32))
    kernel.value.assign(tf.ones((16, 32)))
    made.predict(np.zeros((2, 16), np.float32), verbose=0)
    return made


def wrong_values():
    made = network()
    made.layers[0].kernel.assign(np.zeros((3, 3), np.float32))
    return made


def lazy_slots():
    trained = network()
    optimizer = keras.optimizers.AdamW()
    return step_of(
        trained, optimizer, lambda x, y: tf.reduce_mean((trained(x) - y) ** 2)
    )


def large_constant():
    """A step of few bytes with a number that 64 signed bits cannot hold."""

    @tf.function
    def step(x):
        key = tf.constant((1 << 64) - 1, tf.uint64)
        mixed = tf.bitwise.bitwise_xor(key, tf.cast(x[0], tf.uint64))
        return tf.cond(tf.reduce_sum(x) > 0, lambda: mixed, lambda: key)

    return step, (tf.ones(4),)


def plain_module():
    class Linear(tf.Module):
        def __init__(self):
            self.kernel = tf.Variable(tf.random.normal((16, 4)))
            self.slot = tf.Variable(lambda: tf.zeros((16, 4)), trainable=False)
            self.average = tf.train.ExponentialMovingAverage(0.9)
            self.average.apply([self.kernel])

    made = Linear()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ made.kernel - y) ** 2)
        made.slot.assign(0.9 * made.slot + tape.gradient(loss, made.kernel))
        made.kernel.assign_sub(0.1 * made.slot)
        made.average.apply([made.kernel])
        return loss

    return step, (tf.zeros((8, 16)), tf.zeros((8, 4)))


def variables_in_the_step():
    kept = []

    @tf.function
    def step(x):
        if not kept:
            kept.append(tf.Variable(lambda: tf.random.normal((16, 256))))
            kept.append(tf.Variable(tf.zeros((256,))))
        return tf.reduce_sum(x @ kept[0] + kept[1])

    return step, (tf.zeros((8, 16)),)


def dict_inputs():
    left = keras.Input((16,), name="left")
    words = keras.Input((6,), dtype="int32", name="words")
    known = LAYERS.Flatten()(LAYERS.Embedding(50, 8)(words))
    both = LAYERS.Concatenate()([left, known])
    return keras.Model(
        {"left": left, "words": words},
        {
            "score": LAYERS.Dense(1, activation="sigmoid")(both),
            "class": LAYERS.Dense(5, activation="softmax")(both),
            "best": OPS.argmax(both, axis=-1),
        },
    )


def nested_outputs():
    words = keras.Input((6,), dtype="int32")
    states = LAYERS.LSTM(8, return_sequences=True, return_state=True)(
        LAYERS.Embedding(50, 8)(words)
    )
    return keras.Model(words, [LAYERS.Dense(50)(states[0]), [states[1], states[2]]])


class Speech(keras.Model):
    """Audio and words in, scores and hidden states out, as speech models have them."""

    def __init__(self):
        super().__init__(name="speech")
        self.encoder = LAYERS.Conv1D(8, 3, padding="same")
        self.embedding = LAYERS.Embedding(50, 8)
        self.attention = LAYERS.Attention()
        self.head = LAYERS.Dense(50)

    def call(self, inputs):
        heard = self.encoder(inputs["audio"])
        words = self.attention([self.embedding(inputs["words"]), heard])
        return {
            "logits": self.head(words),
            "hidden": (heard, words),
            "loss": OPS.mean(words),
        }


def speech():
    made = Speech()
    made(
        {"audio": np.zeros((1, 10, 4), np.float32), "words": np.zeros((1, 6), np.int32)}
    )
    return made


def unbuilt_speech():
    return Speech()


class Unbuilt(keras.Model):
    def __init__(self):
        super().__init__(name="unbuilt")
        self.inner = LAYERS.Dense(4)

    def call(self, x):
        return self.inner(x)


class TwoArguments(Unbuilt):
    def call(self, x, y):
        return self.inner(x) + y


def two_arguments():
    return TwoArguments()


def without_input():
    return keras.Sequential([LAYERS.Dense(8), LAYERS.Dense(4)])


def text():
    words = keras.Input((5,), dtype="string", name="words")
    looked_up = LAYERS.StringLookup(vocabulary=["a", "b", "c"])(words)
    pooled = LAYERS.GlobalAveragePooling1D()(LAYERS.Embedding(8, 4)(looked_up))
    return keras.Model(words, LAYERS.Dense(1)(pooled))


def sparse():
    features = keras.Input((40,), sparse=True, name="features")
    return keras.Model(features, LAYERS.Dense(3)(features))


def scalar_output():
    features = keras.Input((16,))
    return keras.Model(features, OPS.mean(LAYERS.Dense(4)(features)))


class LastPlace(keras.layers.Layer):
    """Says of its result what it knew when it was built: nothing of the batch."""

    def build(self, shape):
        self.remembered = (shape[0], shape[-1])

    def call(self, features):
        return features[:, -1, :]

    def compute_output_shape(self, shape):
        return self.remembered


def remembers_its_shape():
    words = keras.Input((10,), dtype="int32")
    return keras.Model(
        words, LAYERS.Dense(3)(LastPlace()(LAYERS.Embedding(8, 4)(words)))
    )


def whole_numbers_out():
    features = keras.Input((16,))
    return keras.Model(features, OPS.argmax(LAYERS.Dense(4)(features), axis=-1))


def nothing_to_train():
    return keras.Sequential([keras.Input((8, 8, 3)), LAYERS.Rescaling(1 / 255.0)])


def augmented():
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            LAYERS.RandomFlip(),
            LAYERS.RandomRotation(0.1),
            LAYERS.Conv2D(4, 3),
            LAYERS.Dropout(0.5),
            LAYERS.GlobalAveragePooling2D(),
            LAYERS.Dense(3, activation="softmax"),
        ]
    )


class Autoencoder(keras.Model):
    """Works out its own loss from what it is fed, which has no labels."""

    def __init__(self):
        super().__init__(name="autoencoder")
        self.encoder, self.decoder = LAYERS.Dense(4), LAYERS.Dense(16)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        return self.decoder(self.encoder(x))

    def train_step(self, data):
        if isinstance(data, tuple):
            data = data[0]
        with tf.GradientTape() as tape:
            noise = keras.random.normal(tf.shape(data), seed=self.seeds)
            loss = tf.reduce_mean((self(data + noise) - data) ** 2)
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        return {"loss": loss}


def autoencoder():
    made = Autoencoder()
    made.build((None, 16))
    made.compile(optimizer="adam", jit_compile=False)
    return made


class Adversarial(keras.Model):
    def __init__(self):
        super().__init__(name="adversarial")
        self.critic, self.maker = (
            network("critic"),
            keras.Sequential([LAYERS.Dense(16)]),
        )

    def compile(self, critics, makers):
        super().compile(jit_compile=False)
        self.critics, self.makers = critics, makers

    def call(self, x):
        return self.critic(self.maker(x))

    def train_step(self, data):
        (real,) = data
        with tf.GradientTape(persistent=True) as tape:
            made = self.critic(self.maker(real))
            difference = tf.reduce_mean(made) - tf.reduce_mean(self.critic(real))
        for part, optimizer in ((self.critic, self.critics), (self.maker, self.makers)):
            variables = part.trainable_variables
            optimizer.apply(tape.gradient(difference, variables), variables)
        return {"difference": difference}


def adversarial():
    made = Adversarial()
    made.build((None, 16))
    made.compile(keras.optimizers.Adam(), keras.optimizers.Adam())
    return made


def model_and_inputs():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), tf.ones((8, 4))


def eager_step():
    step, args = target_network()
    return step.python_function, args


def run_eagerly():
    made = network()
    made.compile("adam", "mse", run_eagerly=True)
    return made


def inverts_its_weights():
    made = keras.Sequential([keras.Input((16,)), LAYERS.Dense(16)])
    made.layers[0].kernel.assign(np.linalg.inv(made.layers[0].kernel.numpy()))
    return made


def needs_width(width):
    return network(name=f"of_{width}")


def loads_data():
    with open("train.csv") as file:
        return network(name=file.name)


def of_another_version():
    import keras.layers.experimental  # noqa: F401


def fails():
    return network(name=1 / 0)
