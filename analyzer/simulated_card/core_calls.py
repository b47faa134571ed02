"""Calls of the simulated card's own functions in the process of the step, and of ours by its cuDNN."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from analyzer.cards.catalogue import Gpu
from analyzer.simulate.kernels.cudnn_algorithms import (
    PASSES,
    Convolution,
    find_likely_bytes,
    find_offers,
)
from analyzer.simulated_card.core_build import CORE


@contextmanager
def delay_kernels(launch_ns: int, kernel_ns: int, tick_ns: int) -> Iterator[None]:
    """In the block, launches take up to ``launch_ns`` longer, and each kernel ``kernel_ns``.

    With ``tick_ns`` all threads launch at its multiples alone.
    """
    set_delays = ctypes.CDLL(CORE).simulated_card_delay
    set_delays.argtypes = [ctypes.c_uint64] * 3
    set_delays(launch_ns, kernel_ns, tick_ns)

    try:
        yield
    finally:
        set_delays(0, 0, 0)


def write_to_card(address: int, value: bytes) -> None:
    """Write a known value into memory of a card."""
    copy = ctypes.CDLL(CORE).cuMemcpyHtoD_v2
    copy.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    copy(address, value, len(value))


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


# of ``cudnnDataType_t``
_DTYPES = {
    0: "float32",
    1: "float64",
    2: "float16",
    9: "bfloat16",
}

# TensorFlow's limit of a workspace (``GetDnnWorkspaceLimitOrDefault``).
_LIMIT_BYTES = 8 << 30

_MOST_CHOICES = 32


class _Convolution(ctypes.Structure):
    """``Convolution`` of ``native/libraries/convolutions.h``."""

    _fields_ = (
        ("direction", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("image", ctypes.c_int64 * 5),
        ("kernel", ctypes.c_int64 * 5),
        ("result", ctypes.c_int64 * 5),
        ("stride", ctypes.c_int64),
        ("dilation", ctypes.c_int64),
        ("channels_last", ctypes.c_int),
    )


class _Choice(ctypes.Structure):
    """``Choice`` of the same file."""

    _fields_ = (("bytes", ctypes.c_int64), ("microseconds", ctypes.c_double))


_ListChoices = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(_Convolution),
    ctypes.c_int,
    ctypes.POINTER(_Choice),
)
_registered: list[Any] = []  # keeps the functions that the library calls

# Of each convolution: bytes of the fastest workspace, and of the least and most likely ones.
likely_bytes: set[tuple[int, int, int]] = set()


def register_convolutions(gpus: Sequence[Gpu]) -> None:
    """Let the simulated cuDNN of this process offer its algorithms on these cards, by device number.

    In a process without this call, cuDNN offers algorithms without a workspace.
    """

    def list_choices(described: Any, card: int, choices: Any) -> int:
        call = _read_convolution(described.contents)

        candidates = find_offers(call, gpus[card], _LIMIT_BYTES)[:_MOST_CHOICES]
        for number, candidate in enumerate(candidates):
            choices[number].bytes = candidate.bytes
            choices[number].microseconds = candidate.microseconds

        if candidates:
            likely_bytes.add(find_likely_bytes(candidates))

        return len(candidates)

    function = _ListChoices(list_choices)
    _registered.append(function)
    ctypes.CDLL(CORE).simulated_card_register_convolutions(function)


def _read_convolution(described: _Convolution) -> Convolution:
    batch_and_channels = 2
    image = tuple(described.image[: described.rank])

    filters, group_channels, *window = described.kernel[: described.rank]
    return Convolution(
        direction=PASSES[described.direction - 1],
        image=image,
        kernel=(filters, *window),
        result=tuple(described.result[batch_and_channels : described.rank]),
        groups=image[1] // max(group_channels, 1),
        stride=described.stride,
        dilation=described.dilation,
        dtype=_DTYPES.get(described.dtype, "float16"),
        channels_last=bool(described.channels_last),
    )
