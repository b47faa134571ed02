from dataclasses import dataclass

import keras
import tensorflow as tf


@dataclass
class Step:
    obs: tf.Tensor
    value: tf.Tensor


def rollout(net, opt, n):
    episodes = []
    obs = tf.random.normal([8, 24])
    for t in range(n):
        with tf.GradientTape() as tape:
            value = net(obs)
            loss = tf.reduce_mean(value**2)
        grads = tape.gradient(loss, net.trainable_variables)
        opt.apply(grads, net.trainable_variables)
        episodes.append(Step(obs, value))
        obs = obs * 0.9 + tf.random.normal([8, 24])
    return episodes


if __name__ == "__main__":
    net = keras.Sequential([keras.Input((24,)), keras.layers.Dense(1)])
    rollout(net, keras.optimizers.SGD(0.01), 50)
