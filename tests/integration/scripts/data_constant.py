import keras
import numpy as np
import tensorflow as tf

data = np.random.rand(200_000, 64).astype("float32")
model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(32), keras.layers.Dense(1)]
)
opt = keras.optimizers.Adam()


@tf.function
def step(start):
    x = tf.constant(data)[start : start + 256]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    opt.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


for i in range(30):
    step(tf.constant(i * 256))
