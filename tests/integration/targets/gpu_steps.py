"""Steps to estimate for a GPU, and the graphs of the CPU's own executor to hold ours against."""

from tempfile import TemporaryDirectory

import keras  # noqa: TID253
import tensorflow as tf  # noqa: TID253

layers = keras.layers


def cnn():
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    x = layers.BatchNormalization()(layers.Conv2D(32, 3, strides=2, padding="same")(x))
    x = layers.MaxPooling2D()(layers.ReLU()(x))
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(x), name="cnn")
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def transformer():
    tokens = keras.Input((32,), dtype="int32")
    x = layers.Embedding(500, 64)(tokens)
    y = layers.MultiHeadAttention(4, 16)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(x + y)
    x = layers.LayerNormalization()(
        x + layers.Dense(64)(layers.Dense(128, activation="gelu")(x))
    )
    return keras.Model(tokens, layers.Dense(500)(x), name="transformer")


def compiled_tokens():
    """A compiled step: XLA takes the tokens on the card, though ``int32`` lies on the host."""
    tokens = keras.Input((4096,), dtype="int32")
    x = layers.GlobalMaxPooling1D()(layers.Embedding(300, restored_width())(tokens))
    model = keras.Model(tokens, layers.Dense(4)(x), name="tokens")
    model.compile(
        "sgd",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True,
    )
    # as a file does that trains when it is imported
    model.fit(tf.zeros((2, 4096), tf.int32), tf.zeros(2), verbose=0)
    model.get_weights()
    return model


def restored_width():
    """Return a number from a checkpoint that a variable of the card restores."""
    with tf.device("CPU:0"):
        saved = tf.train.Checkpoint(width=tf.Variable(8.0))

    restored = tf.train.Checkpoint(width=tf.Variable(0.0))
    with TemporaryDirectory() as folder:
        restored.read(saved.write(f"{folder}/width"))

    return int(restored.width.numpy())


class BroadcastKernel(layers.Layer):
    """Its gradient has the kernel's shape for each example, before it is summed."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4096))

    def call(self, x):
        return tf.matmul(x, self.kernel)


def broadcast_kernel():
    """A compiled step whose products find no memory for XLA's trials."""
    rows = keras.Input((4, 4096))
    model = keras.Model(
        rows, layers.Dense(1)(BroadcastKernel()(rows)), name="broadcast"
    )
    model.compile("adam", "mse", jit_compile=True)
    return model


def scaled_table():
    """A table's gradient is a few rows: the host puts what is finite of them in its place."""
    keras.config.set_dtype_policy("mixed_float16")
    tokens = keras.Input((40,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(9000, 512)(tokens))
    model = keras.Model(tokens, layers.Dense(4, dtype="float32")(x), name="scaled")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def recurrent():
    tokens = keras.Input((32,), dtype="int32")
    x = layers.LSTM(48)(layers.Embedding(200, 16)(tokens))
    return keras.Model(
        tokens, layers.Dense(4, activation="softmax")(x), name="recurrent"
    )


def grouped():
    """Keras compiles a grouped convolution with XLA; its gradient's function leaves axes open."""
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(32, 3, padding="same")(inputs)
    x = layers.Conv2D(32, 3, padding="same", groups=4)(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def silent():
    """As a tutorial's ``train_step``: it returns nothing, and all gradients pass one ``IdentityN``."""
    model = keras.Sequential(
        [keras.Input((512,)), *(layers.Dense(512) for _ in range(6))]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )

    return train_step, (tf.zeros((8, 512)),)


def deep():
    """A step whose block of XLA's is far larger than what any product of it needs to be tried."""
    weights = [tf.Variable(tf.zeros((1024, 1024))) for _ in range(16)]
    inputs = tf.zeros((4096, 1024))

    @tf.function(jit_compile=True)
    def step():
        with tf.GradientTape() as tape:
            x = inputs
            for weight in weights:
                x = tf.nn.relu(x @ weight)
            loss = tf.reduce_sum(x)
        for gradient, weight in zip(tape.gradient(loss, weights), weights, strict=True):
            weight.assign_sub(gradient)
        return loss

    return step


def fill(gib):
    """Return a step with one tensor of a size."""
    value = tf.Variable(1.0)

    @tf.function
    def step():
        return tf.reduce_sum(tf.fill((gib, 1 << 28), value))

    return step


def one_gib():
    return fill(1)


def twenty_gib():
    return fill(20)


def mirrored():
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((64,)), layers.Dense(256), layers.Dense(10)]
        )
        optimizer = keras.optimizers.SGD(momentum=0.9)
        optimizer.build(model.trainable_variables)

    def replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        return loss

    @tf.function
    def step(x, y):
        return strategy.reduce("sum", strategy.run(replica, args=(x, y)), axis=None)

    step.model, step.optimizer = model, optimizer
    return step, (tf.zeros((32, 64)), tf.zeros((32, 10)))


def called():
    """Return a model that is called op by op, although its ``fit`` would compile it."""
    model = keras.Sequential([keras.Input((64, 64, 3)), layers.Conv2D(64, 5)])
    model.compile(jit_compile=True)
    return model, tf.zeros((8, 64, 64, 3))
