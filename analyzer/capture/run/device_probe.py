"""A child that uses a card in small steps and reports its memory after each (``analyze device``)."""

import os
from collections.abc import Callable
from typing import Any, Final

from analyzer.model.contract.child_messages import (
    CardFigures,
    ChildFailed,
    MeasuredStages,
    Message,
    encode_message,
)
from analyzer.model.errors import ExitCode

_SIDE: Final = 256  # rows of the matrix, and pixels of the image's side
_POOL_MIB: Final = 256
"""Size of the pool, allocated whole at the first tensor. A convolution's trial of algorithms used 54 MiB
of it (TensorFlow 2.21)."""


def main(*_: object) -> int:
    """Use the card step by step and report; return 0, or 1 if nothing was measured."""
    channel = os.dup(1)
    os.dup2(2, 1)

    def send(message: Message, status: int) -> int:
        os.write(channel, encode_message(message))
        return status

    def refuse(error: str) -> int:
        return send(ChildFailed(error, "", int(ExitCode.BAD_INPUT)), 1)

    try:
        import tensorflow as tf

        from analyzer.capture.run.allocator_figures import read_process_figures
    except Exception as error:
        return refuse(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
    cards = tf.config.list_physical_devices("GPU")
    if not cards:
        return refuse("TensorFlow sees no card")
    for card in cards:
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=_POOL_MIB)
        tf.config.set_logical_device_configuration(card, [limit])
    image = [1, _SIDE, _SIDE, 3]
    uses: dict[str, Callable[[], Any]] = {
        "context and TensorFlow's own kernels": lambda: tf.ones([_SIDE, _SIDE]),
        "a product (cuBLAS)": lambda: tf.ones([_SIDE, _SIDE]) @ tf.ones([_SIDE, _SIDE]),
        "a convolution (cuDNN)": lambda: tf.nn.conv2d(
            tf.ones(image), tf.ones([3, 3, 3, 8]), 1, "SAME"
        ),
    }
    stages = []
    tensors: list[Any] = []
    try:
        for title, use in uses.items():
            tensors.append(use())
            tf.test.experimental.sync_devices()
            stages.append(read_process_figures(title))
    except tf.errors.OpError as error:
        if not stages:
            return refuse(next(iter(error.message.splitlines()), type(error).__name__))
    return send(CardFigures(MeasuredStages(stages=tuple(stages))), 0)
