import keras
import tensorflow as tf


class Trainer:
    def __init__(self):
        self.model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
        self.opt = keras.optimizers.SGD()
        self.log = {}

    def step(self, i):
        x = tf.random.normal((256, 64))
        with tf.GradientTape() as tape:
            out = self.model(x)
            loss = tf.reduce_mean(out**2)
        weights = self.model.trainable_variables
        self.opt.apply(tape.gradient(loss, weights), weights)
        self.log[i] = {"out": out}


t = Trainer()
for i in range(40):
    t.step(i)
