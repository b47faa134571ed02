"""A process that ends when the one that started it is gone, however that ended.

Only the standard library is needed: the smallest children run this before anything else.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
"""Linux: the signal that a process gets when its parent ends (``prctl(2)``)."""


def die_with_parent() -> None:
    """Ask Linux to end this process when the one that started it is gone; elsewhere do nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
