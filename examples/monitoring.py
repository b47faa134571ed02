"""TensorFlow's own figures while a program runs; the CPU has them with TF_CPU_ALLOCATOR_USE_BFC=1."""

import os

os.environ.setdefault(
    "TF_CPU_ALLOCATOR_USE_BFC", "1"
)  # before TensorFlow makes its first tensor

import tensorflow as tf


def step():
    @tf.function
    def squares(x):
        return tf.reduce_sum(tf.linalg.matmul(x, x) ** 2)

    return squares, (tf.ones((1024, 1024)),)


def device():
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


if __name__ == "__main__":
    function, args = step()
    for number in range(12):
        tf.config.experimental.reset_memory_stats(device())
        function(*args)
        memory = tf.config.experimental.get_memory_info(device())
        print(
            f"step {number}: {memory['current']:,} bytes in use, {memory['peak']:,} at the peak"
        )
