"""Training steps written by hand, each a ``tf.function`` whose signature leaves the batch open.

Figures: benchmarks/results/fit-cost.md.
"""

from __future__ import annotations

from typing import Any

import keras  # noqa: TID253
import tensorflow as tf  # noqa: TID253
from keras import layers  # noqa: TID253


def two_optimizers() -> Any:
    """An autoencoder whose halves have optimizers of their own, with noise between them."""
    narrow = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(24, 4, strides=2, padding="same", activation="swish"),
            layers.Conv2D(48, 4, strides=2, padding="same", activation="swish"),
            layers.Flatten(),
            layers.Dense(32),
        ]
    )
    widen = keras.Sequential(
        [
            keras.Input((16,)),
            layers.Dense(7 * 7 * 48, activation="swish"),
            layers.Reshape((7, 7, 48)),
            layers.Conv2DTranspose(
                24, 4, strides=2, padding="same", activation="swish"
            ),
            layers.Conv2DTranspose(1, 4, strides=2, padding="same"),
        ]
    )
    rules = keras.optimizers.Adam(1e-3), keras.optimizers.SGD(1e-2, momentum=0.9)
    for rule, half in zip(rules, (narrow, widen), strict=True):
        rule.build(half.trainable_variables)

    @tf.function(input_signature=[tf.TensorSpec((None, 28, 28, 1), name="images")])
    def step(images: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            middle, spread = tf.split(narrow(images, training=True), 2, axis=1)
            code = middle + tf.exp(0.5 * spread) * tf.random.normal(tf.shape(middle))
            made = widen(code, training=True)
            crossed = tf.nn.sigmoid_cross_entropy_with_logits(
                labels=images, logits=made
            )
            apart = tf.square(middle) + tf.exp(spread) - spread - 1.0
            loss = tf.reduce_mean(tf.reduce_sum(crossed, (1, 2, 3)))
            loss += 0.5 * tf.reduce_mean(tf.reduce_sum(apart, 1))
        for rule, half in zip(rules, (narrow, widen), strict=True):
            rule.apply(
                tape.gradient(loss, half.trainable_variables), half.trainable_variables
            )
        return loss

    return step


def segment_losses() -> Any:
    """Words of sentences summed by group; the loss is the mean of each group's own."""
    table = tf.Variable(tf.random.normal((4000, 48)), name="table")
    head = keras.Sequential(
        [keras.Input((48,)), layers.Dense(256, activation="relu"), layers.Dense(20)]
    )
    rule = keras.optimizers.Adagrad(0.05)
    weights = [table, *head.trainable_variables]
    rule.build(weights)

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, 24), tf.int32, name="words"),
            tf.TensorSpec((None,), tf.int32, name="groups"),
        ]
    )
    def step(words: Any, groups: Any) -> Any:
        with tf.GradientTape() as tape:
            read = tf.nn.embedding_lookup(table, words)
            said = tf.nn.log_softmax(head(tf.reduce_max(read, 1), training=True))
            groups = groups % 16
            means = tf.math.unsorted_segment_mean(said, groups, 16)
            apart = tf.square(said - tf.gather(means, groups))
            sums = tf.math.unsorted_segment_sum(tf.reduce_sum(apart, 1), groups, 16)
            loss = tf.reduce_mean(sums) - tf.reduce_mean(tf.reduce_max(said, 1))
        rule.apply(tape.gradient(loss, weights), weights)
        return loss

    return step


def differential_equation() -> Any:
    """A network held to the heat equation: second derivatives by its inputs, then the weights'."""
    field = keras.Sequential(
        [
            keras.Input((2,)),
            *(layers.Dense(96, activation="tanh") for _ in range(4)),
            layers.Dense(1),
        ]
    )
    rule = keras.optimizers.Adam(1e-3)
    rule.build(field.trainable_variables)

    @tf.function(input_signature=[tf.TensorSpec((None, 2), name="points")])
    def step(points: Any) -> Any:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as second:
                second.watch(points)
                with tf.GradientTape() as first:
                    first.watch(points)
                    heat = field(points, training=True)
                slope = first.gradient(heat, points)
                along = slope[:, 0:1]
            bend = second.gradient(along, points)[:, 0:1]
            loss = tf.reduce_mean(tf.square(slope[:, 1:2] - 0.1 * bend))
            loss += tf.reduce_mean(tf.square(heat - tf.sin(points[:, 0:1])))
        weights = field.trainable_variables
        rule.apply(tape.gradient(loss, weights), weights)
        return loss

    return step


def hard_triplets() -> Any:
    """Each image against each other of the batch: the furthest alike and the nearest other one."""
    describe = keras.Sequential(
        [
            keras.Input((20, 20, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(32),
        ]
    )
    rule = keras.optimizers.Nadam(1e-3)
    rule.build(describe.trainable_variables)

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, 20, 20, 3), name="images"),
            tf.TensorSpec((None,), tf.int32, name="labels"),
        ]
    )
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            codes = tf.math.l2_normalize(describe(images, training=True), axis=1)
            apart = 2.0 - 2.0 * tf.matmul(codes, codes, transpose_b=True)
            alike = tf.equal(labels[:, None], labels[None, :])
            furthest = tf.reduce_max(tf.where(alike, apart, tf.zeros_like(apart)), 1)
            nearest = tf.reduce_min(
                tf.where(alike, tf.fill(tf.shape(apart), 4.0), apart), 1
            )
            loss = tf.reduce_mean(tf.nn.relu(furthest - nearest + 0.2))
        weights = describe.trainable_variables
        rule.apply(tape.gradient(loss, weights), weights)
        return loss

    return step


def rollout() -> Any:
    """A controller that is followed for sixteen steps in a loop, and learns from all of them."""
    cell = layers.GRUCell(96)
    act = layers.Dense(8, activation="tanh")
    cell.build((None, 16))
    act.build((None, 96))
    weights = [*cell.trainable_variables, *act.trainable_variables]
    rule = keras.optimizers.Adam(3e-4, clipnorm=1.0)
    rule.build(weights)

    @tf.function(input_signature=[tf.TensorSpec((None, 16), name="starts")])
    def step(starts: Any) -> Any:
        with tf.GradientTape() as tape:
            place = starts
            memory = tf.zeros((tf.shape(starts)[0], 96))
            costs = tf.TensorArray(tf.float32, size=16)
            for at in tf.range(16):
                seen, states = cell(place, [memory])
                memory = states[0]
                moved = tf.concat([act(seen), tf.zeros_like(place[:, 8:])], 1)
                place = 0.95 * place + 0.1 * moved
                costs = costs.write(at, tf.reduce_sum(tf.square(place), 1))
            loss = tf.reduce_mean(costs.stack())
        rule.apply(tape.gradient(loss, weights), weights)
        return loss

    return step


def ragged_words() -> Any:
    """A signature with a ragged tensor: it has no batch to look for."""
    table = tf.Variable(tf.random.normal((100, 8)), name="table")

    @tf.function(input_signature=[tf.RaggedTensorSpec((None, None), tf.int32)])
    def step(words: Any) -> Any:
        return tf.reduce_sum(
            tf.ragged.map_flat_values(tf.nn.embedding_lookup, table, words)
        )

    return step
