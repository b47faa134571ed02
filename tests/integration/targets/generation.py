"""A small language model with the interface of keras-hub's CausalLM, and a cache of keys and values."""

import keras  # noqa: TID253
import tensorflow as tf  # noqa: TID253

layers, ops = keras.layers, keras.ops

VOCABULARY, WIDTH, HEADS = 100, 32, 2


class Attention(layers.Layer):
    def __init__(self):
        super().__init__()
        self.key, self.value, self.out = (layers.Dense(WIDTH) for _ in range(3))

    def call(self, x, cache=None, place=0):
        key, value = self.key(x), self.value(x)
        if cache is not None:
            key = ops.slice_update(cache[:, 0], [0, place, 0], key)
            value = ops.slice_update(cache[:, 1], [0, place, 0], value)
        weights = ops.softmax(ops.matmul(x, ops.transpose(key, (0, 2, 1))))
        result = self.out(ops.matmul(weights, value))
        return result if cache is None else (result, ops.stack((key, value), axis=1))


class Speaker(keras.Model):
    generate_function = None

    def __init__(self):
        tokens = keras.Input((None,), dtype="int32", name="token_ids")
        mask = keras.Input((None,), dtype="int32", name="padding_mask")
        embedding, attention = layers.Embedding(VOCABULARY, WIDTH), Attention()
        head = layers.Dense(VOCABULARY)
        super().__init__(
            {"token_ids": tokens, "padding_mask": mask},
            head(attention(embedding(tokens))),
        )
        self.embedding, self.attention, self.head = embedding, attention, head

    def step_with_cache(self, tokens, cache, place):
        x, cache = self.attention(self.embedding(tokens), cache=cache, place=place)
        return self.head(x), cache

    def generate_step(self, inputs, stop_token_ids=None):
        tokens, mask = inputs["token_ids"], inputs["padding_mask"]
        cache = ops.zeros((tokens.shape[0], 2, tokens.shape[1], WIDTH))
        _, cache = self.step_with_cache(tokens, cache, 0)

        def body(tokens, cache, place):
            last = ops.slice(tokens, [0, place - 1], [tokens.shape[0], 1])
            logits, cache = self.step_with_cache(last, cache, place - 1)
            new = ops.cast(ops.argmax(logits, axis=-1), "int32")
            return ops.slice_update(tokens, [0, place], new), cache, place + 1

        start = ops.min(ops.sum(mask, axis=-1))
        left = tokens.shape[1] - start
        return ops.while_loop(
            lambda *_: True, body, (tokens, cache, start), maximum_iterations=left
        )[0]

    def make_generate_function(self):
        self.generate_function = tf.function(
            self.generate_step, jit_compile=self.jit_compile
        )
        return self.generate_function


def speaker():
    model = Speaker()
    model.compile(jit_compile=False)
    return model
