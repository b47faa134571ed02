import keras
import tensorflow as tf

model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dense(10),
    ]
)
opt = keras.optimizers.Adam()


def main():
    history = []
    for i in range(40):
        x, y = tf.random.normal((512, 64)), tf.random.normal((512, 10))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply(grads, model.trainable_variables)
        history.append(float(loss))


main()
