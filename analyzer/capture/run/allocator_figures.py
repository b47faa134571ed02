"""TensorFlow's statistics of its GPUs in this process, and the regions of its memory pools.

TensorFlow reports the bytes in use, their peak and the limit, but not the size of a growing pool. The
driver reports the region around each tensor (``cuPointerGetAttribute``).
"""

import contextlib
import ctypes
import os
import uuid
from collections.abc import Iterator
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.private_names import get_device_limits
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.run.step_variables import find_address, find_variable_address
from analyzer.cards.driver_reading import own_pids, read_cards
from analyzer.model.contract.child_messages import AllocatorFigures, ProcessFigures
from analyzer.model.errors import InputError

_RANGE_START: Final = 11
_RANGE_SIZE: Final = 12
"""``CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`` and ``_SIZE`` (``cuda.h``): the allocation of ``cuMemAlloc``
around an address."""

_UUID_BYTES: Final = 16
_OWN_ALLOCATORS: Final = ("cuda_malloc_async", "cuda_malloc")
"""Values of ``TF_GPU_ALLOCATOR`` that leave the pool to the driver."""


def read_process_figures() -> ProcessFigures:
    """Return TensorFlow's and the driver's statistics of this process; TensorFlow makes its devices."""
    reading, refusal = None, ""
    allocators = _read_allocators() if tf.config.list_physical_devices("GPU") else ()
    try:
        reading = read_cards(own_pids())
    except InputError as error:
        refusal = error.message
    return ProcessFigures(
        pid=os.getpid(),
        allocators=allocators,
        reading=reading,
        refusal=refusal,
    )


def _read_allocators() -> tuple[AllocatorFigures, ...]:
    """Return a row for each of TensorFlow's GPUs, in its order; sizes in bytes."""
    driver: Any = None
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
    logical = tf.config.list_logical_devices("GPU")  # makes the devices
    limits = get_device_limits()
    regions = _find_regions(driver)
    is_pool = os.environ.get("TF_GPU_ALLOCATOR", "") not in _OWN_ALLOCATORS
    rows = []
    for device, card in zip(logical, _list_cards(), strict=False):
        name = device.name.removeprefix("/device:")
        memory = {"current": 0, "peak": 0}
        with contextlib.suppress(ValueError):  # the allocator keeps no statistics
            memory = tf.config.experimental.get_memory_info(name)
        own = regions.get(name, {}) if is_pool else {}
        details = tf.config.experimental.get_device_details(card)
        rows.append(
            AllocatorFigures(
                device=name,
                card_uuid=_read_uuid(driver, int(card.name.rpartition(":")[2])),
                card_name=str(details.get("device_name", "")),
                in_use_bytes=int(memory["current"]),
                peak_in_use_bytes=int(memory["peak"]),
                limit_bytes=limits.get(name),
                grows=_does_grow(card),
                region_bytes=sum(own.values()),
                regions=len(own),
                is_pool=is_pool,
            )
        )
    return tuple(rows)


def _list_cards() -> Iterator[Any]:
    """Yield the card of each of TensorFlow's GPUs; a card may be split into several."""
    for card in tf.config.get_visible_devices("GPU"):
        for _ in tf.config.get_logical_device_configuration(card) or [None]:
            yield card


def _does_grow(card: Any) -> bool | None:
    """Return whether a card's pool grows; the environment overrides the program."""
    forced = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "")
    if forced in ("true", "false"):
        return forced == "true"
    with contextlib.suppress(ValueError):
        return bool(tf.config.experimental.get_memory_growth(card))
    return None


def _read_uuid(driver: Any, number: int) -> str:
    """Return a card's UUID as NVML writes it; empty if unknown."""
    raw = (ctypes.c_ubyte * _UUID_BYTES)()
    if driver is None or driver.cuDeviceGetUuid(raw, ctypes.c_int(number)):
        return ""
    return f"GPU-{uuid.UUID(bytes=bytes(raw))}"


def _find_regions(driver: Any) -> dict[str, dict[int, int]]:
    """Return for each device the regions with live tensors: start -> bytes."""
    regions: dict[str, dict[int, int]] = {}
    for one in [] if driver is None else find_live_objects((tf.Variable, tf.Tensor)):
        is_variable = isinstance(one, tf.Variable)
        if is_variable and "GPU" not in one.device:
            continue
        address = find_variable_address(one) if is_variable else find_address(one)
        if address is None or "GPU:" not in one.device:
            continue
        start, size = ctypes.c_uint64(), ctypes.c_uint64()
        if not any(
            driver.cuPointerGetAttribute(
                ctypes.byref(value), ctypes.c_int(attribute), ctypes.c_uint64(address)
            )
            for attribute, value in ((_RANGE_START, start), (_RANGE_SIZE, size))
        ):
            device = f"GPU:{one.device.rpartition('GPU:')[2]}"
            regions.setdefault(device, {})[start.value] = size.value
    return regions
