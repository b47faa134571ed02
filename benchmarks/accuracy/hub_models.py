"""Steps after the models of KerasHub, held back: no rule and no rate was made by looking at them.

Each function returns a compiled Keras model (run with batches of 32 unless its case names another) or
``(tf_function, args)``. The layers are written out small, after the papers that KerasHub follows;
``benchmarks/accuracy/accuracy.py --hub`` estimates each and holds it against real runs.
"""

# ruff: noqa: TID253

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

layers, ops = keras.layers, keras.ops
Step = tuple[Any, tuple[Any, ...]]


def _tokens(count: int, length: int, vocabulary: int) -> Any:
    return tf.random.uniform((count, length), 1, vocabulary, tf.int32)


def _classifier(entry: Any, out: Any, optimizer: Any) -> Any:
    model = keras.Model(entry, out)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


class RMSNorm(layers.Layer):
    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x: Any) -> Any:
        square = ops.mean(ops.square(ops.cast(x, "float32")), axis=-1, keepdims=True)
        return x * ops.rsqrt(square + 1e-6) * self.scale


class Rotary(layers.Layer):
    """Turns the halves of each head's vector by an angle of its place (RoPE)."""

    def call(self, x: Any) -> Any:
        length, half = x.shape[1], x.shape[-1] // 2
        frequencies = ops.power(10000.0, -ops.arange(half, dtype="float32") / half)
        angles = ops.expand_dims(ops.arange(length, dtype="float32"), 1) * frequencies
        cos, sin = (
            ops.reshape(f(angles), (1, length, 1, half)) for f in (ops.cos, ops.sin)
        )
        left, right = ops.split(x, 2, axis=-1)
        return ops.concatenate(
            [left * cos - right * sin, right * cos + left * sin], axis=-1
        )


class GroupedAttention(layers.Layer):
    """Attention whose keys and values are shared by groups of queries, with rotary places."""

    def __init__(self, heads: int, groups: int, width: int) -> None:
        super().__init__()
        self.heads, self.groups, self.width = heads, groups, width
        self.query = layers.EinsumDense("btd,dhk->bthk", (None, heads, width))
        self.key = layers.EinsumDense("btd,dhk->bthk", (None, groups, width))
        self.value = layers.EinsumDense("btd,dhk->bthk", (None, groups, width))
        self.out = layers.EinsumDense("bthk,hkd->btd", (None, heads * width))
        self.rotary = Rotary()

    def call(self, x: Any) -> Any:
        q, k, v = self.rotary(self.query(x)), self.rotary(self.key(x)), self.value(x)
        k, v = (ops.repeat(each, self.heads // self.groups, axis=2) for each in (k, v))
        scores = ops.einsum("bqhk,bshk->bhqs", q, k) / self.width**0.5
        length = x.shape[1]
        mask = ops.tril(ops.ones((length, length), "bool"))
        weights = ops.softmax(ops.where(mask, scores, -1e9))
        return self.out(ops.einsum("bhqs,bshk->bqhk", weights, v))


def llama() -> Any:
    """A decoder with RMS norms, gated linear units and grouped keys."""
    entry = keras.Input((96,), dtype="int32")
    x = layers.Embedding(1500, 192)(entry)
    for _ in range(4):
        x = x + GroupedAttention(6, 2, 32)(RMSNorm()(x))
        h = RMSNorm()(x)
        h = layers.Dense(512, activation="silu", use_bias=False)(h) * layers.Dense(
            512, use_bias=False
        )(h)
        x = x + layers.Dense(192, use_bias=False)(h)
    return _classifier(entry, layers.Dense(1500, use_bias=False)(RMSNorm()(x)), "adamw")


def bert() -> Any:
    """An encoder with places and segments, a mask of the padding, and a pooled classifier."""
    ids = keras.Input((128,), dtype="int32", name="ids")
    x = layers.Embedding(3000, 160, mask_zero=True)(ids)
    x = x + layers.Embedding(128, 160)(ops.arange(128))
    x = layers.Dropout(0.1)(layers.LayerNormalization(epsilon=1e-12)(x))
    for _ in range(3):
        h = layers.MultiHeadAttention(4, 40, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(0.1)(h)]))
        h = layers.Dense(160)(layers.Dense(640, activation="gelu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(0.1)(h)]))
    pooled = layers.Dense(160, activation="tanh")(x[:, 0])
    return _classifier(ids, layers.Dense(2)(layers.Dropout(0.1)(pooled)), "adam")


def tied_language_model() -> Step:
    """GPT-2 in small: the table of the tokens is the last product's too, gradients are clipped."""
    table = layers.Embedding(2000, 144)
    places = layers.Embedding(64, 144)
    entry = keras.Input((64,), dtype="int32")
    x = table(entry) + places(ops.arange(64))
    for _ in range(3):
        h = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 36)(h, h, use_causal_mask=True)
        h = layers.Dense(576, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(144)(h)
    body = keras.Model(entry, layers.LayerNormalization()(x))
    optimizer = keras.optimizers.AdamW(1e-4, global_clipnorm=1.0)

    @tf.function
    def train_step(tokens: Any, following: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.matmul(
                body(tokens, training=True), table.embeddings, transpose_b=True
            )
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(following, logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, body.trainable_variables)
        optimizer.apply_gradients(zip(gradients, body.trainable_variables, strict=True))
        return loss

    train_step.model, train_step.optimizer = body, optimizer
    return train_step, (_tokens(16, 64, 2000), _tokens(16, 64, 2000))


class RelativeAttention(layers.Layer):
    """Attention with a learned bias for each distance and head, and no scale (T5)."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.bias = layers.Embedding(32, heads)
        shape = (None, heads, width)
        self.query, self.key, self.value = (
            layers.EinsumDense("btd,dhk->bthk", shape) for _ in range(3)
        )
        self.out = layers.EinsumDense("bthk,hkd->btd", (None, heads * width))

    def call(self, x: Any, context: Any) -> Any:
        rows, columns = x.shape[1], context.shape[1]
        distance = ops.expand_dims(ops.arange(columns), 0) - ops.expand_dims(
            ops.arange(rows), 1
        )
        bias = ops.transpose(self.bias(ops.clip(distance + 16, 0, 31)), (2, 0, 1))
        q, k, v = self.query(x), self.key(context), self.value(context)
        scores = ops.einsum("bqhk,bshk->bhqs", q, k) + bias
        return self.out(ops.einsum("bhqs,bshk->bqhk", ops.softmax(scores), v))


def t5() -> Step:
    """Encoder and decoder with distances as bias, by Adafactor."""
    source, target = (keras.Input((n,), dtype="int32") for n in (80, 48))
    table = layers.Embedding(1200, 128)

    def feed_forward(x: Any) -> Any:
        return x + layers.Dense(128)(layers.Dense(384, activation="relu")(RMSNorm()(x)))

    x, y = table(source), table(target)
    for _ in range(2):
        h = RMSNorm()(x)
        x = feed_forward(x + RelativeAttention(4, 32)(h, h))
    for _ in range(2):
        h = RMSNorm()(y)
        y = y + RelativeAttention(4, 32)(h, h)
        y = feed_forward(y + RelativeAttention(4, 32)(RMSNorm()(y), x))
    model = keras.Model([source, target], layers.Dense(1200)(y))
    optimizer = keras.optimizers.Adafactor(1e-3)

    @tf.function
    def train_step(tokens: Any, given: Any, following: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model([tokens, given], training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(following, logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    return train_step, (
        _tokens(24, 80, 1200),
        _tokens(24, 48, 1200),
        _tokens(24, 48, 1200),
    )


def mobilenet_v3() -> Any:
    """Inverted bottlenecks with squeeze and excitation and hard swish."""
    entry = keras.Input((64, 64, 3))
    x = layers.Conv2D(16, 3, 2, padding="same", use_bias=False)(entry)
    x = layers.Activation("hard_swish")(layers.BatchNormalization()(x))
    for width, stride, expand in (
        (16, 2, 2),
        (24, 2, 4),
        (24, 1, 4),
        (48, 2, 4),
        (48, 1, 6),
    ):
        h = layers.Conv2D(x.shape[-1] * expand, 1, use_bias=False)(x)
        h = layers.Activation("hard_swish")(layers.BatchNormalization()(h))
        h = layers.DepthwiseConv2D(5, stride, padding="same", use_bias=False)(h)
        h = layers.Activation("hard_swish")(layers.BatchNormalization()(h))
        s = layers.GlobalAveragePooling2D(keepdims=True)(h)
        s = layers.Conv2D(h.shape[-1] // 4, 1, activation="relu")(s)
        h = h * layers.Conv2D(h.shape[-1], 1, activation="hard_sigmoid")(s)
        h = layers.BatchNormalization()(layers.Conv2D(width, 1, use_bias=False)(h))
        x = layers.Add()([x, h]) if stride == 1 else h
    x = layers.Dense(10)(layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x)))
    return _classifier(entry, x, keras.optimizers.RMSprop(momentum=0.9))


def densenet() -> Any:
    """Each layer gets what all before it made."""
    entry = keras.Input((48, 48, 3))
    x = layers.Conv2D(24, 3, padding="same", use_bias=False)(entry)
    for block in range(3):
        for _ in range(4):
            h = layers.ReLU()(layers.BatchNormalization()(x))
            h = layers.Conv2D(48, 1, use_bias=False)(h)
            h = layers.ReLU()(layers.BatchNormalization()(h))
            x = layers.Concatenate()([x, layers.Conv2D(12, 3, padding="same")(h)])
        if block < 2:
            x = layers.Conv2D(x.shape[-1] // 2, 1)(
                layers.ReLU()(layers.BatchNormalization()(x))
            )
            x = layers.AveragePooling2D(2)(x)
    x = layers.GlobalAveragePooling2D()(x)
    return _classifier(
        entry, layers.Dense(10)(x), keras.optimizers.SGD(0.1, momentum=0.9)
    )


def deeplab() -> Step:
    """Holes in the filters at three rates side by side, fine features joined later."""
    entry = keras.Input((64, 64, 3))
    fine = layers.Conv2D(24, 3, 2, padding="same", activation="relu")(entry)
    x = layers.Conv2D(48, 3, 2, padding="same", activation="relu")(fine)
    x = layers.Conv2D(64, 3, padding="same", activation="relu")(x)
    pooled = layers.Conv2D(32, 1, activation="relu")(
        layers.GlobalAveragePooling2D(keepdims=True)(x)
    )
    branches = [layers.UpSampling2D(16, interpolation="bilinear")(pooled)]
    branches.append(layers.Conv2D(32, 1, activation="relu")(x))
    for rate in (2, 4, 6):
        h = layers.Conv2D(32, 3, padding="same", dilation_rate=rate, use_bias=False)(x)
        branches.append(layers.ReLU()(layers.BatchNormalization()(h)))
    x = layers.Conv2D(48, 1, activation="relu")(layers.Concatenate()(branches))
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Concatenate()([x, layers.Conv2D(12, 1, activation="relu")(fine)])
    x = layers.SeparableConv2D(48, 3, padding="same", activation="relu")(x)
    x = layers.UpSampling2D(2, interpolation="bilinear")(layers.Conv2D(8, 1)(x))
    model = keras.Model(entry, x)
    optimizer = keras.optimizers.Adam()

    @tf.function
    def train_step(images: Any, labels: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    shape = (12, 64, 64)
    labels = tf.random.uniform(shape, 0, 8, tf.int32)
    return train_step, (tf.random.normal((*shape, 3)), labels, tf.random.uniform(shape))


def retinanet() -> Step:
    """A pyramid of features whose levels share two heads; focal and smooth losses."""
    entry = keras.Input((96, 96, 3))
    x, levels = entry, []
    for width in (16, 32, 64, 96):
        x = layers.Conv2D(width, 3, 2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        levels.append(x)
    top = layers.Conv2D(48, 1)(levels[3])
    pyramid = [top]
    for level in (levels[2], levels[1]):
        top = layers.Add()([layers.UpSampling2D(2)(top), layers.Conv2D(48, 1)(level)])
        pyramid.append(layers.Conv2D(48, 3, padding="same")(top))

    def head(outputs: int) -> Any:
        hidden = [
            layers.Conv2D(48, 3, padding="same", activation="relu") for _ in range(2)
        ]
        last = layers.Conv2D(outputs, 3, padding="same")
        return keras.Sequential([keras.Input((None, None, 48)), *hidden, last])

    classes, boxes = head(9 * 4), head(9 * 4)
    told = [
        [layers.Reshape((-1, 4))(part(p)) for p in pyramid] for part in (classes, boxes)
    ]
    model = keras.Model(entry, [layers.Concatenate(axis=1)(each) for each in told])
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9, global_clipnorm=10.0)
    focal = keras.losses.BinaryFocalCrossentropy(from_logits=True)
    huber = keras.losses.Huber()

    @tf.function
    def train_step(images: Any, labels: Any, places: Any) -> Any:
        with tf.GradientTape() as tape:
            scores, corners = model(images, training=True)
            loss = focal(labels, scores) + huber(places, corners)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    anchors = (8, 9 * (6 * 6 + 12 * 12 + 24 * 24), 4)
    labels = tf.cast(tf.random.uniform(anchors) > 0.9, tf.float32)
    return train_step, (
        tf.random.normal((8, 96, 96, 3)),
        labels,
        tf.random.normal(anchors),
    )


def wavenet() -> Any:
    """Gated causal convolutions with doubling holes, whose skips are summed up at the end."""
    entry = keras.Input((512, 1))
    x = layers.Conv1D(32, 2, padding="causal")(entry)
    skips = []
    for rate in (1, 2, 4, 8, 16, 32, 64):
        f = layers.Conv1D(
            32, 2, padding="causal", dilation_rate=rate, activation="tanh"
        )(x)
        g = layers.Conv1D(
            32, 2, padding="causal", dilation_rate=rate, activation="sigmoid"
        )(x)
        h = layers.Multiply()([f, g])
        skips.append(layers.Conv1D(48, 1)(h))
        x = layers.Add()([x, layers.Conv1D(32, 1)(h)])
    x = layers.Conv1D(64, 1, activation="relu")(layers.ReLU()(layers.Add()(skips)))
    model = keras.Model(entry, layers.Conv1D(1, 1)(x))
    model.compile("adam", "mse")
    return model


class LowRank(layers.Layer):
    """A dense layer that is not trained beside two thin ones that are (LoRA)."""

    def __init__(self, width: int, rank: int, activation: str | None = None) -> None:
        super().__init__()
        self.base = layers.Dense(width)
        self.down = layers.Dense(rank, use_bias=False)
        self.up = layers.Dense(width, use_bias=False, kernel_initializer="zeros")
        self.activation = keras.activations.get(activation)

    def call(self, x: Any) -> Any:
        return self.activation(self.base(x) + 0.5 * self.up(self.down(x)))


def lora() -> Any:
    """A frozen encoder that is trained through thin layers beside its own."""
    entry = keras.Input((96, 160))
    x = entry
    for _ in range(4):
        h = layers.LayerNormalization()(x)
        q, k, v = (LowRank(160, 8)(h) for _ in range(3))
        x = x + LowRank(160, 8)(layers.Attention(use_scale=True)([q, v, k]))
        h = LowRank(640, 8, "gelu")(layers.LayerNormalization()(x))
        x = x + LowRank(160, 8)(h)
    model = keras.Model(entry, layers.Dense(5)(layers.GlobalAveragePooling1D()(x)))
    for layer in model.layers:
        if isinstance(layer, LowRank):
            layer.base.trainable = False
        elif isinstance(layer, layers.LayerNormalization):
            layer.trainable = False
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def autoencoder_kl() -> Step:
    """The image coder of a latent diffusion model: group norms, attention in the middle, two losses."""

    def block(x: Any, width: int) -> Any:
        h = layers.Conv2D(width, 3, padding="same")(
            layers.Activation("silu")(layers.GroupNormalization(8)(x))
        )
        h = layers.Conv2D(width, 3, padding="same")(
            layers.Activation("silu")(layers.GroupNormalization(8)(h))
        )
        x = x if x.shape[-1] == width else layers.Conv2D(width, 1)(x)
        return layers.Add()([x, h])

    entry, code = keras.Input((32, 32, 3)), keras.Input((8, 8, 4))
    x = layers.Conv2D(24, 3, padding="same")(entry)
    for width in (24, 48):
        x = layers.Conv2D(width, 3, 2, padding="same")(block(x, width))
    flat = layers.Reshape((64, 48))(layers.GroupNormalization(8)(x))
    x = x + layers.Reshape((8, 8, 48))(layers.Attention()([flat, flat]))
    coder = keras.Model(entry, layers.Conv2D(8, 1)(block(x, 48)))
    y = block(layers.Conv2D(48, 3, padding="same")(code), 48)
    for width in (48, 24):
        y = layers.Conv2D(width, 3, padding="same")(
            layers.UpSampling2D(2)(block(y, width))
        )
    decoder = keras.Model(code, layers.Conv2D(3, 3, padding="same")(y))
    optimizer = keras.optimizers.Adam(1e-4)

    @tf.function
    def train_step(images: Any) -> Any:
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(coder(images, training=True), 2, axis=-1)
            noise = tf.random.normal(tf.shape(mean))
            told = decoder(mean + tf.exp(0.5 * log_variance) * noise, training=True)
            spread = tf.square(mean) + tf.exp(log_variance) - 1.0 - log_variance
            loss = tf.reduce_mean(tf.abs(images - told)) + 1e-4 * tf.reduce_mean(spread)
        variables = coder.trainable_variables + decoder.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    train_step.model, train_step.optimizer = coder, optimizer
    return train_step, (tf.random.normal((16, 32, 32, 3)),)


def whisper() -> Step:
    """Sound to text: convolutions over a spectrogram, an encoder, a decoder that looks at it."""
    sound, text = keras.Input((200, 40)), keras.Input((32,), dtype="int32")
    x = layers.Conv1D(96, 3, padding="same", activation="gelu")(sound)
    x = layers.Conv1D(96, 3, 2, padding="same", activation="gelu")(x)

    def feed_forward(x: Any) -> Any:
        h = layers.Dense(384, activation="gelu")(layers.LayerNormalization()(x))
        return x + layers.Dense(96)(h)

    for _ in range(2):
        h = layers.LayerNormalization()(x)
        x = feed_forward(x + layers.MultiHeadAttention(4, 24)(h, h))
    y = layers.Embedding(800, 96)(text) + layers.Embedding(32, 96)(ops.arange(32))
    for _ in range(2):
        h = layers.LayerNormalization()(y)
        y = y + layers.MultiHeadAttention(4, 24)(h, h, use_causal_mask=True)
        h = layers.LayerNormalization()(y)
        y = feed_forward(y + layers.MultiHeadAttention(4, 24)(h, x))
    model = keras.Model(
        [sound, text], layers.Dense(800)(layers.LayerNormalization()(y))
    )
    optimizer = keras.optimizers.AdamW(1e-4)

    @tf.function
    def train_step(spectra: Any, tokens: Any, following: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model([spectra, tokens], training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(following, logits)
            counts = tf.cast(following != 1, losses.dtype)
            loss = tf.reduce_sum(losses * counts) / tf.reduce_sum(counts)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    train_step.model, train_step.optimizer = model, optimizer
    spectra = tf.random.normal((16, 200, 40))
    return train_step, (spectra, _tokens(16, 32, 800), _tokens(16, 32, 800))


NAMES = """
    llama bert tied_language_model t5 mobilenet_v3 densenet deeplab retinanet wavenet lora
    autoencoder_kl whisper
"""
CASES = NAMES.split()
