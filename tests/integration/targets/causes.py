"""Steps with one costly line each, and the same steps with that line mended."""

import keras  # noqa: TID253
import tensorflow as tf  # noqa: TID253

ROWS, WIDTH = 1024, 512


def draw(*shape):
    return tf.random.stateless_uniform(shape, (1, 2))


def regression(lacks_axis):
    """Return a step whose labels lack the last axis of the outputs, or have it."""
    weights = tf.Variable(draw(WIDTH, 1))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - x @ weights))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    labels = draw(ROWS) if lacks_axis else draw(ROWS, 1)
    return step, (draw(ROWS, WIDTH), labels)


def pairs():
    return regression(True)


def pairs_mended():
    return regression(False)


def eagerly(target):
    step, inputs = target
    return step.python_function, inputs


def eager_pairs():
    return eagerly(pairs())


def eager_pairs_mended():
    return eagerly(pairs_mended())


def slopes(name):
    """Return a step that takes the derivatives of a layer, also across examples or not."""
    weights = tf.Variable(draw(32, 64))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x @ weights)
        return tf.reduce_sum(getattr(tape, name)(y, x))

    return step, (draw(64, 32),)


def jacobian():
    return slopes("jacobian")


def jacobian_mended():
    return slopes("batch_jacobian")


def projection(multiply):
    """Return a step that multiplies a batch of matrices with a kernel."""
    kernel = tf.Variable(draw(WIDTH, WIDTH))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(multiply(x, kernel))
        kernel.assign_sub(0.1 * tape.gradient(loss, kernel))

    return step, (draw(64, 4, WIDTH),)


def kernel():
    return projection(tf.matmul)


def kernel_mended():
    return projection(lambda x, kernel: tf.tensordot(x, kernel, 1))


def repeated_use(apply):
    """Return a step that uses one weight for each of 24 slices."""
    weights = tf.Variable(draw(WIDTH, WIDTH))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = apply(x, weights)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    return step, (draw(24, 4, WIDTH),)


def unrolled():
    return repeated_use(
        lambda x, weights: tf.add_n(
            [tf.reduce_sum(tf.nn.relu(part @ weights)) for part in tf.unstack(x)]
        )
    )


def unrolled_mended():
    return repeated_use(
        lambda x, weights: tf.reduce_sum(tf.nn.relu(tf.tensordot(x, weights, 1)))
    )


def eager_unrolled():
    return eagerly(unrolled())


def eager_unrolled_mended():
    return eagerly(unrolled_mended())


def stopped(features):
    """Return an eager step that trains a head on features without gradients."""
    weights, head = tf.Variable(draw(WIDTH, WIDTH)), tf.Variable(draw(WIDTH, 1))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(features(tape, x, weights), head))
        head.assign_sub(0.1 * tape.gradient(loss, head))

    return step, (draw(4 * ROWS, WIDTH),)


def squash(x, weights):
    for _ in range(12):
        x = tf.nn.tanh(tf.matmul(x, weights))
    return x


def taped():
    return stopped(lambda tape, x, weights: tf.stop_gradient(squash(x, weights)))


def taped_mended():
    def features(tape, x, weights):
        with tape.stop_recording():
            return squash(x, weights)

    return stopped(features)


def untrained():
    return stopped(lambda tape, x, weights: squash(x, weights))


untrained_mended = taped_mended


def classifier(convert, images):
    """Return a step of a dense layer on images."""
    weights = tf.Variable(draw(WIDTH, 4))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(convert(x) @ weights))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    return step, (images,)


def converted():
    images = tf.cast(draw(16 * ROWS, WIDTH), "uint8")
    return classifier(lambda x: tf.cast(x, "float32") / 255, images)


def converted_mended():
    return classifier(lambda x: x, draw(16 * ROWS, WIDTH))


def table(optimizer="adagrad"):
    """Return a model whose optimizer computes over all rows of a table, or not."""
    tokens = keras.Input((16,), dtype="int32")
    rows = keras.layers.Embedding(50_000, 64)(tokens)
    mean = keras.layers.GlobalAveragePooling1D()(rows)
    model = keras.Model(tokens, keras.layers.Dense(2)(mean))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True))
    return model


def table_mended():
    return table("sgd")


def normalized(late=True):
    """Return a step that normalizes a table, or the rows that it looks up."""
    weights = tf.Variable(draw(100_000, 64))

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            if late:
                rows = tf.gather(tf.nn.l2_normalize(weights, 1), ids)
            else:
                rows = tf.nn.l2_normalize(tf.gather(weights, ids), 1)
            loss = tf.reduce_mean(tf.tanh(rows))
        slices = tape.gradient(loss, weights)
        if late:
            weights.assign_sub(slices)
        else:
            weights.scatter_sub(slices)

    return step, (tf.range(ROWS),)


def normalized_mended():
    return normalized(False)


def frozen_base():
    """Return a model whose convolutions have no gradients."""
    base = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Conv2D(256, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(512, activation="relu"),
        ]
    )
    base.trainable = False
    model = keras.Sequential([base, keras.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def scaled(loss):
    """Return a step that trains one vector, table or matrix of weights."""
    weights = tf.Variable(draw(4 * ROWS, 64))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            total = tf.reduce_mean(tf.tanh(loss(weights, x)))
        weights.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(total, weights)))

    return step, (draw(4 * ROWS, 64),)


def diagonal():
    return scaled(lambda weights, x: tf.linalg.diag(weights[:, 0]) @ x)


def diagonal_mended():
    return scaled(lambda weights, x: weights[:, :1] * x)


def tiled():
    def distance(weights, x):
        columns = tf.tile((x[:256] + weights[:256])[:, :, None], [1, 1, 256])
        return tf.reduce_sum(tf.square(columns - tf.transpose(columns)), 1)

    return scaled(distance)


def tiled_mended():
    def distance(weights, x):
        rows = x[:256] + weights[:256]
        return 1 - 2 * rows @ tf.transpose(rows)

    return scaled(distance)


def patched(convolve=None):
    def layer(weights, x):
        images, kernel = tf.reshape(x, (16, 32, 32, 16)), weights[:784]
        if convolve:
            return convolve(images, kernel)
        sizes = (1, 7, 7, 1), (1,) * 4, (1,) * 4
        patches = tf.image.extract_patches(images, *sizes, "SAME")
        return tf.tensordot(patches, kernel, 1)

    return scaled(layer)


def patched_mended():
    return patched(
        lambda x, w: tf.nn.conv2d(x, tf.reshape(w, (7, 7, 16, 64)), 1, "SAME")
    )


def attended(every=1):
    def attend(weights, x):
        queries, keys = (tf.reshape(one, (8, 512, 64)) for one in (x + weights, x))
        keys = keys[:, ::every]
        return tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True)) @ keys

    return scaled(attend)


def attended_mended():
    return attended(4)


def gated(activate=lambda x: x * tf.sigmoid(x)):
    def layers(weights, x):
        for _ in range(24):
            x = activate(x * weights)
        return x

    return scaled(layers)


def gated_mended():
    return gated(tf.nn.silu)


def flattened(layer=keras.layers.Flatten):
    images = keras.Input((64, 64, 16))
    pooled = keras.layers.MaxPooling2D()(images)
    model = keras.Model(images, keras.layers.Dense(256)(layer()(pooled)))
    model.compile("adam", "mse")
    return model


def flattened_mended():
    return flattened(keras.layers.GlobalAveragePooling2D)


def targets(kind="Categorical"):
    codes = keras.Input((4,))
    model = keras.Model(codes, keras.layers.Dense(60_000)(codes))
    model.compile("sgd", getattr(keras.losses, f"{kind}Crossentropy")(True))
    return model


def targets_mended():
    return targets("SparseCategorical")


def resized():
    images = tf.cast(draw(16, 512, 512, 3), "uint8")
    size = (16, 32)

    def convert(x):
        small = tf.image.resize(tf.cast(x, "float32") / 255, size)
        return tf.reshape(small, (-1, WIDTH))

    return classifier(convert, images)


def resized_mended():
    images = draw(16, 16, 32, 3)
    return classifier(lambda x: tf.reshape(x, (-1, WIDTH)), images)
