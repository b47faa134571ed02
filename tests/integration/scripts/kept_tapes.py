import keras
import tensorflow as tf

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256)])
opt = keras.optimizers.SGD()


def main():
    tapes = []
    for i in range(30):
        x = tf.random.normal((256, 64))
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        opt.apply(
            tape.gradient(loss, model.trainable_variables), model.trainable_variables
        )
        tapes.append(tape)


main()
