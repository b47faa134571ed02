"""Sizes of elements and of tensors."""

from __future__ import annotations

import math
from typing import Final

from analyzer.model.contract.fields import MOST_BYTES

REHOMED_ELEMENTS: Final = 64
"""A capture copies variables of at most this many elements into new buffers before the first step.

A variable made from a Python number may share NumPy's memory on the CPU, which no allocator counts.
Whether it does depends on the address that NumPy got, so the capture and the prediction exclude it."""

ITEM_BYTES: Final[dict[str, int]] = {
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
    "string": 24,
}
"""Bytes of one element (``tensorflow/core/framework/types.proto``). A string is a ``TF_TString``, which
stores up to 22 characters and points to longer text. Resources and variants have no fixed size."""


def tensor_bytes(dtype: str, shape: tuple[int, ...] | None) -> int | None:
    """Return the bytes of a tensor's elements; None if the shape or the element size is unknown."""
    item_bytes = ITEM_BYTES.get(dtype)
    if item_bytes is None or shape is None or any(axis < 0 for axis in shape):
        return None
    return item_bytes * math.prod(shape)


def check_size(dtype: str, shape: tuple[int, ...] | None) -> None:
    """Check that a tensor is smaller than ``MOST_BYTES``.

    The number of elements is also checked, because kernels pad shapes for elements of other sizes.

    Raises:
        ValueError: The tensor is larger.
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
