"""Growth: the pool starts small and grows on demand. What it took it keeps."""

import sys

import tensorflow as tf

STEPS = 12


def set_up(grows=True):
    for card in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(card, grows)


def step():
    @tf.function
    def sums(x):
        return tf.reduce_sum(tf.linalg.matmul(x, x, transpose_b=True))

    return sums, (tf.ones((1024, 1024)),)


if __name__ == "__main__":
    set_up("--no-growth" not in sys.argv)
    function, args = step()
    for _ in range(STEPS):
        small = float(function(*args))
    print(f"small: {small:.0f}")
    large = tf.ones(
        (4096, 4096)
    )  # 64 MiB, given back to the pool below, and not to the card
    print(f"large: {float(tf.reduce_sum(large)):.0f}")
    del large
