"""Run in a child process: a random workload under TensorFlow's BFC allocator, profiled throughout.

    TF_CPU_ALLOCATOR_USE_BFC=1 python record_workload.py eager|graph|step|jit SEED LOGDIR

``tf.raw_ops.Empty`` takes memory without touching it, so hundreds of MiB cost nothing.
"""

import os
import random
import sys

import tensorflow as tf  # noqa: TID253

LARGEST_LIVE_BYTES = 3 << 29


def size(rng, largest):
    return int(2 ** rng.uniform(0, rng.choice([9, 14, 20, largest])))


def empty(size_bytes):
    return tf.raw_ops.Empty(shape=[size_bytes], dtype=tf.uint8, init=False)


def eager(rng):
    live, total = [], 0
    for _ in range(2500):
        if live and (rng.random() < 0.48 or total > LARGEST_LIVE_BYTES):
            tensor, size_bytes = live.pop(rng.randrange(len(live)))
            total -= size_bytes
            del tensor
        else:
            size_bytes = size(rng, 29)
            live.append((empty(size_bytes), size_bytes))
            total += size_bytes


def graph(rng):
    @tf.function
    def run():
        live, results = [], []
        for _ in range(200):
            live.append(empty(size(rng, 25) + 1))
            if len(live) > 3 and rng.random() < 0.6:
                last = live.pop(rng.randrange(len(live)))
                with tf.control_dependencies([tf.shape(last)]):
                    results.append(tf.reduce_sum(tf.cast(last[:7], tf.int32)))
        return tf.add_n(results)

    for _ in range(4):
        run()


def step(rng, jit_compile=False):
    weights = [tf.Variable(tf.random.normal([256, 256])) for _ in range(4)]

    @tf.function(jit_compile=jit_compile)
    def train(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.nn.relu(x @ weight)
            loss = tf.reduce_mean(x)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)
        return loss

    for _ in range(6):
        train(tf.random.normal([64 if jit_compile else rng.randrange(1, 512), 256]))


def jit(rng):
    step(rng, jit_compile=True)


if __name__ == "__main__":
    kind, seed, logdir = sys.argv[1:]
    tf.profiler.experimental.start(logdir)
    {"eager": eager, "graph": graph, "step": step, "jit": jit}[kind](
        random.Random(int(seed))
    )
    tf.profiler.experimental.stop()
    sys.stdout.flush()
    os._exit(0)  # what the interpreter frees while it ends is of no interest
