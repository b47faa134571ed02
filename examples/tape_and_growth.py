"""A loop that keeps what it need not: losses as tensors with their tape, or as Python's numbers."""

import sys

import tensorflow as tf

ROWS, WIDTH, STEPS = 128, 256, 20


def _step(*, keeps):
    weight = tf.Variable(tf.random.stateless_normal((WIDTH, WIDTH), (1, 2)) / WIDTH)
    history = []

    def step(x):
        with tf.GradientTape(persistent=keeps) as tape:
            hidden = tf.nn.relu(tf.linalg.matmul(x, weight))
            loss = tf.reduce_mean(hidden**2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        history.append((loss, tape) if keeps else float(loss))
        return loss

    return step, (tf.random.stateless_normal((ROWS, WIDTH), (3, 4)),)


def keeps_tapes():
    return _step(keeps=True)


def keeps_numbers():
    return _step(keeps=False)


if __name__ == "__main__":
    makers = {maker.__name__: maker for maker in (keeps_tapes, keeps_numbers)}
    for name in sys.argv[1:] or makers:
        function, args = makers[name]()
        losses = [float(function(*args)) for _ in range(STEPS)]
        print(f"{name}: loss {losses[0]:.6f} to {losses[-1]:.6f}")
