"""One card of several, with a memory limit, so that other programs find room."""

import tensorflow as tf

LIMIT_MIB, STEPS = 1024, 12


def set_up():
    """Before TensorFlow makes its devices; without a card there is nothing to set."""
    cards = tf.config.list_physical_devices("GPU")
    if cards:
        tf.config.set_visible_devices(cards[:1], "GPU")
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=LIMIT_MIB)
        tf.config.set_logical_device_configuration(cards[0], [limit])
    return len(cards)


def step():
    @tf.function
    def product(x):
        return tf.reduce_sum(tf.linalg.matmul(x, x))

    return product, (tf.ones((512, 512)),)


if __name__ == "__main__":
    found = set_up()
    function, args = step()
    for _ in range(STEPS):
        total = float(function(*args))
    print(
        f"{found} cards, {len(tf.config.list_logical_devices('GPU'))} used: {total:.0f}"
    )
