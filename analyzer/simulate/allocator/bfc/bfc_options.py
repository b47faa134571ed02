"""How an allocator is set up: limit, growth, coalescing, collection of free regions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from analyzer.model.errors import InputError
from analyzer.model.units import GRANULE_BYTES

FIRST_REGION_BYTES: Final = 2 << 20
"""First region asked for when the pool grows on demand."""

DEFAULT_MAX_SPARE_BYTES: Final = 128 << 20
"""A chunk with this much left over is split even where it is under twice the request."""

UNLIMITED_BYTES: Final = 1 << 46
"""Stands for "no limit": 64 TiB, far above any machine."""

MAX_REQUEST_BYTES: Final = 1 << 44
"""A request above this (16 TiB) is a damaged number and not a size."""

UPPER_ADDRESS: Final = 1 << 50
"""Where regions end that are placed downwards and whose address is not known."""

BACK_PEDAL: Final = np.float32(0.9)
"""What is asked of the driver shrinks by this (in single precision) until it is given."""


def round_up(size_bytes: int) -> int:
    """Return ``size_bytes`` rounded up to a whole number of granules."""
    return (size_bytes + GRANULE_BYTES - 1) // GRANULE_BYTES * GRANULE_BYTES


def round_up_all(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``sizes`` (bytes, any shape), each rounded up to a whole number of granules."""
    return (sizes + GRANULE_BYTES - 1) // GRANULE_BYTES * GRANULE_BYTES


def round_down(size_bytes: int) -> int:
    """Return ``size_bytes`` rounded down to a whole number of granules."""
    return size_bytes // GRANULE_BYTES * GRANULE_BYTES


def back_pedalled(ask_bytes: int) -> int:
    """Return what is asked next of a driver that refused ``ask_bytes``: a tenth less, rounded up.

    The product is taken in single precision, as TensorFlow takes it, then cut to an integer.
    """
    return round_up(int(np.float32(ask_bytes) * BACK_PEDAL))


@dataclass(frozen=True, slots=True, kw_only=True)
class BfcOptions:
    """The set-up of one best-fit allocator with coalescing (BFC).

    Attributes:
        memory_limit_bytes: Most bytes that the pool may hold.
        growth: Take regions on demand, each up to twice the one before (``allow_growth``). Without
            it, one region of the whole limit is taken at the first allocation.
        coalesce_regions: Whether neighbouring regions become one: True on a CPU, False on a GPU,
            where no allocation can span two regions.
        garbage_collection: Give wholly free regions back to the driver before failing.
        fragmentation_fraction: Share of the limit from which a left-over is always split off; 0
            for the default of 128 MiB (``internal_fragmentation_fraction``).
        driver_bytes: What the driver can give in all, where that is less than the limit; asks
            beyond it fail and are repeated a tenth smaller. None where the limit can be had.
        descending: Whether regions are placed as Linux places large blocks of a CPU process: the
            first lowest, on the heap, and each later one below the one before. It matters because
            among free chunks of one size the lowest address is taken.
        first_address: Address of the first region where it is not known from a trace.
        gap_bytes: Space between regions whose address is not known; 0 makes them neighbours.
    """

    memory_limit_bytes: int = UNLIMITED_BYTES
    growth: bool = True
    coalesce_regions: bool = True
    garbage_collection: bool = False
    fragmentation_fraction: float = 0.0
    driver_bytes: int | None = None
    descending: bool = False
    first_address: int = 1 << 40
    gap_bytes: int = 4096

    def __post_init__(self) -> None:
        if not 0 < self.memory_limit_bytes <= UNLIMITED_BYTES:
            raise InputError(
                f"A memory limit of {self.memory_limit_bytes} bytes cannot be simulated.",
                hint="Give more than 0 bytes and at most 64 TiB.",
            )
        if not 0 <= self.fragmentation_fraction < 1:
            raise InputError(
                f"a fragmentation fraction of {self.fragmentation_fraction} has no meaning.",
                hint="Give a share of the limit: 0 (the default) or more, under 1.",
            )

    def unlimited(self) -> BfcOptions:
        """Return the same set-up with room for all."""
        return replace(self, memory_limit_bytes=UNLIMITED_BYTES)

    @classmethod
    def cpu(cls, memory_limit_bytes: int = 64 << 30) -> BfcOptions:
        """Return the CPU allocator's set-up under ``TF_CPU_ALLOCATOR_USE_BFC=1``.

        The limit is ``TF_CPU_BFC_MEM_LIMIT_IN_MB``, 64 GiB where that is not set.
        """
        return cls(memory_limit_bytes=memory_limit_bytes, descending=True)

    @classmethod
    def gpu(cls, memory_limit_bytes: int, *, growth: bool = False) -> BfcOptions:
        """Return a GPU's set-up: one region unless ``growth``; free regions are collected."""
        return cls(
            memory_limit_bytes=memory_limit_bytes,
            growth=growth,
            coalesce_regions=False,
            garbage_collection=True,
        )

    @property
    def max_spare_bytes(self) -> int:
        """Left-over from which a chunk is always split."""
        if self.fragmentation_fraction > 0:
            return int(self.fragmentation_fraction * self.memory_limit_bytes)
        return DEFAULT_MAX_SPARE_BYTES

    @property
    def first_region_bytes(self) -> int:
        """Size of the first region to be asked for, before the limit and the request cap it."""
        if self.growth:
            return round_up(min(self.memory_limit_bytes, FIRST_REGION_BYTES))
        return round_up(self.memory_limit_bytes)

    def driver_can_give(self, pool_bytes: int, ask_bytes: int) -> bool:
        """Tell whether the driver has ``ask_bytes`` more beside the pool."""
        return self.driver_bytes is None or pool_bytes + ask_bytes <= self.driver_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOptions:
    """An allocator like ``cuda_malloc_async``: sizes are counted as asked for, with no rounding.

    The driver's own pool rounds and fragments in ways that TensorFlow does not see; here a
    sequence fails only when the sum of its live requests exceeds the limit.
    """

    memory_limit_bytes: int = UNLIMITED_BYTES


Options = BfcOptions | AsyncOptions
