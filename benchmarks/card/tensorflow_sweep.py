"""Workspaces that TensorFlow's convolutions take on this machine's card, with the trials of autotuning.

    python benchmarks/card/tensorflow_sweep.py LOGDIR

Each convolution and its two gradients run twice under the profiler: the first call tries cuDNN's
algorithms, the second has the chosen workspace. ``read_choices`` reads the trace.

Figures: "252 convolutions on the H200" in docs/accuracy.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from card_record import ConvolutionChoice, offer_algorithms

SHAPES: Final = (
    (224, 3, 64, 7, 2), (224, 3, 64, 3, 1), (112, 64, 128, 3, 1), (56, 64, 64, 1, 1),
    (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 128, 128, 3, 2), (28, 128, 128, 3, 1),
    (28, 256, 512, 1, 2), (14, 256, 256, 3, 1), (14, 1024, 256, 1, 1), (7, 512, 512, 3, 1),
    (30, 96, 256, 5, 1), (14, 256, 384, 3, 1), (35, 50, 70, 3, 1), (62, 1, 96, 11, 4),
)  # fmt: skip
"""Side of the image, channels, filters, side of the filter, stride."""

BATCHES: Final = (8, 64)
DTYPES: Final = ("float32", "float16", "bfloat16")
PASSES: Final = ("forward", "input_gradient", "filter_gradient")
_GUARDS: Final = 16 << 20  # of a trial, before and after its workspace
_NAME: Final = re.compile(
    r"n(\d+)_h(\d+)_c(\d+)_k(\d+)_r(\d+)_s(\d+)_([a-z0-9]+)/(\w+_?\w+)$"
)


def run(logdir: Path) -> None:
    """Run all convolutions on the first GPU and write the trace."""
    import tensorflow as tf

    offer_algorithms()
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0
    )
    tf.profiler.experimental.start(str(logdir), options=options)
    for side, channels, filters, window, stride in SHAPES:
        for batch in BATCHES:
            for dtype in DTYPES:
                name = f"n{batch}_h{side}_c{channels}_k{filters}_r{window}_s{stride}_{dtype}"
                images = tf.cast(tf.random.normal((batch, side, side, channels)), dtype)
                weights = tf.cast(
                    tf.random.normal((window, window, channels, filters)), dtype
                )
                step = tf.function(_step)
                for _ in range(2):
                    step(images, weights, stride, name)
    tf.profiler.experimental.stop()


def _step(images, weights, stride, name):  # type: ignore[no-untyped-def]
    import tensorflow as tf

    steps = [1, stride, stride, 1]
    with tf.name_scope(name):
        result = tf.nn.conv2d(images, weights, stride, "SAME", name=PASSES[0])
        one = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=tf.shape(images), filter=weights, out_backprop=result, strides=steps,
            padding="SAME", name=PASSES[1],
        )  # fmt: skip
        other = tf.raw_ops.Conv2DBackpropFilter(
            input=images, filter_sizes=tf.shape(weights), out_backprop=result, strides=steps,
            padding="SAME", name=PASSES[2],
        )  # fmt: skip
    return tf.reduce_sum(tf.cast(one, tf.float32)) + tf.reduce_sum(
        tf.cast(other, tf.float32)
    )


def read_choices(trace: Path) -> Iterator[ConvolutionChoice]:
    """Yield the choice and the largest trial of each convolution in a trace of this script."""
    from analyzer.tracing.measure.measured_recording import open_measured

    recording = open_measured(trace).recording
    table = recording.allocations
    table = table[table["allocator"] == recording.allocator].sort_values("born")
    for op, rows in table.groupby("op", observed=True, sort=False):
        match = _NAME.search(str(op))
        if match is None or match[8] not in PASSES:
            continue
        *numbers, dtype, direction = match.groups()
        batch, side, channels, filters, window, stride = map(int, numbers)
        result = -(-side // stride)
        side += (
            max((result - 1) * stride + window - side, 0) % 2
        )  # asymmetric padding is copied
        sizes = rows["requested_bytes"].where(rows["region"] == "workspace").dropna()
        trials = rows["requested_bytes"].where(rows["region"] == "trial").dropna()
        yield ConvolutionChoice(
            direction=direction, image=(batch, channels, side, side), filters=filters,
            kernel=window, result=result, stride=stride, dtype=dtype,
            bytes=int(sizes.iloc[-1]) if len(sizes) else 0,
            largest_trial_bytes=max(int(trials.max()) - _GUARDS, 0) if len(trials) else 0,
        )  # fmt: skip


if __name__ == "__main__":
    run(Path(sys.argv[1]))
