"""Steps in the manner of public tutorials, for the rows of ``benchmarks/phantom/cards.py``.

Loops, branches, TensorArrays, Python inside the graph, sparse and ragged inputs, nested tapes, momentum
and target networks: what training loops written by hand hold and stock networks do not. Each function
returns a compiled Keras model (run with batches of 32) or ``(tf_function, args)``.
No rule was made by them.

Figures: the rows "card" of docs/accuracy.md.
"""

# ruff: noqa: TID253

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

layers, ops = keras.layers, keras.ops
Step = tuple[Any, tuple[Any, ...]]


def _images(count: int, size: int, channels: int = 3) -> Any:
    return tf.random.normal((count, size, size, channels))


def _tokens(count: int, length: int, vocabulary: int) -> Any:
    return tf.random.uniform((count, length), 1, vocabulary, tf.int32)


def _dense(inputs: int, *widths: int, last: str | None = None) -> Any:
    *hidden, out = widths
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            *(layers.Dense(w, activation="relu") for w in hidden),
            layers.Dense(out, activation=last),
        ]
    )


def _apply(optimizer: Any, tape: Any, loss: Any, variables: Any) -> None:
    optimizer.apply_gradients(
        zip(tape.gradient(loss, variables), variables, strict=True)
    )


# -- reinforcement learning ----------------------------------------------------------------------


# -- text -----------------------------------------------------------------------------------------


def bahdanau() -> Step:
    """Seq2seq with teacher forcing in a Python loop, unrolled when traced."""
    units, vocabulary, length = 128, 3000, 12
    embed_source = layers.Embedding(vocabulary, 64)
    embed_target = layers.Embedding(vocabulary, 64)
    encoder = layers.GRU(units, return_sequences=True, return_state=True)
    decoder = layers.GRU(units, return_sequences=True, return_state=True)
    first, second, score = layers.Dense(units), layers.Dense(units), layers.Dense(1)
    out = layers.Dense(vocabulary)
    parts = [embed_source, embed_target, encoder, decoder, first, second, score, out]
    optimizer = keras.optimizers.Adam()
    compare = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="none"
    )

    def attend(query: Any, values: Any) -> Any:
        scores = score(tf.nn.tanh(first(tf.expand_dims(query, 1)) + second(values)))
        weights = tf.nn.softmax(scores, axis=1)
        return tf.reduce_sum(weights * values, axis=1)

    def decode(token: Any, state: Any, encoded: Any) -> Any:
        context = attend(state, encoded)
        x = tf.concat([tf.expand_dims(context, 1), embed_target(token)], axis=-1)
        x, state = decoder(x, initial_state=state)
        return out(tf.reshape(x, (-1, units))), state

    source, target = _tokens(24, 16, vocabulary), _tokens(24, length, vocabulary)
    encoded, state = encoder(embed_source(source))
    decode(target[:, :1], state, encoded)

    @tf.function
    def train_step(source: Any, target: Any) -> Any:
        loss = 0.0
        with tf.GradientTape() as tape:
            encoded, state = encoder(embed_source(source))
            token = target[:, :1]
            for t in range(1, length):
                logits, state = decode(token, state, encoded)
                loss += tf.reduce_mean(compare(target[:, t], logits))
                token = target[:, t : t + 1]
        variables = [v for part in parts for v in part.trainable_variables]
        _apply(optimizer, tape, loss, variables)
        return loss

    train_step.optimizer = optimizer
    return train_step, (source, target)


def miniature_gpt() -> Any:
    """Text generation with a small transformer decoder, as on keras.io."""
    entry = keras.Input((40,), dtype="int32")
    positions = ops.arange(0, 40, 1)
    x = layers.Embedding(3000, 96)(entry) + layers.Embedding(40, 96)(positions)
    attention = layers.MultiHeadAttention(2, 96)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(0.1)(attention))
    forward = layers.Dense(96)(layers.Dense(256, activation="relu")(x))
    x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(0.1)(forward))
    model = keras.Model(entry, [layers.Dense(3000)(x), x])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss=[loss, None])
    return model


class MaskedLanguageModel(keras.Model):
    def train_step(self, data: Any) -> Any:
        features, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        if weights is None:
            weights = tf.cast(features != 0, tf.float32)
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            loss = keras.losses.sparse_categorical_crossentropy(labels, predictions)
            loss = tf.reduce_sum(loss * weights) / tf.reduce_sum(weights)
        _apply(self.optimizer, tape, loss, self.trainable_variables)
        return {"loss": loss}


def masked_language() -> Any:
    """BERT from scratch with a train_step of its own."""
    entry = keras.Input((48,), dtype="int64")
    x = layers.Embedding(4000, 64)(entry) + layers.Embedding(48, 64)(ops.arange(48))
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16)(x, x, x))
        x = layers.LayerNormalization()(
            x + layers.Dense(64)(layers.Dense(128, "relu")(x))
        )
    model = MaskedLanguageModel(entry, layers.Dense(4000, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


# -- images: generative -------------------------------------------------------------------------


class VAE(keras.Model):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        entry = keras.Input((28, 28, 1))
        x = layers.Conv2D(32, 3, 2, "same", activation="relu")(entry)
        x = layers.Conv2D(64, 3, 2, "same", activation="relu")(x)
        x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
        self.encoder = keras.Model(entry, [layers.Dense(2)(x), layers.Dense(2)(x)])
        latent = keras.Input((2,))
        x = layers.Reshape((7, 7, 64))(
            layers.Dense(7 * 7 * 64, activation="relu")(latent)
        )
        x = layers.Conv2DTranspose(64, 3, 2, "same", activation="relu")(x)
        x = layers.Conv2DTranspose(32, 3, 2, "same", activation="relu")(x)
        x = layers.Conv2DTranspose(1, 3, padding="same", activation="sigmoid")(x)
        self.decoder = keras.Model(latent, x)
        self.total = keras.metrics.Mean(name="loss")
        self.seed = keras.random.SeedGenerator(1337)

    def call(self, data: Any) -> Any:
        return self.decoder(self.encoder(data)[0])

    def train_step(self, data: Any) -> Any:
        data = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            mean, log_var = self.encoder(data)
            noise = keras.random.normal(tf.shape(mean), seed=self.seed)
            made = self.decoder(mean + tf.exp(0.5 * log_var) * noise)
            crossed = keras.losses.binary_crossentropy(data, made)
            rebuilt = tf.reduce_mean(tf.reduce_sum(crossed, axis=(1, 2)))
            divergence = -0.5 * (1 + log_var - tf.square(mean) - tf.exp(log_var))
            loss = rebuilt + tf.reduce_mean(tf.reduce_sum(divergence, axis=1))
        _apply(self.optimizer, tape, loss, self.trainable_weights)
        self.total.update_state(loss)
        return {"loss": self.total.result()}


def vae() -> Step:
    model = VAE()
    optimizer = model_optimizer = keras.optimizers.Adam()
    model.compile(optimizer=model_optimizer)
    model(tf.zeros((1, 28, 28, 1)))

    @tf.function
    def train_step(data: Any) -> Any:
        return model.train_step(data)

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (_images(64, 28, 1),)


def wgan_gp() -> Step:
    """A critic trained three times with a gradient penalty (a tape in a tape), then the generator."""
    critic = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 5, 2, "same"),
            layers.LeakyReLU(0.2),
            layers.Conv2D(64, 5, 2, "same"),
            layers.LeakyReLU(0.2),
            layers.Dropout(0.3),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    generator = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(7 * 7 * 64, use_bias=False),
            layers.BatchNormalization(),
            layers.LeakyReLU(0.2),
            layers.Reshape((7, 7, 64)),
            layers.UpSampling2D(),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.LeakyReLU(0.2),
            layers.UpSampling2D(),
            layers.Conv2D(1, 3, padding="same", activation="tanh"),
        ]
    )
    for_critic, for_generator = keras.optimizers.Adam(2e-4), keras.optimizers.Adam(2e-4)

    def penalty(real: Any, fake: Any) -> Any:
        share = tf.random.uniform((tf.shape(real)[0], 1, 1, 1))
        mixed = real + share * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(mixed)
            score = critic(mixed, training=True)
        gradient = tape.gradient(score, mixed)
        norm = tf.sqrt(tf.reduce_sum(tf.square(gradient), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)

    @tf.function
    def train_step(real: Any) -> Any:
        count = tf.shape(real)[0]
        for _ in range(3):
            noise = tf.random.normal((count, 64))
            with tf.GradientTape() as tape:
                fake = generator(noise, training=True)
                cost = tf.reduce_mean(critic(fake, training=True)) - tf.reduce_mean(
                    critic(real, training=True)
                )
                cost += 10.0 * penalty(real, fake)
            _apply(for_critic, tape, cost, critic.trainable_variables)
        with tf.GradientTape() as tape:
            fake = generator(tf.random.normal((count, 64)), training=True)
            loss = -tf.reduce_mean(critic(fake, training=True))
        _apply(for_generator, tape, loss, generator.trainable_variables)
        return cost, loss

    train_step.model, train_step.optimizer = critic, for_critic
    return train_step, (_images(32, 28, 1),)


def _down(filters: int, norm: bool = True) -> Any:
    block = keras.Sequential()
    block.add(layers.Conv2D(filters, 4, strides=2, padding="same", use_bias=False))
    if norm:
        block.add(layers.BatchNormalization())
    block.add(layers.LeakyReLU())
    return block


def _up(filters: int, dropout: bool = False) -> Any:
    block = keras.Sequential()
    block.add(
        layers.Conv2DTranspose(filters, 4, strides=2, padding="same", use_bias=False)
    )
    block.add(layers.BatchNormalization())
    if dropout:
        block.add(layers.Dropout(0.5))
    block.add(layers.ReLU())
    return block


def _pix_generator(size: int) -> Any:
    entry = keras.Input((size, size, 3))
    x, skips = entry, []
    for block in (_down(24, False), _down(48), _down(96)):
        x = block(x)
        skips.append(x)
    for block, skip in zip((_up(48, True), _up(24)), reversed(skips[:-1]), strict=True):
        x = layers.Concatenate()([block(x), skip])
    x = layers.Conv2DTranspose(3, 4, strides=2, padding="same", activation="tanh")(x)
    return keras.Model(entry, x)


def pix2pix() -> Step:
    """A conditional GAN: two tapes at once, a generator with skips."""
    generator = _pix_generator(64)
    one, two = keras.Input((64, 64, 3)), keras.Input((64, 64, 3))
    x = _down(48)(_down(24, False)(layers.Concatenate()([one, two])))
    x = layers.Conv2D(96, 4, use_bias=False)(layers.ZeroPadding2D()(x))
    x = layers.LeakyReLU()(layers.BatchNormalization()(x))
    discriminator = keras.Model(
        [one, two], layers.Conv2D(1, 4)(layers.ZeroPadding2D()(x))
    )
    judge = keras.losses.BinaryCrossentropy(from_logits=True)
    first, second = keras.optimizers.Adam(2e-4, 0.5), keras.optimizers.Adam(2e-4, 0.5)

    @tf.function
    def train_step(image: Any, target: Any) -> Any:
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            made = generator(image, training=True)
            real = discriminator([image, target], training=True)
            fake = discriminator([image, made], training=True)
            gen_loss = judge(tf.ones_like(fake), fake) + 100 * tf.reduce_mean(
                tf.abs(target - made)
            )
            disc_loss = judge(tf.ones_like(real), real) + judge(
                tf.zeros_like(fake), fake
            )
        _apply(first, gen_tape, gen_loss, generator.trainable_variables)
        _apply(second, disc_tape, disc_loss, discriminator.trainable_variables)
        return gen_loss, disc_loss

    train_step.model, train_step.optimizer = generator, first
    return train_step, (_images(4, 64), _images(4, 64))


def cyclegan() -> Step:
    """Two generators and two critics under one persistent tape."""
    there, back = _pix_generator(32), _pix_generator(32)

    def critic() -> Any:
        return keras.Sequential(
            [keras.Input((32, 32, 3)), _down(32, False), _down(64), layers.Conv2D(1, 4)]
        )

    one, two = critic(), critic()
    networks = [there, back, one, two]
    optimizers = [keras.optimizers.Adam(2e-4, 0.5) for _ in networks]
    judge = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def train_step(a: Any, b: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            fake_b, fake_a = there(a, training=True), back(b, training=True)
            cycled_a, cycled_b = (
                back(fake_b, training=True),
                there(fake_a, training=True),
            )
            same_a, same_b = back(a, training=True), there(b, training=True)
            real_1, real_2 = one(a, training=True), two(b, training=True)
            fake_1, fake_2 = one(fake_a, training=True), two(fake_b, training=True)
            cycle = tf.reduce_mean(tf.abs(a - cycled_a)) + tf.reduce_mean(
                tf.abs(b - cycled_b)
            )
            losses = [
                judge(tf.ones_like(fake_2), fake_2)
                + 10 * cycle
                + tf.reduce_mean(tf.abs(b - same_b)),
                judge(tf.ones_like(fake_1), fake_1)
                + 10 * cycle
                + tf.reduce_mean(tf.abs(a - same_a)),
                judge(tf.ones_like(real_1), real_1)
                + judge(tf.zeros_like(fake_1), fake_1),
                judge(tf.ones_like(real_2), real_2)
                + judge(tf.zeros_like(fake_2), fake_2),
            ]
        gradients = [
            tape.gradient(loss, network.trainable_variables)
            for loss, network in zip(losses, networks, strict=True)
        ]
        for optimizer, found, network in zip(
            optimizers, gradients, networks, strict=True
        ):
            optimizer.apply_gradients(
                zip(found, network.trainable_variables, strict=True)
            )
        return losses

    train_step.model, train_step.optimizer = there, optimizers[0]
    return train_step, (_images(4, 32), _images(4, 32))


# -- images: representations --------------------------------------------------------------------


def _encoder(size: int, width: int) -> Any:
    return keras.Sequential(
        [
            keras.Input((size, size, 3)),
            layers.Conv2D(width, 3, 2, activation="relu"),
            layers.Conv2D(width, 3, 2, activation="relu"),
            layers.Conv2D(width, 3, 2, activation="relu"),
            layers.Flatten(),
            layers.Dense(width, activation="relu"),
        ]
    )


def siamese() -> Step:
    """Triplets: one embedding applied three times."""
    embedding = _encoder(48, 48)
    optimizer = keras.optimizers.Adam(1e-4)

    @tf.function
    def train_step(anchor: Any, positive: Any, negative: Any) -> Any:
        with tf.GradientTape() as tape:
            a, p, n = (
                embedding(x, training=True) for x in (anchor, positive, negative)
            )
            near = tf.reduce_sum(tf.square(a - p), -1)
            far = tf.reduce_sum(tf.square(a - n), -1)
            loss = tf.reduce_mean(tf.maximum(near - far + 0.5, 0.0))
        _apply(optimizer, tape, loss, embedding.trainable_weights)
        return loss

    train_step.model, train_step.optimizer = embedding, optimizer
    return train_step, tuple(_images(16, 48) for _ in range(3))


def masked_autoencoder() -> Step:
    """Patches gathered by a random order of their own, as in masked autoencoders."""
    count, width = 64, 64
    embed, position = (
        layers.Dense(width),
        tf.Variable(tf.random.normal((count, width)) * 0.02),
    )
    mixer = [
        layers.MultiHeadAttention(2, 32),
        layers.LayerNormalization(),
        layers.Dense(width),
    ]
    out = layers.Dense(48)
    optimizer = keras.optimizers.AdamW(1e-3)
    embed.build((None, count, 48))
    mixer[0].build((None, 16, width), (None, 16, width))
    mixer[1].build((None, 16, width))
    mixer[2].build((None, 16, width))
    out.build((None, count, width))

    @tf.function
    def train_step(images: Any) -> Any:
        patches = tf.image.extract_patches(
            images, [1, 4, 4, 1], [1, 4, 4, 1], [1] * 4, "VALID"
        )
        patches = tf.reshape(patches, (tf.shape(images)[0], count, 48))
        order = tf.argsort(tf.random.uniform((tf.shape(images)[0], count)), axis=-1)
        kept, hidden = order[:, :16], order[:, 16:]
        with tf.GradientTape() as tape:
            seen = tf.gather(embed(patches) + position, kept, axis=1, batch_dims=1)
            x = mixer[2](mixer[1](seen + mixer[0](seen, seen)))
            blank = tf.gather(
                tf.zeros_like(patches[..., :1]) + position, hidden, axis=1, batch_dims=1
            )
            made = out(tf.concat([x, blank], axis=1))
            aim = tf.gather(patches, hidden, axis=1, batch_dims=1)
            loss = tf.reduce_mean(tf.square(aim - made[:, 16:]))
        variables = [
            position,
            *(v for m in (embed, *mixer, out) for v in m.trainable_variables),
        ]
        _apply(optimizer, tape, loss, variables)
        return loss

    train_step.optimizer = optimizer
    return train_step, (_images(32, 32),)


# -- geometry and graphs ------------------------------------------------------------------------


def pointnet() -> Any:
    """Points classified: shared layers and a learned transform by a dot product."""

    def shared(x: Any, width: int) -> Any:
        x = layers.Conv1D(width, 1, padding="valid")(x)
        return layers.Activation("relu")(layers.BatchNormalization(momentum=0.0)(x))

    def transform(x: Any, features: int) -> Any:
        h = layers.GlobalMaxPooling1D()(shared(shared(x, 32), 128))
        h = layers.Dense(
            features * features,
            kernel_initializer="zeros",
            bias_initializer=keras.initializers.Constant(np.eye(features).flatten()),
        )(h)
        return layers.Dot(axes=(2, 1))([x, layers.Reshape((features, features))(h)])

    entry = keras.Input((256, 3))
    x = shared(shared(transform(entry, 3), 32), 32)
    x = layers.GlobalMaxPooling1D()(shared(shared(transform(x, 32), 32), 128))
    x = layers.Dropout(0.3)(layers.Dense(64, activation="relu")(x))
    model = keras.Model(entry, layers.Dense(10, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy")
    return model


# -- tables and recommendation ------------------------------------------------------------------


def dlrm_sparse() -> Step:
    """Multi-hot features as sparse tensors, embedded and crossed by dot products."""
    tables = [
        tf.Variable(tf.random.normal((size, 32)) * 0.1) for size in (20000, 5000, 800)
    ]
    bottom, top = _dense(13, 64, 32), _dense(32 + 6, 64, 1)
    optimizer = keras.optimizers.Adagrad(0.01)
    count = 256

    def bag(vocabulary: int, each: int) -> Any:
        rows = np.repeat(np.arange(count), each)
        columns = np.tile(np.arange(each), count)
        ids = np.random.default_rng(each).integers(0, vocabulary, count * each)
        return tf.SparseTensor(np.stack([rows, columns], 1), ids, (count, each))

    bags = tuple(
        bag(table.shape[0], each) for table, each in zip(tables, (4, 3, 2), strict=True)
    )

    @tf.function
    def train_step(dense: Any, one: Any, two: Any, three: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            x = bottom(dense)
            found = [
                tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")
                for table, ids in zip(tables, (one, two, three), strict=True)
            ]
            stacked = tf.stack([x, *found], axis=1)
            crossed = tf.matmul(stacked, stacked, transpose_b=True)
            above = tf.linalg.band_part(tf.ones((4, 4)), 0, -1) - tf.eye(4)
            above = tf.tile((above > 0)[None], (tf.shape(crossed)[0], 1, 1))
            flat = tf.reshape(tf.boolean_mask(crossed, above), (-1, 6))
            logits = top(tf.concat([x, flat], axis=1))
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        variables = [*tables, *bottom.trainable_variables, *top.trainable_variables]
        _apply(optimizer, tape, loss, variables)
        return loss

    train_step.model, train_step.optimizer = top, optimizer
    labels = tf.cast(tf.random.uniform((count, 1)) < 0.3, tf.float32)
    return train_step, (tf.random.normal((count, 13)), *bags, labels)


def deep_and_cross() -> Any:
    """Cross layers beside dense ones, one embedding a feature."""
    inputs = [keras.Input((), dtype="int32", name=f"feature{k}") for k in range(8)]
    found = [
        layers.Embedding(900 + 50 * k, 32)(entry) for k, entry in enumerate(inputs)
    ]
    x = start = layers.Concatenate()(found)
    for _ in range(3):
        x = layers.Add()([layers.Multiply()([start, layers.Dense(256)(x)]), x])
    deep = layers.Dense(128, activation="relu")(
        layers.Dense(256, activation="relu")(start)
    )
    out = layers.Dense(1)(layers.Concatenate()([x, deep]))
    model = keras.Model(inputs, out)
    model.compile(keras.optimizers.Adagrad(), "mse")
    return model


def two_tower() -> Step:
    """Retrieval with in-batch negatives, the hard ones picked by top-k."""
    users, items = layers.Embedding(8000, 48), layers.Embedding(6000, 48)
    left, right = _dense(48, 96, 32), _dense(48, 96, 32)
    users.build(None)
    items.build(None)
    parts = (users, items, left, right)
    optimizer = keras.optimizers.Adagrad(0.1)

    @tf.function
    def train_step(user: Any, item: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = tf.matmul(left(users(user)), right(items(item)), transpose_b=True)
            positive = tf.linalg.diag_part(scores)[:, None]
            others = tf.linalg.set_diag(scores, tf.fill((256,), -1e9))
            hard, _ = tf.math.top_k(others, 20)
            logits = tf.concat([positive, hard], axis=1)
            loss = tf.reduce_sum(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    tf.zeros((256,), tf.int32), logits
                )
            )
        _apply(
            optimizer,
            tape,
            loss,
            [v for part in parts for v in part.trainable_variables],
        )
        return loss

    train_step.model, train_step.optimizer = left, optimizer
    return train_step, (
        tf.random.uniform((256,), 0, 8000, tf.int32),
        tf.random.uniform((256,), 0, 6000, tf.int32),
    )


# -- second order, equations, branches ----------------------------------------------------------


# -- recurrence over time -----------------------------------------------------------------------


def convlstm() -> Any:
    """The next frame of a film."""
    entry = keras.Input((6, 24, 24, 1))
    x = layers.ConvLSTM2D(
        16, 5, padding="same", return_sequences=True, activation="relu"
    )(entry)
    x = layers.BatchNormalization()(x)
    x = layers.ConvLSTM2D(
        16, 3, padding="same", return_sequences=True, activation="relu"
    )(x)
    x = layers.Conv3D(1, 3, activation="sigmoid", padding="same")(x)
    model = keras.Model(entry, x)
    model.compile("adam", "binary_crossentropy")
    return model


# -- networks of other kinds --------------------------------------------------------------------


def perceiver() -> Any:
    """A small latent array that attends to many patches."""
    entry = keras.Input((32, 32, 3))
    x = layers.Reshape((256, 48))(layers.Conv2D(48, 2, 2)(entry))
    x = layers.Dense(64)(x)
    latent = layers.Embedding(32, 64)(
        ops.zeros_like(entry[:, :, 0, 0], "int32") + ops.arange(32)
    )
    for _ in range(2):
        h = layers.LayerNormalization()(latent)
        h = layers.Attention(use_scale=True)([h, layers.LayerNormalization()(x)])
        latent = layers.Add()([latent, layers.Dense(64, "gelu")(h)])
        latent = latent + layers.MultiHeadAttention(4, 16)(latent, latent)
    out = layers.Dense(20)(layers.GlobalAveragePooling1D()(latent))
    model = keras.Model(entry, out)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-3), loss)
    return model


def mlp_mixer() -> Any:
    entry = keras.Input((48, 48, 3))
    x = layers.Reshape((64, 96))(layers.Conv2D(96, 6, 6)(entry))
    for _ in range(2):
        h = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        h = layers.Dense(64)(layers.Dense(128, activation="gelu")(h))
        x = x + layers.Permute((2, 1))(h)
        h = layers.LayerNormalization()(x)
        x = x + layers.Dense(96)(layers.Dense(256, activation="gelu")(h))
    model = keras.Model(entry, layers.Dense(30)(layers.GlobalAveragePooling1D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(global_clipnorm=1.0), loss)
    return model


def gmlp() -> Any:
    entry = keras.Input((36, 36, 3))
    x = layers.Reshape((81, 64))(layers.Conv2D(64, 4, 4)(entry))
    for _ in range(2):
        h = layers.Dense(256, activation="gelu")(layers.LayerNormalization()(x))
        u, v = ops.split(h, 2, axis=-1)
        v = layers.LayerNormalization()(v)
        v = layers.Permute((2, 1))(
            layers.Dense(81, bias_initializer="ones")(layers.Permute((2, 1))(v))
        )
        x = x + layers.Dense(64)(u * v)
    model = keras.Model(entry, layers.Dense(20)(layers.GlobalAveragePooling1D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(), loss)
    return model


def unet3d() -> Any:
    """Volumes segmented."""
    entry = keras.Input((16, 16, 16, 1))

    def block(x: Any, width: int) -> Any:
        x = layers.Conv3D(width, 3, padding="same", activation="relu")(x)
        return layers.BatchNormalization()(x)

    one = block(entry, 12)
    two = block(layers.MaxPooling3D()(one), 24)
    x = block(layers.MaxPooling3D()(two), 32)
    x = block(layers.Concatenate()([layers.UpSampling3D()(x), two]), 24)
    x = block(layers.Concatenate()([layers.Conv3DTranspose(12, 2, 2)(x), one]), 12)
    model = keras.Model(entry, layers.Conv3D(3, 1, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def scaled() -> Step:
    """Half precision with a loss scale kept by hand: apply only where all gradients are finite."""
    model = _dense(300, 800, 800, 10)
    scale = tf.Variable(2.0**10, trainable=False)
    optimizer = keras.optimizers.Adam()

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            )
            scaled_loss = loss * scale
        found = [
            g / scale for g in tape.gradient(scaled_loss, model.trainable_variables)
        ]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in found])
        if finite:
            optimizer.apply_gradients(
                zip(found, model.trainable_variables, strict=True)
            )
        else:
            scale.assign(scale / 2)
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (
        tf.random.normal((128, 300)),
        tf.random.uniform((128,), 0, 10, tf.int32),
    )


def style_transfer() -> Step:
    """An image as the variable: Gram matrices of features and a total variation."""
    features = _encoder_features()
    image = tf.Variable(tf.random.uniform((1, 96, 96, 3)))
    optimizer = keras.optimizers.Adam(0.02)

    def gram(x: Any) -> Any:
        return tf.linalg.einsum("bijc,bijd->bcd", x, x) / (x.shape[1] * x.shape[2])

    aims = [tf.random.normal((1, width, width)) for width in (24, 48, 96)]

    @tf.function
    def train_step(aim: Any) -> Any:
        with tf.GradientTape() as tape:
            found = features(image)
            style = tf.add_n(
                [
                    tf.reduce_mean((gram(x) - a) ** 2)
                    for x, a in zip(found, aims, strict=True)
                ]
            )
            loss = style + tf.reduce_mean((found[-1] - aim) ** 2)
            loss += 30 * tf.reduce_sum(tf.image.total_variation(image))
        gradient = tape.gradient(loss, image)
        optimizer.apply_gradients([(gradient, image)])
        image.assign(tf.clip_by_value(image, 0.0, 1.0))
        return loss

    train_step.optimizer = optimizer
    return train_step, (tf.random.normal((1, 24, 24, 96)),)


def _encoder_features() -> Any:
    entry = keras.Input((96, 96, 3))
    one = layers.Conv2D(24, 3, padding="same", activation="relu")(entry)
    two = layers.Conv2D(48, 3, padding="same", activation="relu")(
        layers.AveragePooling2D(2)(one)
    )
    three = layers.Conv2D(96, 3, padding="same", activation="relu")(
        layers.AveragePooling2D(2)(two)
    )
    model = keras.Model(entry, [one, two, three])
    model.trainable = False
    return model


def diffusion() -> Step:
    """A denoiser with an exponential average of its weights, as on keras.io."""

    def network() -> Any:
        entry, time = keras.Input((32, 32, 3)), keras.Input((1, 1, 1))
        x = layers.Concatenate()(
            [layers.Conv2D(24, 1)(entry), layers.UpSampling2D(32)(time)]
        )
        skips = []
        for width in (24, 48):
            h = layers.BatchNormalization(center=False, scale=False)(x)
            h = layers.Conv2D(width, 3, padding="same", activation="swish")(h)
            x = layers.Add()([layers.Conv2D(width, 1)(x), h])
            skips.append(x)
            x = layers.AveragePooling2D(2)(x)
        for width in (48, 24):
            x = layers.UpSampling2D(interpolation="bilinear")(x)
            x = layers.Concatenate()([x, skips.pop()])
            x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
        return keras.Model(
            [entry, time], layers.Conv2D(3, 1, kernel_initializer="zeros")(x)
        )

    model, average = network(), network()
    average.set_weights(model.get_weights())
    optimizer = keras.optimizers.AdamW(1e-3)

    @tf.function
    def train_step(images: Any) -> Any:
        noises = tf.random.normal(tf.shape(images))
        times = tf.random.uniform((tf.shape(images)[0], 1, 1, 1))
        angles = 0.3 + times * (1.5 - 0.3)
        noisy = tf.cos(angles) * images + tf.sin(angles) * noises
        with tf.GradientTape() as tape:
            told = model([noisy, tf.sin(angles) ** 2], training=True)
            loss = tf.reduce_mean(tf.abs(noises - told))
        _apply(optimizer, tape, loss, model.trainable_weights)
        for weight, mean in zip(model.weights, average.weights, strict=True):
            mean.assign(0.999 * mean + 0.001 * weight)
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (_images(16, 32),)
