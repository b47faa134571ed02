"""Steps in the manner of public tutorials, none of which the rules were made by.

Loops, branches, TensorArrays, Python inside the graph, sparse and ragged inputs, nested tapes, momentum
and target networks: what training loops written by hand hold and stock networks do not. Each function
returns a compiled Keras model (run with batches of 32) or ``(tf_function, args)``.
``benchmarks/accuracy/accuracy.py --other`` estimates each and holds it against real runs.
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


class ActorCritic(keras.Model):
    def __init__(self, actions: int, hidden: int) -> None:
        super().__init__()
        self.common = layers.Dense(hidden, activation="relu")
        self.actor = layers.Dense(actions)
        self.critic = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        x = self.common(inputs)
        return self.actor(x), self.critic(x)


class _Pole:
    """An environment in Python: a state of four numbers, a reward of one, an end after 120 steps."""

    def __init__(self) -> None:
        self.count = 0

    def step(self, action: Any) -> tuple[Any, Any, Any]:
        self.count += 1
        state = np.random.default_rng(self.count).normal(size=4).astype(np.float32)
        return state, np.array(1, np.int32), np.array(self.count % 120 == 0, np.int32)


def actor_critic() -> Step:
    """The actor-critic of tensorflow.org: an episode in ``tf.range`` with an early end."""
    environment = _Pole()
    model = ActorCritic(2, 2048)
    optimizer = keras.optimizers.Adam(0.01)
    huber = keras.losses.Huber(reduction="sum")
    model(tf.zeros((1, 4)))

    @tf.numpy_function(Tout=[tf.float32, tf.int32, tf.int32])
    def env_step(action: Any) -> Any:
        return environment.step(action)

    def run_episode(initial_state: Any, max_steps: int) -> Any:
        action_probs = tf.TensorArray(dtype=tf.float32, size=0, dynamic_size=True)
        values = tf.TensorArray(dtype=tf.float32, size=0, dynamic_size=True)
        rewards = tf.TensorArray(dtype=tf.int32, size=0, dynamic_size=True)
        initial_state_shape = initial_state.shape
        state = initial_state
        for t in tf.range(max_steps):
            state = tf.expand_dims(state, 0)
            action_logits_t, value = model(state)
            action = tf.random.categorical(action_logits_t, 1)[0, 0]
            action_probs_t = tf.nn.softmax(action_logits_t)
            values = values.write(t, tf.squeeze(value))
            action_probs = action_probs.write(t, action_probs_t[0, action])
            state, reward, done = env_step(action)
            state.set_shape(initial_state_shape)
            rewards = rewards.write(t, reward)
            if tf.cast(done, tf.bool):
                break
        return action_probs.stack(), values.stack(), rewards.stack()

    def expected_return(rewards: Any, gamma: float) -> Any:
        n = tf.shape(rewards)[0]
        returns = tf.TensorArray(dtype=tf.float32, size=n)
        rewards = tf.cast(rewards[::-1], dtype=tf.float32)
        discounted_sum = tf.constant(0.0)
        discounted_sum_shape = discounted_sum.shape
        for i in tf.range(n):
            discounted_sum = rewards[i] + gamma * discounted_sum
            discounted_sum.set_shape(discounted_sum_shape)
            returns = returns.write(i, discounted_sum)
        returns = returns.stack()[::-1]
        return (returns - tf.math.reduce_mean(returns)) / (
            tf.math.reduce_std(returns) + 1e-6
        )

    @tf.function
    def train_step(initial_state: Any) -> Any:
        with tf.GradientTape() as tape:
            action_probs, values, rewards = run_episode(initial_state, 120)
            returns = expected_return(rewards, 0.99)
            action_probs, values, returns = (
                tf.expand_dims(x, 1) for x in [action_probs, values, returns]
            )
            advantage = returns - values
            actor_loss = -tf.math.reduce_sum(
                tf.math.log(action_probs + 1e-6) * advantage
            )
            loss = actor_loss + huber(values, returns)
        _apply(optimizer, tape, loss, model.trainable_variables)
        return tf.math.reduce_sum(rewards)

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (tf.zeros((4,)),)


def dqn() -> Step:
    """Deep Q learning with a target network whose weights are copied from the online one."""

    def network() -> Any:
        return keras.Sequential(
            [
                keras.Input((42, 42, 4)),
                layers.Conv2D(32, 8, 4, activation="relu"),
                layers.Conv2D(64, 4, 2, activation="relu"),
                layers.Flatten(),
                layers.Dense(512, activation="relu"),
                layers.Dense(4),
            ]
        )

    online, target = network(), network()
    target.set_weights(online.get_weights())
    optimizer = keras.optimizers.Adam(0.00025, clipnorm=1.0)
    loss_of = keras.losses.Huber()

    @tf.function
    def train_step(
        state: Any, action: Any, reward: Any, following: Any, done: Any
    ) -> Any:
        future = target(following)
        updated = reward + 0.99 * tf.reduce_max(future, axis=1) * (1 - done)
        masks = tf.one_hot(action, 4)
        with tf.GradientTape() as tape:
            q = tf.reduce_sum(online(state) * masks, axis=1)
            loss = loss_of(updated, q)
        _apply(optimizer, tape, loss, online.trainable_variables)
        for ours, theirs in zip(target.variables, online.variables, strict=True):
            ours.assign(0.995 * ours + 0.005 * theirs)
        return loss

    train_step.model, train_step.optimizer = online, optimizer
    count = 64
    return train_step, (
        _images(count, 42, 4),
        tf.random.uniform((count,), 0, 4, tf.int32),
        tf.random.normal((count,)),
        _images(count, 42, 4),
        tf.zeros((count,)),
    )


# -- text -----------------------------------------------------------------------------------------


class CrossAttention(layers.Layer):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.mha = layers.MultiHeadAttention(key_dim=units, num_heads=1)
        self.norm = layers.LayerNormalization()
        self.add = layers.Add()

    def call(self, x: Any, context: Any) -> Any:
        return self.norm(self.add([x, self.mha(query=x, value=context)]))


class Translator(keras.Model):
    """The translation tutorial of tensorflow.org: two GRUs with attention, masked loss."""

    def __init__(self, units: int, vocabulary: int) -> None:
        super().__init__()
        self.source = layers.Embedding(vocabulary, units, mask_zero=True)
        self.rnn = layers.Bidirectional(
            layers.GRU(units, return_sequences=True), merge_mode="sum"
        )
        self.aim = layers.Embedding(vocabulary, units, mask_zero=True)
        self.decoder = layers.GRU(units, return_sequences=True, return_state=True)
        self.attention = CrossAttention(units)
        self.output_layer = layers.Dense(vocabulary)

    def call(self, inputs: Any) -> Any:
        context, x = inputs
        context = self.rnn(self.source(context))
        x, _ = self.decoder(self.aim(x))
        return self.output_layer(self.attention(x, context))


def translation() -> Step:
    model = Translator(96, 2000)
    optimizer = keras.optimizers.Adam()
    compare = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="none"
    )
    context, aim, label = (_tokens(32, length, 2000) for length in (20, 18, 18))
    model((context, aim))

    @tf.function
    def train_step(context: Any, aim: Any, label: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = compare(label, model((context, aim), training=True))
            mask = tf.cast(label != 0, loss.dtype)
            loss = tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)
        _apply(optimizer, tape, loss, model.trainable_variables)
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (context, aim, label)


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


def masked_bilstm() -> Any:
    """Named entities: a bidirectional LSTM over padded tokens."""
    entry = keras.Input((30,), dtype="int32")
    x = layers.Embedding(5000, 64, mask_zero=True)(entry)
    x = layers.Bidirectional(layers.LSTM(64, return_sequences=True, dropout=0.1))(x)
    model = keras.Model(
        entry, layers.TimeDistributed(layers.Dense(17, activation="softmax"))(x)
    )
    model.compile("rmsprop", "sparse_categorical_crossentropy")
    return model


def ragged_classifier() -> Step:
    """Reviews of different lengths as a ragged tensor."""
    table = tf.Variable(tf.random.normal((4000, 128)))
    model = _dense(128, 256, 4)
    optimizer = keras.optimizers.Adam()
    lengths = [5 + (37 * k) % 60 for k in range(64)]
    values = tf.random.uniform((sum(lengths),), 0, 4000, tf.int32)
    words = tf.RaggedTensor.from_row_lengths(values, lengths)
    labels = tf.random.uniform((64,), 0, 4, tf.int32)

    @tf.function
    def train_step(words: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            embedded = tf.ragged.map_flat_values(tf.nn.embedding_lookup, table, words)
            scored = tf.ragged.map_flat_values(tf.nn.tanh, embedded)
            pooled = tf.reduce_mean(scored, axis=1)
            logits = model(pooled, training=True)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels=labels, logits=logits
                )
            )
        _apply(optimizer, tape, loss, [table, *model.trainable_variables])
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (words, labels)


def ragged_to_dense() -> Step:
    """Ragged features padded by their own bounds, then a small network over time."""
    model = keras.Sequential([layers.Dense(96, activation="relu"), layers.Dense(48)])
    model.build((None, None, 24))
    optimizer = keras.optimizers.SGD(0.1)
    lengths = [3 + (11 * k) % 50 for k in range(48)]
    rows = tf.RaggedTensor.from_row_lengths(
        tf.random.normal((sum(lengths), 24)), lengths
    )

    @tf.function
    def train_step(rows: Any) -> Any:
        with tf.GradientTape() as tape:
            dense = rows.to_tensor()
            mask = tf.sequence_mask(rows.row_lengths(), tf.shape(dense)[1], tf.float32)
            x = model(dense, training=True) * mask[..., None]
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(x, 1)))
        _apply(optimizer, tape, loss, model.trainable_variables)
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (rows,)


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


def nerf() -> Step:
    """A radiance field: positions encoded, a skip, volume rendering by cumulative products."""
    entry = keras.Input((None, 39))
    x = entry
    for index in range(5):
        x = layers.Dense(64, activation="relu")(x)
        if index == 2:
            x = layers.Concatenate()([x, entry])
    model = keras.Model(entry, layers.Dense(4)(x))
    optimizer = keras.optimizers.Adam()

    def encode(x: Any) -> Any:
        parts = [x]
        for k in range(6):
            parts += [tf.sin(2.0**k * x), tf.cos(2.0**k * x)]
        return tf.concat(parts, axis=-1)

    def render(points: Any, depths: Any) -> Any:
        raw = model(encode(points), training=True)
        colours, density = tf.sigmoid(raw[..., :-1]), tf.nn.relu(raw[..., -1])
        delta = tf.concat(
            [depths[:, 1:] - depths[:, :-1], tf.fill((64, 1), 1e10)], axis=-1
        )
        alpha = 1.0 - tf.exp(-density * delta)
        weights = alpha * tf.math.cumprod(1.0 - alpha + 1e-10, axis=-1, exclusive=True)
        return tf.reduce_sum(weights[..., None] * colours, axis=-2)

    @tf.function
    def train_step(points: Any, depths: Any, pixels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(render(points, depths) - pixels))
        _apply(optimizer, tape, loss, model.trainable_variables)
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (
        tf.random.normal((64, 64, 3)),
        tf.sort(tf.random.uniform((64, 64))),
        tf.random.uniform((64, 3)),
    )


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


class Contrastive(keras.Model):
    """SimCLR: two augmented views, NT-Xent and a linear probe with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.augment = keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                layers.RandomFlip("horizontal"),
                layers.RandomTranslation(0.1, 0.1),
            ]
        )
        self.encoder = _encoder(32, 64)
        self.head = _dense(64, 64, 64)
        self.probe = _dense(64, 10)
        self.first, self.second = keras.optimizers.Adam(), keras.optimizers.Adam()

    def contrast(self, one: Any, two: Any) -> Any:
        one, two = tf.math.l2_normalize(one, axis=1), tf.math.l2_normalize(two, axis=1)
        similar = tf.matmul(one, two, transpose_b=True) / 0.1
        labels = tf.range(tf.shape(one)[0])
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, similar)
            + tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, tf.transpose(similar)
            )
        )


def simclr() -> Step:
    model = Contrastive()

    @tf.function
    def train_step(images: Any, labels: Any) -> Any:
        one, two = (
            model.augment(images, training=True),
            model.augment(images, training=True),
        )
        with tf.GradientTape() as tape:
            left = model.head(model.encoder(one, training=True), training=True)
            right = model.head(model.encoder(two, training=True), training=True)
            loss = model.contrast(left, right)
        weights = model.encoder.trainable_weights + model.head.trainable_weights
        _apply(model.first, tape, loss, weights)
        with tf.GradientTape() as tape:
            logits = model.probe(model.encoder(images, training=False), training=True)
            probe = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            )
        _apply(model.second, tape, probe, model.probe.trainable_weights)
        return loss, probe

    train_step.model, train_step.optimizer = model, model.first
    return train_step, (_images(48, 32), tf.random.uniform((48,), 0, 10, tf.int32))


def moco() -> Step:
    """A momentum encoder and a queue of keys."""
    query, key = _encoder(32, 64), _encoder(32, 64)
    for ours, theirs in zip(key.weights, query.weights, strict=True):
        ours.assign(theirs)
    queue = tf.Variable(tf.random.normal((2048, 64)), trainable=False)
    optimizer = keras.optimizers.SGD(0.03, momentum=0.9)

    @tf.function
    def train_step(one: Any, two: Any) -> Any:
        keys = tf.stop_gradient(tf.math.l2_normalize(key(two, training=True), axis=1))
        with tf.GradientTape() as tape:
            asked = tf.math.l2_normalize(query(one, training=True), axis=1)
            positive = tf.reduce_sum(asked * keys, axis=1, keepdims=True)
            negative = tf.matmul(asked, queue, transpose_b=True)
            logits = tf.concat([positive, negative], axis=1) / 0.07
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    tf.zeros(tf.shape(logits)[0], tf.int32), logits
                )
            )
        _apply(optimizer, tape, loss, query.trainable_variables)
        for ours, theirs in zip(key.weights, query.weights, strict=True):
            ours.assign(ours * 0.99 + theirs * 0.01)
        queue.assign(tf.concat([keys, queue[: -tf.shape(keys)[0]]], axis=0))
        return loss

    train_step.model, train_step.optimizer = query, optimizer
    return train_step, (_images(32, 32), _images(32, 32))


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


def graph_network() -> Step:
    """Messages gathered along edges and summed by segment, as for citations."""
    nodes, edges, width = 1200, 6000, 64
    features = tf.random.normal((nodes, 128))
    pairs = tf.random.uniform((2, edges), 0, nodes, tf.int32)
    labels = tf.random.uniform((nodes,), 0, 7, tf.int32)
    first, message, update = (
        _dense(128, width),
        _dense(width, width),
        _dense(2 * width, width),
    )
    last = _dense(width, 7)
    parts = (first, message, update, last)
    optimizer = keras.optimizers.Adam(0.01)

    def convolve(x: Any, pairs: Any) -> Any:
        sent = message(tf.gather(x, pairs[1]))
        summed = tf.math.unsorted_segment_sum(
            sent, pairs[0], num_segments=tf.shape(x)[0]
        )
        return tf.math.l2_normalize(update(tf.concat([x, summed], axis=1)), axis=-1)

    @tf.function
    def train_step(features: Any, pairs: Any, labels: Any, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            x = first(features)
            x = x + convolve(x, pairs)
            x = x + convolve(x, pairs)
            logits = last(tf.gather(x, batch))
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    tf.gather(labels, batch), logits
                )
            )
        _apply(
            optimizer,
            tape,
            loss,
            [v for part in parts for v in part.trainable_variables],
        )
        return loss

    train_step.model, train_step.optimizer = update, optimizer
    return train_step, (features, pairs, labels, tf.range(128))


def gat() -> Step:
    """Graph attention: scores normalised by segment, and edges kept by a mask."""
    nodes, edges, width = 800, 5000, 48
    kernel = tf.Variable(tf.random.normal((96, width)) * 0.1)
    attention = tf.Variable(tf.random.normal((2 * width, 1)) * 0.1)
    readout = _dense(width, 5)
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def train_step(features: Any, pairs: Any, keep: Any, labels: Any) -> Any:
        pairs = tf.boolean_mask(pairs, keep)
        with tf.GradientTape() as tape:
            x = tf.matmul(features, kernel)
            both = tf.reshape(tf.gather(x, pairs), (-1, 2 * width))
            scores = tf.squeeze(tf.nn.leaky_relu(tf.matmul(both, attention)), -1)
            scores = tf.exp(tf.clip_by_value(scores, -2, 2))
            sums = tf.math.unsorted_segment_sum(scores, pairs[:, 0], nodes)
            scores = scores / tf.gather(sums, pairs[:, 0])
            around = tf.gather(x, pairs[:, 1]) * scores[:, None]
            out = tf.math.unsorted_segment_sum(around, pairs[:, 0], nodes)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels, readout(tf.nn.relu(out))
                )
            )
        _apply(optimizer, tape, loss, [kernel, attention, *readout.trainable_variables])
        return loss

    train_step.model, train_step.optimizer = readout, optimizer
    return train_step, (
        tf.random.normal((nodes, 96)),
        tf.random.uniform((edges, 2), 0, nodes, tf.int32),
        tf.random.uniform((edges,)) < 0.9,
        tf.random.uniform((nodes,), 0, 5, tf.int32),
    )


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


def wide_and_deep() -> Any:
    """Categories hashed and crossed on the wide side, embedded on the deep side."""
    wide, deep = keras.Input((12,), dtype="int32"), keras.Input((16,))
    coded = layers.CategoryEncoding(num_tokens=4000, output_mode="multi_hot")(wide)
    embedded = layers.Flatten()(layers.Embedding(4000, 24)(wide))
    x = layers.Concatenate()([embedded, deep])
    for _ in range(2):
        x = layers.Dense(256, use_bias=False)(x)
        x = layers.Dropout(0.2)(layers.ReLU()(layers.BatchNormalization()(x)))
    merged = layers.Concatenate()([layers.BatchNormalization()(coded), x])
    model = keras.Model([wide, deep], layers.Dense(7, activation="softmax")(merged))
    model.compile(keras.optimizers.Ftrl(0.01), "sparse_categorical_crossentropy")
    return model


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


def maml() -> Step:
    """Meta-learning: gradients through an inner step of gradient descent."""
    shapes = [(64, 400), (400,), (400, 400), (400,), (400, 5), (5,)]
    weights = [tf.Variable(tf.random.normal(shape) * 0.05) for shape in shapes]
    optimizer = keras.optimizers.Adam(1e-3)

    def predict(x: Any, w: Any) -> Any:
        x = tf.nn.relu(tf.matmul(x, w[0]) + w[1])
        x = tf.nn.relu(tf.matmul(x, w[2]) + w[3])
        return tf.matmul(x, w[4]) + w[5]

    def loss_of(y: Any, logits: Any) -> Any:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

    @tf.function
    def train_step(x: Any, y: Any, query_x: Any, query_y: Any) -> Any:
        with tf.GradientTape() as outer:
            total = 0.0
            for task in range(4):
                with tf.GradientTape() as inner:
                    inner.watch(weights)
                    loss = loss_of(y[task], predict(x[task], weights))
                gradients = inner.gradient(loss, weights)
                fast = [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
                total += loss_of(query_y[task], predict(query_x[task], fast))
        _apply(optimizer, outer, total, weights)
        return total

    train_step.optimizer = optimizer
    labels = tf.random.uniform((4, 50), 0, 5, tf.int32)
    return train_step, (
        tf.random.normal((4, 50, 64)),
        labels,
        tf.random.normal((4, 50, 64)),
        labels,
    )


def neural_ode() -> Step:
    """A differential equation solved by Runge-Kutta in ``tf.while_loop``, differentiated through."""
    field = _dense(48, 128, 48)
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function
    def train_step(start: Any, aim: Any, until: Any) -> Any:
        with tf.GradientTape() as tape:
            time, step = tf.constant(0.0), until / 20.0

            def advance(time: Any, x: Any) -> Any:
                k1 = field(x)
                k2 = field(x + step / 2 * k1)
                k3 = field(x + step / 2 * k2)
                k4 = field(x + step * k3)
                return time + step, x + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

            _, end = tf.while_loop(
                lambda time, x: time < until - 1e-4,
                advance,
                (time, start),
                maximum_iterations=24,
            )
            loss = tf.reduce_mean(tf.square(end - aim))
        _apply(optimizer, tape, loss, field.trainable_variables)
        return loss

    train_step.model, train_step.optimizer = field, optimizer
    return train_step, (
        tf.random.normal((64, 48)),
        tf.random.normal((64, 48)),
        tf.constant(1.0),
    )


def while_counted() -> Step:
    """A recurrent cell in a Python ``while`` that autograph turns into a loop, with a counter."""
    cell = layers.GRUCell(96)
    cell.build((None, 32))
    out = _dense(96, 16)
    optimizer = keras.optimizers.Adam()

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            state = tf.zeros((32, 96))
            i = tf.constant(0)
            while i < tf.shape(x)[1]:
                _, states = cell(x[:, i], [state])
                state = states[0] if isinstance(states, (list, tuple)) else states
                i += 1
            loss = tf.reduce_mean(tf.square(out(state) - y))
        _apply(
            optimizer, tape, loss, cell.trainable_variables + out.trainable_variables
        )
        return loss

    train_step.model, train_step.optimizer = out, optimizer
    return train_step, (tf.random.normal((32, 25, 32)), tf.random.normal((32, 16)))


def early_exit() -> Step:
    """Layers run until a prediction is sure enough: a loop whose length the data decide."""
    block, out = _dense(256, 512, 256, last="tanh"), _dense(256, 10)
    optimizer = keras.optimizers.SGD(0.01)

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            sure = tf.constant(False)
            for _ in tf.range(8):
                if not sure:
                    x = x + block(x)
                    sure = (
                        tf.reduce_min(tf.reduce_max(tf.nn.softmax(out(x)), -1)) > 0.95
                    )
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=out(x))
            )
        _apply(
            optimizer, tape, loss, block.trainable_variables + out.trainable_variables
        )
        return loss

    train_step.model, train_step.optimizer = block, optimizer
    return train_step, (
        tf.random.normal((64, 256)),
        tf.random.uniform((64,), 0, 10, tf.int32),
    )


def switching() -> Step:
    """Nested ``tf.cond`` and ``tf.switch_case``: a curriculum that picks a head and a depth."""
    stem, deep, shallow = (
        _dense(200, 600, last="relu"),
        _dense(600, 900, 600),
        _dense(600, 600),
    )
    heads = [_dense(600, width, 10) for width in (200, 500, 1000)]
    optimizer = keras.optimizers.Adam()

    @tf.function
    def train_step(x: Any, y: Any, task: Any, hard: Any) -> Any:
        with tf.GradientTape() as tape:
            x = stem(x)
            x = tf.cond(
                hard,
                lambda: tf.cond(
                    tf.reduce_mean(x) > 1e6, lambda: shallow(x), lambda: deep(x)
                ),
                lambda: shallow(x),
            )
            logits = tf.switch_case(task, [lambda head=head: head(x) for head in heads])
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            )
        parts = [stem, deep, shallow, *heads]
        _apply(
            optimizer,
            tape,
            loss,
            [v for part in parts for v in part.trainable_variables],
        )
        return loss

    train_step.model, train_step.optimizer = stem, optimizer
    return train_step, (
        tf.random.normal((128, 200)),
        tf.random.uniform((128,), 0, 10, tf.int32),
        tf.constant(1),
        tf.constant(True),
    )


def mixture_of_experts() -> Step:
    """A switch transformer's router: top-1 experts with a capacity, dispatched by one-hot products."""
    width, experts, tokens = 64, 6, 384
    router = layers.Dense(experts)
    router.build((None, width))
    networks = [_dense(width, 128, width) for _ in range(experts)]
    out = _dense(width, 8)
    optimizer = keras.optimizers.Adam()
    capacity = tokens // experts

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            chances = tf.nn.softmax(router(x))
            gate, index = tf.math.top_k(chances, k=1)
            mask = tf.one_hot(tf.squeeze(index, 1), experts)
            place = tf.cumsum(mask, axis=0) * mask
            mask *= tf.cast(place < capacity, tf.float32)
            place = tf.reduce_sum(place * mask, axis=-1)
            combine = (
                tf.expand_dims(gate * mask, -1)
                * tf.one_hot(tf.cast(place, tf.int32), capacity)[:, None]
            )
            dispatch = tf.cast(combine > 0, tf.float32)
            fed = tf.einsum("ab,acd->cdb", x, dispatch)
            made = tf.stack(
                [net(part) for net, part in zip(networks, tf.unstack(fed), strict=True)]
            )
            mixed = tf.einsum("abc,xab->xc", made, combine)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels=y, logits=out(mixed)
                )
            )
        parts = [router, *networks, out]
        _apply(
            optimizer,
            tape,
            loss,
            [v for part in parts for v in part.trainable_variables],
        )
        return loss

    train_step.model, train_step.optimizer = out, optimizer
    return train_step, (
        tf.random.normal((tokens, width)),
        tf.random.uniform((tokens,), 0, 8, tf.int32),
    )


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


def tcn() -> Any:
    """Dilated causal convolutions with residuals."""
    entry = keras.Input((128, 12))
    x = layers.Conv1D(48, 1)(entry)
    for rate in (1, 2, 4, 8):
        h = layers.Conv1D(
            48, 3, padding="causal", dilation_rate=rate, activation="relu"
        )(x)
        h = layers.SpatialDropout1D(0.1)(layers.LayerNormalization()(h))
        x = x + layers.Conv1D(
            48, 3, padding="causal", dilation_rate=rate, activation="relu"
        )(h)
    model = keras.Model(entry, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))
    model.compile("adam", "mae")
    return model


def scanned() -> Step:
    """A linear state space over time with ``tf.scan``."""
    matrix = tf.Variable(tf.eye(64) * 0.9)
    inward, outward = layers.Dense(64), layers.Dense(24)
    inward.build((None, None, 24))
    outward.build((None, None, 64))
    optimizer = keras.optimizers.Adam()

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            fed = tf.transpose(inward(x), (1, 0, 2))
            states = tf.scan(
                lambda h, u: tf.tanh(tf.matmul(h, matrix) + u), fed, tf.zeros((48, 64))
            )
            loss = tf.reduce_mean(
                tf.square(outward(tf.transpose(states, (1, 0, 2))) - y)
            )
        parts = [matrix, *inward.trainable_variables, *outward.trainable_variables]
        _apply(optimizer, tape, loss, parts)
        return loss

    train_step.optimizer = optimizer
    return train_step, (tf.random.normal((48, 40, 24)), tf.random.normal((48, 40, 24)))


def mapped() -> Step:
    """``tf.map_fn`` over examples and ``tf.vectorized_map`` for a gradient of each."""
    model = _dense(100, 200, 10)
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        def stretched(row: Any) -> Any:
            return tf.sort(row) * tf.norm(row)

        x = tf.map_fn(stretched, x)

        def gradient_of(pair: Any) -> Any:
            one, label = pair
            with tf.GradientTape() as tape:
                logits = model(one[None])
                loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    label[None], logits
                )[0]
            return tape.gradient(loss, model.trainable_variables)

        found = tf.vectorized_map(gradient_of, (x, y))
        clipped = []
        norms = tf.sqrt(
            tf.add_n(
                [tf.reduce_sum(tf.square(g), range(1, g.shape.rank)) for g in found]
            )
        )
        for g in found:
            scale = tf.reshape(
                1.0 / tf.maximum(norms, 1.0), (-1, *[1] * (g.shape.rank - 1))
            )
            clipped.append(tf.reduce_mean(g * scale, 0))
        optimizer.apply_gradients(zip(clipped, model.trainable_variables, strict=True))
        return norms

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (
        tf.random.normal((32, 100)),
        tf.random.uniform((32,), 0, 10, tf.int32),
    )


def ctc_reader() -> Step:
    """Captchas read by convolutions and recurrence, with the CTC loss."""
    entry = keras.Input((50, 26, 1))
    x = layers.Conv2D(32, 3, activation="relu", padding="same")(entry)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(48, 3, activation="relu", padding="same")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Reshape((12, 6 * 48))(x)
    x = layers.Bidirectional(layers.LSTM(64, return_sequences=True, dropout=0.25))(x)
    model = keras.Model(entry, layers.Dense(21)(x))
    optimizer = keras.optimizers.Adam()

    @tf.function
    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            count = tf.shape(labels)[0]
            loss = tf.nn.ctc_loss(
                labels,
                logits,
                tf.fill((count,), 5),
                tf.fill((count,), 12),
                logits_time_major=False,
                blank_index=20,
            )
            loss = tf.reduce_mean(loss)
        _apply(optimizer, tape, loss, model.trainable_variables)
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (
        _images(16, 50, 1)[:, :, :26],
        tf.random.uniform((16, 5), 0, 20, tf.int32),
    )


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


def recomputed() -> Step:
    """A residual network whose blocks are computed anew in the backward pass."""
    stem = keras.Sequential(
        [keras.Input((48, 48, 3)), layers.Conv2D(24, 3, padding="same")]
    )
    blocks = [
        keras.Sequential(
            [
                keras.Input((48, 48, 24)),
                layers.Conv2D(24, 3, padding="same", activation="relu"),
                layers.Conv2D(24, 3, padding="same", activation="relu"),
            ]
        )
        for _ in range(4)
    ]
    head = keras.Sequential(
        [keras.Input((48, 48, 24)), layers.GlobalAveragePooling2D(), layers.Dense(10)]
    )
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    again = [tf.recompute_grad(lambda x, block=block: x + block(x)) for block in blocks]

    @tf.function
    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            x = stem(images)
            for one in again:
                x = one(x)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels=labels, logits=head(x)
                )
            )
        parts = [stem, *blocks, head]
        _apply(
            optimizer,
            tape,
            loss,
            [v for part in parts for v in part.trainable_variables],
        )
        return loss

    train_step.model, train_step.optimizer = head, optimizer
    return train_step, (_images(8, 48), tf.random.uniform((8,), 0, 10, tf.int32))


def detector() -> Step:
    """RetinaNet in small: focal loss with masks of positive and ignored anchors, boxes gathered."""
    body = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            layers.Conv2D(24, 3, 2, "same", activation="relu"),
            layers.Conv2D(48, 3, 2, "same", activation="relu"),
            layers.Conv2D(96, 3, padding="same", activation="relu"),
        ]
    )
    classes, boxes = (
        layers.Conv2D(6 * 9, 3, padding="same"),
        layers.Conv2D(4 * 9, 3, padding="same"),
    )
    classes.build((None, 16, 16, 96))
    boxes.build((None, 16, 16, 96))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)

    @tf.function
    def train_step(images: Any, kinds: Any, aims: Any) -> Any:
        positive, ignored = kinds > 0.5, kinds < -1.5
        with tf.GradientTape() as tape:
            x = body(images, training=True)
            logits = tf.reshape(classes(x), (-1, 16 * 16 * 9, 6))
            moved = tf.reshape(boxes(x), (-1, 16 * 16 * 9, 4))
            labels = tf.one_hot(tf.cast(kinds, tf.int32), 6)
            entropy = tf.nn.sigmoid_cross_entropy_with_logits(
                labels=labels, logits=logits
            )
            chance = tf.nn.sigmoid(logits)
            alpha = tf.where(tf.equal(labels, 1.0), 0.25, 0.75)
            right = tf.where(tf.equal(labels, 1.0), chance, 1 - chance)
            focal = tf.reduce_sum(alpha * tf.pow(1.0 - right, 2.0) * entropy, axis=-1)
            focal = tf.where(ignored, 0.0, focal)
            near = tf.boolean_mask(moved, positive) - tf.boolean_mask(aims, positive)
            size = tf.abs(near)
            smooth = tf.where(size < 1.0, 0.5 * near**2, size - 0.5)
            count = tf.maximum(tf.reduce_sum(tf.cast(positive, tf.float32)), 1.0)
            loss = (tf.reduce_sum(focal) + tf.reduce_sum(smooth)) / count
        parts = [body, classes, boxes]
        _apply(
            optimizer,
            tape,
            loss,
            [v for part in parts for v in part.trainable_variables],
        )
        return loss

    train_step.model, train_step.optimizer = body, optimizer
    kinds = tf.random.uniform((8, 16 * 16 * 9), -2.5, 2.0)
    return train_step, (_images(8, 64), kinds, tf.random.normal((8, 16 * 16 * 9, 4)))


class Accumulating(keras.Model):
    """A train_step that adds gradients up and applies them at every third call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.every = 3
        self.calls = tf.Variable(0, dtype=tf.int32, trainable=False)
        self.sums = [
            tf.Variable(tf.zeros_like(v), trainable=False)
            for v in self.trainable_variables
        ]

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.calls.assign_add(1)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        for kept, gradient in zip(self.sums, gradients, strict=True):
            kept.assign_add(gradient)
        tf.cond(tf.equal(self.calls, self.every), self._apply_sums, lambda: None)
        return {"loss": loss}

    def _apply_sums(self) -> None:
        self.optimizer.apply_gradients(
            zip(self.sums, self.trainable_variables, strict=True)
        )
        self.calls.assign(0)
        for kept in self.sums:
            kept.assign(tf.zeros_like(kept))


def accumulating() -> Any:
    entry = keras.Input((32, 32, 3))
    x = layers.Conv2D(32, 3, activation="relu")(entry)
    x = layers.MaxPooling2D()(layers.Conv2D(48, 3, activation="relu")(x))
    x = layers.Dense(256, activation="relu")(layers.Flatten()(x))
    model = Accumulating(entry, layers.Dense(10, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(), "sparse_categorical_crossentropy")
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


def beam() -> Step:
    """Text generated token by token into a TensorArray, until all rows have ended or 24 tokens."""
    vocabulary, width = 600, 96
    table, cell, out = (
        layers.Embedding(vocabulary, width),
        layers.GRUCell(width),
        _dense(width, vocabulary),
    )
    table.build(None)
    cell.build((None, width))

    @tf.function
    def generate(first: Any, state: Any) -> Any:
        result = tf.TensorArray(tf.int32, size=24)
        token, done = first, tf.zeros_like(first, tf.bool)
        for t in tf.range(24):
            x, states = cell(table(token), [state])
            state = states[0] if isinstance(states, (list, tuple)) else states
            token = tf.argmax(out(x), -1, tf.int32)
            done = done | (token == vocabulary + 1)
            result = result.write(t, token)
            if tf.reduce_all(done):
                break
        return tf.transpose(result.stack())

    generate.model = out
    return generate, (tf.ones((64,), tf.int32), tf.random.normal((64, width)))


def python_augmented() -> Step:
    """Images changed by NumPy inside the graph, shapes set by hand afterwards."""
    model = _encoder(40, 32)
    head = _dense(32, 10)
    optimizer = keras.optimizers.Adam()

    def change(images: Any) -> Any:
        return np.flip(images, axis=2).astype(np.float32) * 0.9

    @tf.function
    def train_step(images: Any, labels: Any) -> Any:
        changed = tf.numpy_function(change, [images], tf.float32)
        changed.set_shape(images.shape)
        with tf.GradientTape() as tape:
            logits = head(model(changed, training=True))
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            )
        variables = model.trainable_variables + head.trainable_variables
        _apply(optimizer, tape, loss, variables)
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (_images(48, 40), tf.random.uniform((48,), 0, 10, tf.int32))


NAMES = """
    actor_critic dqn translation bahdanau miniature_gpt masked_language masked_bilstm ragged_classifier
    ragged_to_dense vae wgan_gp pix2pix cyclegan nerf siamese simclr moco masked_autoencoder pointnet
    graph_network gat dlrm_sparse wide_and_deep deep_and_cross two_tower maml neural_ode while_counted
    early_exit switching mixture_of_experts convlstm tcn scanned mapped ctc_reader perceiver mlp_mixer
    gmlp unet3d recomputed detector accumulating scaled style_transfer diffusion beam python_augmented
"""
CASES = NAMES.split()
