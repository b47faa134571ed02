"""A process that uses a card a little, and says after each thing what it holds (``analyze device``).

It speaks to its parent in lines of JSON on the standard output that it was started with.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from analyzer.contract.device_figures import MeasuredStages

_SIDE: Final = 256
"""Rows of the product, pixels of the image."""

_POOL_MIB: Final = 256
"""Limit of the pool, which is taken whole at the first tensor: known to the byte from then on. A
convolution's trial of algorithms took 54 MiB of it (TensorFlow 2.21)."""


def main() -> int:
    """Do one thing after the other; return the exit code."""
    channel = os.dup(1)
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        os.write(channel, (json.dumps(message) + "\n").encode())

    try:
        import tensorflow as tf

        from analyzer.capture.run.allocator_figures import process_figures
    except Exception as error:
        send({"error": f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"})
        return 1
    cards = tf.config.list_physical_devices("GPU")
    if not cards:
        send({"error": "it sees no card"})
        return 1
    for card in cards:
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=_POOL_MIB)
        tf.config.set_logical_device_configuration(card, [limit])
    stages = []
    kept: list[Any] = []
    try:
        for title, do in _things(tf):
            kept.append(do())
            tf.test.experimental.sync_devices()
            stages.append(process_figures(title))
    except tf.errors.OpError as error:
        if not stages:
            send({"error": next(iter(error.message.splitlines()), type(error).__name__)})
            return 1
    send({"figures": msgspec.to_builtins(MeasuredStages(stages=tuple(stages)))})
    return 0


def _things(tf: Any) -> tuple[tuple[str, Callable[[], Any]], ...]:
    """Return what is done, each with what it adds to the process."""
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
