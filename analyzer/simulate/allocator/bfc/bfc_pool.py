"""The state of a BFC pool in columns, for code that Numba compiles and plain Python runs.

A column is an int64 array for the compiled code and a list for plain Python, which reads lists
three times as fast. Both take ``column[i]``. Columns are as long as the most chunks alive at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from analyzer.model.errors import InputError
from analyzer.model.units import round_up

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    Column: TypeAlias = NDArray[np.int64] | list[int]
    Rows: TypeAlias = NDArray[np.int64] | list[list[int]]


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
    # whether neighbouring regions become one; false on a GPU: no allocation spans two regions there
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
        """Return the settings of ``TF_CPU_ALLOCATOR_USE_BFC=1``, by default with 64 GiB."""
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


BINS: Final = 21
"""Bins of free chunks (``bfc_allocator.h``: ``kNumBins``); bin n holds 256 B * 2^n and more."""

NONE: Final = -1  # no chunk, or an unknown address
ANY_BYTES: Final = 1 << 62  # no upper bound on a memory limit

REGION_ADDRESS, REGION_BYTES, REGION_FIRST = range(3)
"""Columns of ``PoolState.regions``; the last is the lowest chunk."""

IN_USE, POOL_BYTES, NEXT_REGION, LOWEST_ADDRESS, HIGHEST_ADDRESS = range(5)
N_CHUNKS, N_RECYCLED, N_REGIONS, N_EXTENSIONS, OUTCOME = range(5, 10)
LAST_CHUNK, LEAST_LIMIT, MOST_LIMIT, BIN_MASK, N_TOTALS = range(10, 15)
"""Indices of ``PoolState.totals``, and their number. ``NEXT_REGION`` is the size of the next region.
``OUTCOME`` says why ``run`` stopped. ``LAST_CHUNK`` is the chunk at the end of the last region that the
limit cut short, ``NONE`` if there is none. The run is the same under all limits from ``LEAST_LIMIT`` to
``MOST_LIMIT``. Bit n of ``BIN_MASK`` is set if bin n has free chunks."""

ENDED, FAILED, FULL, INVALID = range(4)
"""Values of ``OUTCOME``: all done, a request failed, a column is too short, a wrong slot."""

OUT_COLUMNS: Final = 5
"""Columns of the record of a run: address, chunk bytes, in use, pool, largest free."""

_FEWEST_CHUNKS: Final = 1024
_FEWEST_REGIONS: Final = 64


class PoolSettings(NamedTuple):
    """``BfcOptions`` as whole numbers."""

    limit_bytes: int
    max_spare_bytes: int
    coalesce_regions: int
    garbage_collection: int
    descending: int
    first_address: int
    gap_bytes: int

    @classmethod
    def from_options(cls, options: BfcOptions) -> PoolSettings:
        """Return the numbers of ``options``."""
        others = (int(getattr(options, name)) for name in cls._fields[1:])
        return cls(options.memory_limit_bytes, *others)


class PoolState(NamedTuple):
    """Chunks, bins and regions. A chunk is an index into the first five columns."""

    address: Column
    size: Column
    below: Column  # neighbouring chunks in the same region; ``NONE`` at its ends
    above: Column
    free: Column
    recycled: Column  # indices of chunks that no longer exist, the first ``N_RECYCLED`` are valid
    bins: Rows  # free chunks of each bin, by size and then address, shape ``(BINS, capacity)``
    bin_length: Column
    regions: Rows
    extensions: Rows  # rows of the fields of ``Extension``
    totals: Column  # running totals, see ``IN_USE`` and the following


def new_pool(options: BfcOptions, *, is_compiled: bool) -> PoolState:
    """Return an empty pool, of arrays if ``is_compiled``, else of lists."""
    shapes = _shapes(_FEWEST_CHUNKS, _FEWEST_REGIONS)
    columns = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
    totals = columns["totals"]
    totals[NEXT_REGION] = options.first_region_bytes
    totals[LAST_CHUNK] = NONE
    totals[LEAST_LIMIT], totals[MOST_LIMIT] = -ANY_BYTES, ANY_BYTES
    return _pool_of(columns, is_compiled=is_compiled)


def enlarged(pool: PoolState) -> PoolState:
    """Return a copy of the pool with columns twice as long if they are full."""
    chunks, regions = len(pool.size), len(pool.extensions)
    if chunks - pool.totals[N_CHUNKS] + pool.totals[N_RECYCLED] < 2:
        chunks *= 2
    if regions == pool.totals[N_EXTENSIONS]:
        regions *= 2
    columns = {}
    for name, shape in _shapes(chunks, regions).items():
        old = np.array(getattr(pool, name), np.int64)
        added = [(0, long - short) for long, short in zip(shape, old.shape, strict=True)]
        columns[name] = np.pad(old, added)
    return _pool_of(columns, is_compiled=not isinstance(pool.totals, list))


def copied(pool: PoolState) -> PoolState:
    """Return an independent copy of the pool."""
    columns: tuple[Any, ...] = pool
    return PoolState(
        *([r.copy() for r in c] if isinstance(c[0], list) else c.copy() for c in columns)
    )


def _shapes(chunks: int, regions: int) -> dict[str, tuple[int, ...]]:
    of_chunks = ("address", "size", "below", "above", "free", "recycled")
    return {
        **dict.fromkeys(of_chunks, (chunks,)),
        "bins": (BINS, chunks),
        "bin_length": (BINS,),
        "regions": (regions, 3),
        "extensions": (regions, 3),
        "totals": (N_TOTALS,),
    }


def _pool_of(columns: Mapping[str, NDArray[np.int64]], *, is_compiled: bool) -> PoolState:
    return PoolState(**{n: c if is_compiled else c.tolist() for n, c in columns.items()})
