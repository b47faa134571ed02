"""Bytes of elements and of tensors."""

from __future__ import annotations

import math
from typing import Final

from analyzer.model.contract.fields import MOST_BYTES

REHOMED_ELEMENTS: Final = 64
"""Elements of the largest variable that a capture gives a new buffer before the first step.

A variable that is made from a Python number may share NumPy's memory on the CPU, where no allocator sees
it; whether it does depends on the address that NumPy happened to get. The prediction plays the same."""

ITEM_BYTES: Final[dict[str, int]] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "qint8": 1,
    "quint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "string": 24,
}
"""Bytes of one element (``tensorflow/core/framework/types.proto``); of a string its ``TF_TString``,
which holds up to 22 letters and refers to longer ones elsewhere. Resources and variants have no size
that shows in a tensor's buffer."""


def tensor_bytes(dtype: str, shape: tuple[int, ...] | None) -> int | None:
    """Return the bytes of a tensor's elements; None where the shape or the element is not known."""
    item_bytes = ITEM_BYTES.get(dtype)
    if item_bytes is None or shape is None or any(axis < 0 for axis in shape):
        return None
    return item_bytes * math.prod(shape)


def check_size(dtype: str, shape: tuple[int, ...] | None) -> None:
    """Check that a tensor is one that a computer can hold.

    The axes alone are checked too, as kernels round and pad them for elements of other sizes.

    Raises:
        ValueError: it is larger.
    """
    if shape is None:
        return
    count = 1
    for axis in shape:
        count *= max(axis, 1)
        if count > MOST_BYTES:
            break
    if count * ITEM_BYTES.get(dtype, 1) > MOST_BYTES:
        raise ValueError(f"a tensor of shape [{','.join(map(str, shape[:8]))}] fits no computer")
