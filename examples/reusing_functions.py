"""A function is traced for each new Python number; a tensor reuses the trace that there is."""

import sys

import tensorflow as tf

WIDTH = 256


def retraced():
    table = tf.ones((WIDTH, WIDTH))

    @tf.function
    def scaled(factor):
        return tf.reduce_sum(table * factor)

    numbers = iter(range(10_000))

    def step():
        return scaled(float(next(numbers)))  # a Python number: a trace each

    step.traces = scaled.experimental_get_tracing_count
    return step, ()


def reused():
    table = tf.ones((WIDTH, WIDTH))

    @tf.function(input_signature=[tf.TensorSpec((), tf.float32)])
    def scaled(factor):
        return tf.reduce_sum(table * factor)

    numbers = iter(range(10_000))

    def step():
        return scaled(tf.constant(float(next(numbers))))

    step.traces = scaled.experimental_get_tracing_count
    return step, ()


if __name__ == "__main__":
    makers = {maker.__name__: maker for maker in (retraced, reused)}
    for name in sys.argv[1:] or makers:
        function, _ = makers[name]()
        for _ in range(20):
            function()
        print(f"{name}: {function.traces()} traces in 20 calls")
