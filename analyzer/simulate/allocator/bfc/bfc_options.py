"""Settings of an allocator: limit, growth, coalescing, collection of free regions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from analyzer.model.errors import InputError
from analyzer.model.units import round_up

FIRST_REGION_BYTES: Final = 2 << 20  # first region of a pool that grows on demand

DEFAULT_MAX_SPARE_BYTES: Final = 128 << 20
"""A chunk with this many spare bytes is split even if it is under twice the request."""

UNLIMITED_BYTES: Final = 1 << 46  # 64 TiB: stands for "no limit", far above any machine
MAX_REQUEST_BYTES: Final = 1 << 44  # 16 TiB: a larger request in a trace is a damaged number

UPPER_ADDRESS: Final = 1 << 50
"""End of the regions that are placed downwards if the trace gives no address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BfcOptions:
    """Settings of one best-fit allocator with coalescing (BFC)."""

    memory_limit_bytes: int = UNLIMITED_BYTES
    # take regions on demand, each twice the one before (``allow_growth``). Without it, the first
    # allocation takes one region of the whole limit.
    growth: bool = True
    # whether neighbouring regions become one. True on a CPU. False on a GPU, because no allocation
    # can span two of its regions.
    coalesce_regions: bool = True
    garbage_collection: bool = False  # give wholly free regions back to the driver before failing
    # share of the limit; a chunk with more spare bytes is always split
    # (``internal_fragmentation_fraction``). 0 for the default of 128 MiB.
    fragmentation_fraction: float = 0.0
    # place regions as Linux places large blocks of a CPU process: the first lowest, on the heap,
    # each later one below the one before. Addresses matter because the lowest of several free
    # chunks of one size is taken.
    descending: bool = False
    first_address: int = 1 << 40  # address of the first region if no trace gives it
    # gap between regions if no trace gives their addresses; 0 makes them neighbours
    gap_bytes: int = 4096

    def __post_init__(self) -> None:
        if not 0 < self.memory_limit_bytes <= UNLIMITED_BYTES:
            raise InputError(
                f"A memory limit of {self.memory_limit_bytes} bytes cannot be simulated.",
                hint="Give more than 0 bytes and at most 64 TiB.",
            )
        if not 0 <= self.fragmentation_fraction < 1:
            raise InputError(
                f"The fragmentation fraction {self.fragmentation_fraction} is not a share.",
                hint="Give a share of the limit: 0 (the default) or more, under 1.",
            )

    def unlimited(self) -> BfcOptions:
        """Return the same settings without a limit."""
        return replace(self, memory_limit_bytes=UNLIMITED_BYTES)

    @classmethod
    def cpu(cls, memory_limit_bytes: int = 64 << 30) -> BfcOptions:
        """Return the settings of the CPU allocator under ``TF_CPU_ALLOCATOR_USE_BFC=1``.

        The limit is ``TF_CPU_BFC_MEM_LIMIT_IN_MB``, 64 GiB by default.
        """
        return cls(memory_limit_bytes=memory_limit_bytes, descending=True)

    @classmethod
    def gpu(cls, memory_limit_bytes: int, *, growth: bool = False) -> BfcOptions:
        """Return the settings of a GPU: one region unless ``growth``; free regions are collected."""
        return cls(
            memory_limit_bytes=memory_limit_bytes,
            growth=growth,
            coalesce_regions=False,
            garbage_collection=True,
        )

    @property
    def max_spare_bytes(self) -> int:
        """Spare bytes from which on a chunk is always split."""
        if self.fragmentation_fraction > 0:
            return int(self.fragmentation_fraction * self.memory_limit_bytes)
        return DEFAULT_MAX_SPARE_BYTES

    @property
    def first_region_bytes(self) -> int:
        """Planned size of the first region, before the limit and the request change it."""
        most_bytes = FIRST_REGION_BYTES if self.growth else UNLIMITED_BYTES
        return round_up(min(self.memory_limit_bytes, most_bytes))
