"""A process that uses a card a little, and says after each thing what it holds (``analyze device``).

It speaks to its parent in ``messages``, on the standard output that it was started
with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

from analyzer.model.contract.child_messages import (
    CardFigures,
    ChildFailed,
    Message,
    encode_message,
)
from analyzer.model.contract.device_figures import MeasuredStages
from analyzer.model.errors import ExitCode

_SIDE: Final = 256
"""Rows of the product, pixels of the image."""

_POOL_MIB: Final = 256
"""Limit of the pool, which is taken whole at the first tensor: known to the byte from then on. A
convolution's trial of algorithms took 54 MiB of it (TensorFlow 2.21)."""


def main() -> int:
    """Use the card in one way after the other, each noted; return 0, or 1 where nothing was measured."""
    channel = os.dup(1)
    os.dup2(2, 1)

    def send(message: Message) -> None:
        os.write(channel, encode_message(message))

    def refuse(error: str) -> int:
        send(ChildFailed(error, "", int(ExitCode.BAD_INPUT)))
        return 1

    try:
        import tensorflow as tf

        from analyzer.capture.run.allocator_figures import read_process_figures
    except Exception as error:
        return refuse(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
    cards = tf.config.list_physical_devices("GPU")
    if not cards:
        return refuse("it sees no card")
    for card in cards:
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=_POOL_MIB)
        tf.config.set_logical_device_configuration(card, [limit])
    stages = []
    kept: list[Any] = []
    try:
        for title, do in _uses(tf):
            kept.append(do())
            tf.test.experimental.sync_devices()
            stages.append(read_process_figures(title))
    except tf.errors.OpError as error:
        if not stages:
            return refuse(next(iter(error.message.splitlines()), type(error).__name__))
    send(CardFigures(MeasuredStages(stages=tuple(stages))))
    return 0


def _uses(tf: Any) -> tuple[tuple[str, Callable[[], Any]], ...]:
    """Return the ways of using the card, in order: what each brings into the process, and the call."""
    image = [1, _SIDE, _SIDE, 3]
    return (
        ("context and TensorFlow's own kernels", lambda: tf.ones([_SIDE, _SIDE])),
        (
            "a product (cuBLAS)",
            lambda: tf.linalg.matmul(tf.ones([_SIDE, _SIDE]), tf.ones([_SIDE, _SIDE])),
        ),
        (
            "a convolution (cuDNN)",
            lambda: tf.nn.conv2d(tf.ones(image), tf.ones([3, 3, 3, 8]), 1, "SAME"),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
