"""One card as two of TensorFlow's, each with a limit of its own: to try code for several devices."""

import keras
import numpy as np
import tensorflow as tf

LIMIT_MIB, STEPS = 512, 12


def set_up():
    cards = tf.config.list_physical_devices("GPU")
    part = tf.config.LogicalDeviceConfiguration
    if cards:
        parts = [part(memory_limit=LIMIT_MIB), part(memory_limit=LIMIT_MIB)]
        tf.config.set_logical_device_configuration(cards[0], parts)
        return "GPU"
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [part(), part()])
    return "CPU"


def model():
    made = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    made.compile("adam", "mse", jit_compile=False)
    return made


if __name__ == "__main__":
    kind = set_up()
    devices = [d.name for d in tf.config.list_logical_devices(kind)]
    with tf.distribute.MirroredStrategy(devices).scope():
        replicated = model()
    features = np.ones((STEPS * 32, 64), "float32")
    replicated.fit(features, features[:, :1], batch_size=32, epochs=1, verbose=0)
    print(f"{len(devices)} devices of one {kind}: {', '.join(devices)}")
