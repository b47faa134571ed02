import keras
import tensorflow as tf

model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dense(10),
    ]
)
opt = keras.optimizers.SGD()


def train():
    for i in range(30):
        x, y = tf.random.normal((16384, 64)), tf.random.normal((16384, 10))
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply(grads, model.trainable_variables)


train()
