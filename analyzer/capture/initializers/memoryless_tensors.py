"""Tensors and variables that have a shape and a value, but take no memory.

XLA lowers a function for existing variables. A stand-in's value is a slice of one buffer that is never
written to, so no page of it is backed by memory.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import tensorflow as tf

CPU_DEVICE: Final = "/job:localhost/replica:0/task:0/device:CPU:0"
_SMALL_BYTES: Final = 1 << 20
_MAX_FILLED_BYTES: Final = 64 << 20
"""Values above this are not filled with numbers."""
_NO_RESERVE: Final = 0x4000 if sys.platform == "linux" else 0
"""``MAP_NORESERVE``: the system reserves no memory for the mapping, so its size does not count."""
_ROW_BYTES: Final = 64  # a multiple of every element size; a slice at 0 needs no copy


@dataclass(eq=False)
class StandIns:
    """Makes tensors and variables without memory."""

    _handles: list[Any] = field(default_factory=list)
    _buffer: Any = None

    def make_tensor(self, dtype: Any, shape: Sequence[int], least: int = _SMALL_BYTES) -> Any:
        """Return zeros of this shape; without memory if they take at least ``least`` bytes."""
        size_bytes = math.prod(shape) * dtype.size
        # Bytes cannot be viewed as bool or string.
        if size_bytes < least or dtype in (tf.bool, tf.string):
            return tf.zeros(list(shape), dtype)
        if self._buffer is None or int(self._buffer.shape[0]) < size_bytes:
            self._buffer = _map_bytes(-(-size_bytes // _ROW_BYTES) * _ROW_BYTES)
        flat = self._buffer[:size_bytes]
        if dtype.size > 1:
            flat = tf.reshape(flat, [-1, dtype.size])
        return tf.reshape(tf.bitcast(flat, dtype), list(shape))

    def make_filled(self, dtype: Any, shape: Sequence[int]) -> Any:
        """Return a tensor with different elements, as in a real run; zeros if it is too large.

        XLA folds computations on known values, but not on a value whose elements are all equal.
        """
        if math.prod(shape) * dtype.size > _MAX_FILLED_BYTES or not dtype.is_floating:
            return self.make_tensor(dtype, shape)
        return tf.random.stateless_uniform(list(shape), (0, 0), dtype=dtype)

    def make_variable(self, dtype: Any, shape: Sequence[int], *, filled: bool = False) -> Any:
        """Return the handle of a variable of zeros, or with a ``make_filled`` value."""
        name = f"analyzer_xla_{id(self)}_{len(self._handles)}"
        handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=list(shape), shared_name=name)
        value = self.make_filled(dtype, shape) if filled else self.make_tensor(dtype, shape)
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        self._handles.append(handle)
        return handle

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[StandIns]:
        """Place everything in the block on the CPU; its stand-ins are destroyed afterwards."""
        stand_ins = cls()
        try:
            with tf.init_scope(), tf.device(CPU_DEVICE):
                yield stand_ins
        finally:
            for handle in stand_ins._handles:
                tf.raw_ops.DestroyResourceOp(resource=handle)


def _map_bytes(size_bytes: int) -> Any:
    """Return a tensor of bytes over addresses that get memory only when they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    array = np.frombuffer(mmap.mmap(-1, size_bytes, flags=flags), dtype=np.uint8)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
