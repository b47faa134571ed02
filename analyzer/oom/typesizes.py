"""Bytes of one item by TensorFlow's own word for a type, and by NumPy's."""

from __future__ import annotations

from typing import Final

from analyzer.model.contract.element_sizes import ITEM_BYTES

_OWN_WORDS: Final = {"float": "float32", "half": "float16", "double": "float64"}
"""``DataTypeString`` of ``types.cc`` says ``float``, where Python says ``float32``."""

ITEM_SIZES: Final = (4, 2, 1, 8, 16)
"""Item sizes to try where the log has no type, up to TensorFlow 1.4; the likeliest first."""


def item_bytes(dtype: str) -> float | None:
    """Return the bytes of one item; None where the type is not known or has no fixed size."""
    return ITEM_BYTES.get(_OWN_WORDS.get(dtype, dtype))


def python_word(dtype: str) -> str:
    """Return the type as Python writes it."""
    return _OWN_WORDS.get(dtype, dtype)
