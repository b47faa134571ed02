"""Requests that TensorFlow's allocator refused on a simulated card, in the process of the step."""

import ctypes

from analyzer.phantom.core_build import CORE


def describe_refusals() -> str:
    """Return a sentence on the refused requests, in the words of TensorFlow's own error; or nothing.

    The errors of its autotuners do not state the size.
    """
    core = ctypes.CDLL(CORE)
    count = core.phantom_refusals()
    if not count:
        return ""
    core.phantom_refused_bytes.restype = ctypes.c_long
    size = (
        f"Out of memory while trying to allocate {core.phantom_refused_bytes()} bytes"
    )
    return f". {size}; {count} requests were refused."
