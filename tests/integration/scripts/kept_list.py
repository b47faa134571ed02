import keras
import tensorflow as tf

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
opt = keras.optimizers.Adam()
losses = []


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        out = model(x, training=True)
        loss = tf.reduce_mean((out - y) ** 2)
    weights = model.trainable_variables
    opt.apply(tape.gradient(loss, weights), weights)
    return loss, out


for i in range(40):
    x, y = tf.random.normal((512, 64)), tf.random.normal((512, 10))
    loss, out = train_step(x, y)
    losses.append(out)
