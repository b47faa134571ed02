"""Calls of the simulated card's own functions in the process of the step."""

import ctypes

from analyzer.phantom.core_build import CORE


def delay_kernels(launch_ns: int, kernel_ns: int) -> None:
    """Let each launch of a kernel take up to ``launch_ns``, and each kernel ``kernel_ns``."""
    set_delays = ctypes.CDLL(CORE).phantom_delay
    set_delays.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    set_delays(launch_ns, kernel_ns)


def describe_refusals() -> str:
    """Return a sentence on the requests that TensorFlow's allocator refused; or nothing.

    It uses the words of TensorFlow's own error. The errors of its autotuners do not state the size.
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
