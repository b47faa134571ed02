"""Steps with one costly line each, and the same steps with that line mended."""

from contextlib import nullcontext

import keras  # noqa: TID253
import tensorflow as tf  # noqa: TID253

ROWS, WIDTH = 1024, 512


def draw(*shape):
    return tf.random.stateless_uniform(shape, (1, 2))


def pairs(lacks_axis=True):
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


def pairs_mended():
    return pairs(False)


def eager_pairs(target=pairs):
    step, inputs = target()
    return step.python_function, inputs


def eager_pairs_mended():
    return eager_pairs(pairs_mended)


def eager_unrolled():
    return eager_pairs(unrolled)


def eager_unrolled_mended():
    return eager_pairs(unrolled_mended)


def jacobian(name="jacobian"):
    """Return a step that takes the derivatives of a layer, also across examples or not."""
    weights = tf.Variable(draw(32, 64))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x @ weights)
        return tf.reduce_sum(getattr(tape, name)(y, x))

    return step, (draw(64, 32),)


def jacobian_mended():
    return jacobian("batch_jacobian")


def eager_jacobian():
    return eager_pairs(jacobian)


def eager_jacobian_mended():
    return eager_pairs(jacobian_mended)


def descend(loss_of, weights, x):
    """Return a step that trains one variable."""

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x)
        slope = tape.gradient(loss, weights)
        is_sparse = isinstance(slope, tf.IndexedSlices)
        (weights.scatter_sub if is_sparse else weights.assign_sub)(slope)
        return loss

    return step, (x,)


def projection(multiply):
    """Return a step that applies a kernel to a batch of matrices."""
    kernel = tf.Variable(draw(WIDTH, WIDTH))
    return descend(
        lambda kernel, x: tf.reduce_sum(multiply(x, kernel)),
        kernel,
        draw(64, 4, WIDTH),
    )


def kernel():
    return projection(tf.matmul)


def kernel_mended():
    return projection(lambda x, kernel: tf.tensordot(x, kernel, 1))


def solved():
    return projection(lambda x, a: tf.linalg.triangular_solve(a, x[:, 0, :, None]))


def solved_mended():
    return projection(lambda x, a: tf.linalg.triangular_solve(a, tf.transpose(x[:, 0])))


def repeated_use(apply):
    """Return a step that uses one weight for each of 48 slices."""
    return descend(apply, tf.Variable(draw(WIDTH, WIDTH)), draw(48, 4, WIDTH))


def unrolled():
    return repeated_use(
        lambda weights, x: tf.add_n(
            [tf.reduce_sum(tf.nn.relu(part @ weights)) for part in tf.unstack(x)]
        )
    )


def unrolled_mended():
    return repeated_use(
        lambda weights, x: tf.reduce_sum(tf.nn.relu(tf.tensordot(x, weights, 1)))
    )


def sliced(cut=lambda x: [x[:, begin : begin + 64] for begin in range(0, WIDTH, 64)]):
    """Return a step that reads slices of a product."""
    return descend(
        lambda weights, x: tf.add_n(
            [tf.reduce_sum(tf.nn.relu(part)) for part in cut(x @ weights)]
        ),
        tf.Variable(draw(WIDTH, WIDTH)),
        draw(4 * ROWS, WIDTH),
    )


def sliced_mended():
    return sliced(lambda x: tf.split(x, WIDTH // 64, axis=1))


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


def distilled(is_outside=False, wrap=lambda call: call):
    """Return an eager step whose tape records a teacher that is not trained."""
    teacher, student = (
        keras.Sequential([keras.layers.Dense(width, "relu"), keras.layers.Dense(4)])
        for width in (WIDTH, 16)
    )
    call = wrap(lambda x: teacher(x))

    def step(x):
        with tf.GradientTape() as tape:
            with tape.stop_recording() if is_outside else nullcontext():
                target = call(x)
            loss = tf.reduce_mean(tf.square(target - student(x)))
        gradients = tape.gradient(loss, student.trainable_variables)
        for variable, gradient in zip(
            student.trainable_variables, gradients, strict=True
        ):
            variable.assign_sub(gradient)

    return step, (draw(4 * ROWS, 64),)


def distilled_mended():
    return distilled(True)


def guessed():
    return distilled(False, tf.function)


def guessed_mended():
    return distilled(True, tf.function)


def classifier(convert, images):
    """Return a step of a dense layer on images."""
    return descend(
        lambda weights, x: tf.reduce_sum(tf.nn.relu(convert(x) @ weights)),
        tf.Variable(draw(WIDTH, 4)),
        images,
    )


def converted():
    images = tf.cast(draw(16 * ROWS, WIDTH), "uint8")
    return classifier(lambda x: tf.cast(x, "float32") / 255, images)


def converted_mended():
    return classifier(lambda x: x, draw(16 * ROWS, WIDTH))


def built(optimizer, loss, *layers):
    model = keras.Sequential(layers)
    model.compile(optimizer, loss)
    return model


def volumes(length=100):
    """Return a model of one volume."""
    return built(
        "sgd",
        "mse",
        keras.Input((length, length, length, 1), 1),
        keras.layers.Conv3D(4, 3, padding="same"),
        keras.layers.Conv3D(1, 1),
    )


def volumes_mended():
    return volumes(79)  # 0.49 of the voxels


def table(optimizer="adagrad"):
    """Return a model whose optimizer computes over all rows of a table, or not."""
    return built(
        optimizer,
        "mse",
        keras.Input((16,), dtype="int32"),
        keras.layers.Embedding(50_000, 64),
        keras.layers.GlobalAveragePooling1D(),
    )


def table_mended():
    return table("sgd")


def normalized(late=True):
    """Return a step that normalizes a table, or the rows that it looks up."""

    def loss(table, ids):
        if late:
            rows = tf.gather(tf.nn.l2_normalize(table, 1), ids)
        else:
            rows = tf.nn.l2_normalize(tf.gather(table, ids), 1)
        return tf.reduce_mean(tf.tanh(rows))

    return descend(loss, tf.Variable(draw(100_000, 64)), tf.range(ROWS))


def normalized_mended():
    return normalized(False)


def penalized(read=lambda table, ids: table):
    """Return a step with a penalty of a whole table, or of the rows that it looks up."""
    return descend(
        lambda table, ids: (
            tf.nn.l2_loss(read(table, ids)) - tf.reduce_sum(tf.gather(table, ids))
        ),
        tf.Variable(draw(100_000, 64)),
        tf.range(ROWS),
    )


def penalized_mended():
    return penalized(read=tf.gather)


def scaled(loss):
    """Return a step that trains one vector, table or matrix of weights."""
    return descend(
        lambda weights, x: tf.reduce_mean(tf.tanh(loss(weights, x))),
        tf.Variable(draw(4 * ROWS, 64)),
        draw(4 * ROWS, 64),
    )


def diagonal():
    return scaled(lambda weights, x: tf.linalg.diag(weights[:, 0]) @ x)


def diagonal_mended():
    return scaled(lambda weights, x: weights[:, :1] * x)


def masked(column=0):
    return scaled(
        lambda weights, x: (
            tf.cast(x[:2048, column] > x[:2048, 1:2], "float32") * weights[:2048, :1]
        )
    )


def masked_mended():
    return masked(slice(1))


def tiled():
    def distance(weights, x):
        columns = tf.tile((x[:256] + weights[:256])[:, None], [1, 256, 1])
        return tf.reduce_sum(tf.square(columns - x[:256]), 2)

    return scaled(distance)


def tiled_mended():
    return scaled(lambda weights, x: (x + weights)[:256] @ tf.transpose(x[:256]))


def kernels(average=lambda mean, x: mean(x)):
    """Return a step with a mean over all pairs of rows, at once or in blocks."""

    @tf.function
    def step(x):
        return average(
            lambda rows: tf.reduce_mean(tf.exp(1 - rows @ tf.transpose(x))), x
        )

    return step, (draw(4 * ROWS, 64),)


def kernels_mended():
    return kernels(
        lambda mean, x: tf.reduce_mean(tf.map_fn(mean, tf.reshape(x, (16, -1, 64))))
    )


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
        for _ in range(6):
            x = activate(x @ weights[:64])
        return x

    return scaled(layers)


def looped(wrap=lambda body: body):
    """Return a step with a loop of 64 trips, each with a large result."""
    body = wrap(lambda row, table: tf.reduce_sum(tf.tanh(row * table)))
    return scaled(
        lambda weights, x: tf.foldl(
            lambda total, row: total + body(row, weights), x[:64], 0.0
        )
    )


def looped_mended():
    return looped(tf.recompute_grad)


def called(wrap=lambda layer: layer):
    """Return a step that calls one layer six times."""
    layer = keras.layers.Dense(64, activation="gelu")
    layer.build([None, 64])
    return gated(wrap(layer))


def called_mended():
    return called(tf.recompute_grad)


def gated_mended():
    return gated(tf.nn.silu)


def flattened(width=16_384, pool=lambda x: tf.reshape(x, (4, 16_384))):
    """Return a step that multiplies all numbers of images with one matrix, or their means."""
    return descend(
        lambda weights, x: tf.reduce_mean(
            pool(tf.nn.max_pool2d(x, 2, 2, "SAME")) @ weights
        ),
        tf.Variable(draw(width, 256)),
        draw(4, 64, 64, 16),
    )


def flattened_mended():
    return flattened(16, lambda x: tf.reduce_mean(x, (1, 2)))


def widened(width=2048):
    """Return an autoencoder with a first layer as wide as its features, or a narrow one."""
    layers = [keras.layers.Dense(units) for units in (width, 32, 2048)]
    return built("adam", "mse", keras.Input((2048,), 4), *layers)


def widened_mended():
    return widened(32)


def accumulated(steps=4):
    """Return a model whose optimizer adds up the gradients of several steps, or not."""
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=steps)
    layers = [keras.layers.Dense(256) for _ in range(64)]
    return built(optimizer, "mse", keras.Input((256,), 320), *layers)


def accumulated_mended():
    return accumulated(None)


def recurrent(pool=keras.layers.Flatten):
    """Return an LSTM of all numbers of images, or of their means."""
    return built(
        "sgd",
        "mse",
        keras.Input((4, 16, 16, 64)),
        keras.layers.TimeDistributed(pool()),
        keras.layers.LSTM(64),
    )


def recurrent_mended():
    return recurrent(keras.layers.GlobalAveragePooling2D)


def pretrained(trains_all=True):
    """Return a model with a new layer behind a loaded network, which is trained too or not."""
    layers = [keras.layers.Dense(width, "relu") for width in (*[256] * 6, 8)]
    base = keras.Sequential([keras.Input((8,), 16_384), *layers])
    base.save_weights("base.weights.h5")
    base.load_weights("base.weights.h5")
    base.trainable = trains_all

    return built("sgd", "mse", base, keras.layers.Dense(1))


def pretrained_mended():
    return pretrained(False)


def words(*front):
    """Return an LSTM of one-hot words, or of what ``front`` makes of their numbers."""
    front = front or [keras.Input((16, 8192), 64)]
    return built("sgd", "mse", *front, keras.layers.LSTM(16))


def words_mended():
    ids = keras.Input((16,), 64, dtype="int32")
    return words(ids, keras.layers.Embedding(8192, 64))


def targets(kind="Categorical", classes=60_000):
    loss = getattr(keras.losses, f"{kind}Crossentropy")(True)
    return built("sgd", loss, keras.Input((4,)), keras.layers.Dense(classes))


def targets_mended():
    return targets("SparseCategorical")


def variances(read=lambda a, b: tf.linalg.diag_part(a @ tf.transpose(b))):
    return scaled(lambda weights, x: read((x + weights)[:2048], x[:2048]))


def variances_mended():
    return variances(lambda a, b: tf.reduce_sum(a * b, 1))


def ordered(multiply=lambda a, b, c: (a @ b) @ c):
    return scaled(lambda weights, x: multiply(x, tf.transpose(weights), x))


def ordered_mended():
    return ordered(lambda a, b, c: a @ (b @ c))


def joined(copy=True):
    """Return a step that multiplies each pair of rows with one kernel, joined or apart."""

    def score(weights, x):
        rows, kernel = x[:256] * weights[128:384], weights[:128, :1]
        left, right = rows[:, None], rows[None]
        if copy:
            pairs = tf.tile(left, [1, 256, 1]), tf.tile(right, [256, 1, 1])
            return tf.tensordot(tf.concat(pairs, -1), kernel, 1)
        parts = tf.split(kernel, 2)
        return tf.tensordot(left, parts[0], 1) + tf.tensordot(right, parts[1], 1)

    return scaled(score)


def joined_mended():
    return joined(False)


def chosen(late=False):
    """Return a step that multiplies each row with one of two matrices, chosen before or after."""

    def multiply(weights, x):
        experts = tf.reshape(weights[:32], (2, 16, 64))
        rows, ids = x[:, :16], tf.argmax(x[:, :2], 1)
        if late:
            return tf.gather(tf.einsum("ti,eij->tej", rows, experts), ids, batch_dims=1)
        return tf.einsum("ti,tij->tj", rows, tf.gather(experts, ids))

    return scaled(multiply)


def chosen_mended():
    return chosen(True)


def repeated(repeat=tf.repeat):
    """Return a step that repeats one row 64 times, and each other one once."""
    counts = [64] + [1] * (4 * ROWS - 1)
    return scaled(lambda weights, x: repeat(x * weights, counts, axis=0))


def repeated_mended():
    return repeated(
        lambda x, counts, axis: tf.gather(x, tf.repeat(tf.range(len(x)), counts))
    )


def resized():
    images = tf.cast(draw(16, 512, 512, 3), "uint8")

    def convert(x):
        small = tf.image.resize(tf.cast(x, "float32") / 255, (16, 32))
        return tf.reshape(small, (-1, WIDTH))

    return classifier(convert, images)


def resized_mended():
    return classifier(lambda x: tf.reshape(x, (-1, WIDTH)), draw(16, 16, 32, 3))


def enlarged(size=(256, 256)):
    def loss(weights, x):
        y = tf.nn.conv2d(x, weights, 1, "SAME")
        return tf.reduce_mean(tf.square(tf.image.resize(y, size) - 1))

    return descend(loss, tf.Variable(draw(1, 1, 3, 16)), draw(4, 64, 64, 3))


def enlarged_mended():
    return enlarged((64, 64))
