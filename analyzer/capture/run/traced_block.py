"""Trace a block of the user's own process."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from analyzer.model.errors import InputError

_HOW: Final = (
    "Set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow makes its first tensor: in the environment, "
    "or at the top of conftest.py."
)


def check_allocator() -> None:
    """Raise InputError if the allocator writes no memory events; TensorFlow makes its devices."""
    if tf.config.list_logical_devices("GPU"):
        return
    tensor = _make_small_tensor()
    try:
        has_statistics = tf.config.experimental.get_memory_info("CPU:0")["current"] > 0
    except (ValueError, tf.errors.OpError):
        has_statistics = False
    del tensor
    if not has_statistics:
        raise InputError(
            "TensorFlow started in this process on an allocator that writes no memory events.",
            hint=_HOW,
        )


def _make_small_tensor() -> Any:
    """Return a new tensor: one allocation of 256 bytes."""
    return tf.ones([2]) + 1.0


@contextlib.contextmanager
def trace_block(logdir: Path) -> Iterator[None]:
    """Trace the block into ``logdir``, with garbage collected at both ends.

    Raises:
        InputError: the allocator writes no events, or another profile is active.
    """
    check_allocator()
    gc.collect()
    try:
        tf.profiler.experimental.start(str(logdir))
    except tf.errors.AlreadyExistsError:
        raise InputError(
            "Another profile is active, and TensorFlow takes one at a time.",
            hint="Stop it around the measured block.",
        ) from None
    try:
        _make_small_tensor()  # shows the bytes in use even if the block allocates nothing
        yield
    finally:
        gc.collect()
        with contextlib.suppress(tf.errors.UnavailableError):  # the block stopped it
            tf.profiler.experimental.stop()
