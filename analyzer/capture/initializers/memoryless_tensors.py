"""Tensors and variables that have a shape and a value, and no memory for it.

XLA lowers a function for variables that are there. A stand-in's value is a stretch of one buffer that
is never written to, so that no page of it is ever backed by memory.
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
_PAGE_BYTES: Final = 1 << 20
"""Values below this get a buffer of their own; larger ones share the one that is never touched."""
_MOST_FILLED_BYTES: Final = 64 << 20  # a larger value is not filled with numbers
_NO_RESERVE: Final = 0x4000 if sys.platform == "linux" else 0
"""``MAP_NORESERVE``: the system promises no memory for the mapping, so that its size does not count."""
_ROW_BYTES: Final = 64  # every element type divides it, and a slice at 0 needs no copy


@dataclass(eq=False)
class StandIns:
    """Handles of variables that have a shape and a value without memory."""

    _handles: list[Any] = field(default_factory=list)
    _flat: Any = None

    def tensor(self, dtype: Any, shape: Sequence[int]) -> Any:
        """Return a tensor of zeros of this shape; a large one has no memory behind it."""
        if math.prod(shape) * dtype.size < _PAGE_BYTES:
            return tf.zeros(list(shape), dtype)
        return self.unbacked(dtype, shape)

    def unbacked(self, dtype: Any, shape: Sequence[int]) -> Any:
        """Return a tensor of zeros of this shape over memory that is never touched, however small."""
        if dtype in (tf.bool, tf.string):  # which no bytes can be seen as
            return tf.zeros(list(shape), dtype)
        size_bytes = math.prod(shape) * dtype.size
        if self._flat is None or int(self._flat.shape[0]) < size_bytes:
            self._flat = _untouched(-(-size_bytes // _ROW_BYTES) * _ROW_BYTES)
        flat = self._flat[:size_bytes]
        if dtype.size > 1:
            flat = tf.reshape(flat, [-1, dtype.size])
        return tf.reshape(tf.bitcast(flat, dtype), list(shape))

    def filled(self, dtype: Any, shape: Sequence[int]) -> Any:
        """Return a tensor whose elements differ, as real ones do; zeros where that costs too much.

        XLA folds what it computes from values that it knows, but not from one that is all alike.
        """
        if math.prod(shape) * dtype.size > _MOST_FILLED_BYTES or not dtype.is_floating:
            return self.tensor(dtype, shape)
        return tf.random.stateless_uniform(list(shape), (0, 0), dtype=dtype)

    def variable(self, dtype: Any, shape: Sequence[int], *, filled: bool = False) -> Any:
        """Return the handle of a variable with such a value.

        Args:
            dtype: Its element type.
            shape: Its shape.
            filled: Whether its elements differ (``filled``); else they are zeros.
        """
        handle = tf.raw_ops.VarHandleOp(
            dtype=dtype,
            shape=list(shape),
            shared_name=f"analyzer_xla_{id(self)}_{len(self._handles)}",
        )
        value = self.filled(dtype, shape) if filled else self.tensor(dtype, shape)
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        self._handles.append(handle)
        return handle

    def close(self) -> None:
        """Let go of them all."""
        for handle in self._handles:
            tf.raw_ops.DestroyResourceOp(resource=handle)
        self._handles.clear()
        self._flat = None


@contextlib.contextmanager
def open_stand_ins() -> Iterator[StandIns]:
    """Make things on the CPU in the block that hold no memory of their size; they are gone after it."""
    found = StandIns()
    try:
        with tf.init_scope(), tf.device(CPU_DEVICE):
            yield found
    finally:
        found.close()


def _untouched(size_bytes: int) -> Any:
    """Return a tensor of bytes over addresses that no memory is kept for until they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    room = np.frombuffer(mmap.mmap(-1, size_bytes, flags=flags), dtype=np.uint8)
    return tf.experimental.dlpack.from_dlpack(room.__dlpack__())
