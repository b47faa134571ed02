"""A list fills the card in a step long after the traced ones."""

import keras
import tensorflow as tf

model = keras.Sequential(
    [keras.layers.Input((64,)), keras.layers.Dense(256, "relu", name="wide"), keras.layers.Dense(8)]
)
optimizer = keras.optimizers.Adam()
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    weights = model.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)
    return tf.matmul(x, x, transpose_b=True)


kept = []
x, y = tf.random.normal([256, 64]), tf.zeros([256], tf.int32)
for _ in range(2000):
    kept.append(step(x, y))
