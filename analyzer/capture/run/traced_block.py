"""A block of the user's own code in the user's own process, under TensorFlow's profiler."""

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
    """Refuse a process whose allocator writes no memory events; TensorFlow makes its devices.

    Raises:
        InputError: it does not.
    """
    if tf.config.list_logical_devices("GPU"):
        return
    kept = _smallest()
    try:
        is_counted = tf.config.experimental.get_memory_info("CPU:0")["current"] > 0
    except (ValueError, tf.errors.OpError):
        is_counted = False
    del kept
    if not is_counted:
        raise InputError(
            "TensorFlow started in this process on an allocator that writes no memory events.",
            hint=_HOW,
        )


def _smallest() -> Any:
    """Return a tensor of its own: 256 bytes of the allocator that a trace is about."""
    return tf.ones([2]) + 1.0


@contextlib.contextmanager
def trace_block(logdir: Path) -> Iterator[None]:
    """Trace the block into ``logdir``, with garbage collected at both ends.

    Raises:
        InputError: the allocator writes no events, or a profile is being taken already.
    """
    check_allocator()
    gc.collect()
    try:
        tf.profiler.experimental.start(str(logdir))
    except tf.errors.AlreadyExistsError:
        raise InputError(
            "A profile is being taken already, and TensorFlow takes one at a time.",
            hint="Stop it around the block that is to be measured.",
        ) from None
    try:
        _smallest()  # so that the trace says what is in use, where the block asks for nothing
        yield
    finally:
        gc.collect()
        with contextlib.suppress(tf.errors.UnavailableError):  # the block itself stopped it
            tf.profiler.experimental.stop()
