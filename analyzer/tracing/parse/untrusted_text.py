"""Conversion of untrusted bytes to text."""

from __future__ import annotations

import hashlib
from typing import Final

_MOST_BYTES: Final = 1 << 14
"""Limit of a name in bytes: a quarter of the limit of a name in a report."""


def decode_text(content: bytes) -> str:
    """Return bytes as text.

    Invalid UTF-8 becomes U+FFFD. A text longer than any name of TensorFlow's is truncated and gets
    a digest of the whole, so that different texts stay different.
    """
    if len(content) <= _MOST_BYTES:
        return content.decode("utf-8", "replace")
    digest = hashlib.sha256(content).hexdigest()[:12]
    return f"{content[:_MOST_BYTES].decode('utf-8', 'replace')}…{digest}"
