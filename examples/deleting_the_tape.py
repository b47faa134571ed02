"""A persistent tape keeps what the forward pass made until it is deleted or goes out of use."""

import sys

import tensorflow as tf

ROWS, WIDTH, LAYERS, STEPS = 256, 512, 8, 12


def _forward(tape, x, weights):
    with tape:
        for weight in weights:
            x = tf.nn.relu(tf.linalg.matmul(x, weight))
        return tf.reduce_sum(x**2), tf.reduce_sum(x)


def _step(*, persistent, deletes):
    weights = [
        tf.Variable(tf.random.stateless_normal((WIDTH, WIDTH), (1, i)) / WIDTH)
        for i in range(LAYERS)
    ]

    def step(x):
        tape = tf.GradientTape(persistent=persistent)
        first, second = _forward(tape, x, weights)
        gradients = tape.gradient(first, weights)
        more = tape.gradient(second, weights) if persistent else []
        if deletes:
            del tape
        # What comes after the gradients: as large as the activations.
        after = [tf.ones((ROWS, WIDTH)) + gradients[i][0] for i in range(LAYERS)]
        return [tf.reduce_sum(g) for g in (*gradients, *more, *after)]

    return step, (tf.random.stateless_normal((ROWS, WIDTH), (3, 4)),)


def plain():
    return _step(persistent=False, deletes=False)


def persistent():
    return _step(persistent=True, deletes=False)


def persistent_deleted():
    return _step(persistent=True, deletes=True)


if __name__ == "__main__":
    makers = {
        maker.__name__: maker for maker in (plain, persistent, persistent_deleted)
    }
    for name in sys.argv[1:] or makers:
        function, args = makers[name]()
        sums = [len(function(*args)) for _ in range(STEPS)]
        print(f"{name}: {sums[-1]} sums")
