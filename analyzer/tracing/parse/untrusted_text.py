"""Texts of a file that anyone may have written: any bytes, of any length."""

from __future__ import annotations

import hashlib
from typing import Final

_MOST_BYTES: Final = 1 << 14
"""The longest name that is kept whole, in bytes: a quarter of what a name in a report may be."""


def decode_text(content: bytes) -> str:
    """Return bytes as text.

    What is not UTF-8 becomes U+FFFD. A longer text than any name of TensorFlow's is cut; the end of a
    digest of the whole then keeps two apart that begin alike.
    """
    if len(content) <= _MOST_BYTES:
        return content.decode("utf-8", "replace")
    digest = hashlib.sha256(content).hexdigest()[:12]
    return f"{content[:_MOST_BYTES].decode('utf-8', 'replace')}…{digest}"
