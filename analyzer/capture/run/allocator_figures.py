"""TensorFlow's statistics of its GPUs in this process.

TensorFlow reports the bytes in use, their peak and the limit, but not the size of a growing pool.
"""

import ctypes
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import tensorflow as tf

from analyzer.capture.private_names import get_device_limits
from analyzer.model.contract.child_messages import AllocatorFigures

_UUID_BYTES = 16

# Values of ``TF_GPU_ALLOCATOR`` that leave the pool to the driver, where it grows.
DRIVER_POOLS = ("cuda_malloc_async", "cuda_malloc")


def read_allocators() -> tuple[AllocatorFigures, ...]:
    """Return a row for each of TensorFlow's GPUs, in its order; TensorFlow makes its devices."""
    if not tf.config.list_physical_devices("GPU"):
        return ()

    logical = tf.config.list_logical_devices("GPU")  # makes the devices
    limits = get_device_limits()
    rows = []

    for device, card in zip(logical, _list_cards(), strict=False):
        name = device.name.removeprefix("/device:")
        memory = {"current": 0, "peak": 0}

        with suppress(ValueError):  # the allocator keeps no statistics
            memory = tf.config.experimental.get_memory_info(name)

        details = tf.config.experimental.get_device_details(card)
        rows.append(
            AllocatorFigures(
                device=name,
                card_uuid=_read_uuid(int(card.name.rpartition(":")[2])),
                card_name=str(details.get("device_name", "")),
                in_use_bytes=memory["current"],
                peak_in_use_bytes=memory["peak"],
                limit_bytes=limits.get(name, 0),
                grows=_does_grow(card),
            )
        )

    return tuple(rows)


def _list_cards() -> Iterator[Any]:
    """Yield the card of each of TensorFlow's GPUs; a card may be split into several."""
    for card in tf.config.get_visible_devices("GPU"):
        for _ in tf.config.get_logical_device_configuration(card) or [None]:
            yield card


def _does_grow(card: Any) -> bool:
    """Return whether a card's pool grows; the environment overrides the program."""
    if os.environ.get("TF_GPU_ALLOCATOR") in DRIVER_POOLS:
        return True

    forced = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "")
    if forced in ("true", "false"):
        return forced == "true"

    return bool(tf.config.experimental.get_memory_growth(card))


def _read_uuid(number: int) -> str:
    """Return a card's UUID as NVML writes it; empty if unknown."""
    raw = (ctypes.c_ubyte * _UUID_BYTES)()
    with suppress(OSError):
        if not ctypes.CDLL("libcuda.so.1").cuDeviceGetUuid(raw, ctypes.c_int(number)):
            return f"GPU-{uuid.UUID(bytes=bytes(raw))}"

    return ""
