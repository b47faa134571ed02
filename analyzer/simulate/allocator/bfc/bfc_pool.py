"""The state of a BFC pool in columns, for code that Numba compiles and plain Python runs.

A column is an int64 array for the compiled code and a list for plain Python, which reads lists
three times as fast. Both take ``column[i]``. Columns are as long as the most chunks alive at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from analyzer.simulate.allocator.bfc.bfc_options import BfcOptions

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    Column: TypeAlias = NDArray[np.int64] | list[int]
    Rows: TypeAlias = NDArray[np.int64] | list[list[int]]

BINS: Final = 21
"""Bins of free chunks (``bfc_allocator.h``: ``kNumBins``); bin n holds 256 B * 2^n and more."""

NONE: Final = -1  # no chunk, or an unknown address
ANY_BYTES: Final = 1 << 62  # no upper bound on a memory limit

REGION_ADDRESS, REGION_BYTES, REGION_FIRST = range(3)
"""Columns of ``PoolState.regions``: address, bytes, lowest chunk."""

(
    IN_USE,
    POOL_BYTES,
    NEXT_REGION,
    LOWEST_ADDRESS,
    HIGHEST_ADDRESS,
    N_CHUNKS,
    N_RECYCLED,
    N_REGIONS,
    N_EXTENSIONS,
    OUTCOME,
    LAST_CHUNK,
    LEAST_LIMIT,
    MOST_LIMIT,
    BIN_MASK,
    N_TOTALS,
) = range(15)
"""Indices of ``PoolState.totals``, and their number.

``NEXT_REGION`` is the size of the next region. ``OUTCOME`` says why ``run`` stopped. ``LAST_CHUNK``
is the chunk at the end of the last region that the limit cut short, ``NONE`` if there is none. The
run is the same under all limits from ``LEAST_LIMIT`` to ``MOST_LIMIT``. Bit n of
``BIN_MASK`` is set if bin n has free chunks.
"""

ENDED, FAILED, FULL, INVALID = range(4)
"""Values of ``OUTCOME``: all done, a request failed, a column is too short, a wrong slot."""

REGION_COLUMNS: Final = 3
EXTENSION_COLUMNS: Final = 8
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
    """Return the shape of each column of a pool for so many chunks and regions."""
    of_chunks = ("address", "size", "below", "above", "free", "recycled")
    return {
        **dict.fromkeys(of_chunks, (chunks,)),
        "bins": (BINS, chunks),
        "bin_length": (BINS,),
        "regions": (regions, REGION_COLUMNS),
        "extensions": (regions, EXTENSION_COLUMNS),
        "totals": (N_TOTALS,),
    }


def _pool_of(columns: Mapping[str, NDArray[np.int64]], *, is_compiled: bool) -> PoolState:
    return PoolState(**{n: c if is_compiled else c.tolist() for n, c in columns.items()})
