"""A program that profiles some of its own steps, the first of those that would be traced among them."""

import tensorflow as tf

weights = tf.Variable(tf.ones([32, 32]))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2)
    weights.assign_sub(0.01 * tape.gradient(loss, weights))


for _ in range(4):
    step(tf.ones([8, 32]))
with tf.profiler.experimental.Profile("own"):
    for _ in range(10):
        step(tf.ones([8, 32]))
for _ in range(20):
    step(tf.ones([8, 32]))
