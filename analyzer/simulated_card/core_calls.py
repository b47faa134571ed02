"""Calls of the simulated card's own functions in the process of the step."""

import contextlib
import ctypes
from collections.abc import Iterator

from analyzer.simulated_card.core_build import CORE


@contextlib.contextmanager
def delay_kernels(launch_ns: int, kernel_ns: int) -> Iterator[None]:
    """In the block, launches take up to ``launch_ns`` longer, and each kernel ``kernel_ns``."""
    set_delays = ctypes.CDLL(CORE).simulated_card_delay
    set_delays.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    set_delays(launch_ns, kernel_ns)

    try:
        yield
    finally:
        set_delays(0, 0)


def read_requested_peak() -> int:
    """Return the most bytes that live tensors of the first card requested since the last call.

    It is -1 if this version of TensorFlow lacks one of the functions that count them.
    """
    read = ctypes.CDLL(CORE).simulated_card_requested_peak
    read.restype = ctypes.c_long

    return int(read(0))


def describe_refusals() -> str:
    """Return a sentence on the requests that TensorFlow's allocator refused; or nothing.

    It uses the words of TensorFlow's own error. The errors of its autotuners do not state the size.
    """
    core = ctypes.CDLL(CORE)

    count = core.simulated_card_refusals()
    if not count:
        return ""

    core.simulated_card_refused_bytes.restype = ctypes.c_long

    size = f"Out of memory while trying to allocate {core.simulated_card_refused_bytes()} bytes"

    return f". {size}; {count} requests were refused."
