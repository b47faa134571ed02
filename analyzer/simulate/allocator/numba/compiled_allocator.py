"""The allocator on arrays, for millions of events: as the reference, some thirty times as fast.

Numba is imported with the first use, which takes about a second: short sequences go to the reference.
"""

from __future__ import annotations

import copy
import pickle
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from analyzer.model.errors import AccountingError
from analyzer.simulate.allocator.bfc.bfc_options import UPPER_ADDRESS, BfcOptions
from analyzer.simulate.allocator.bfc.chunks import BINS, Extension
from analyzer.simulate.allocator.numba import code_cache as kept

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]

OUT_COLUMNS: Final = 5
"""Columns of the record: address, chunk bytes, in use, pool, largest free."""

_KERNEL: Final = "analyzer.simulate.allocator.numba.bfc_operations"
"""The module of the compiled functions."""

_NO_ADDRESSES: Final = np.empty(0, np.int64)


def is_loaded() -> bool:
    """Tell whether the functions are imported already, so that using them costs nothing more."""
    return _KERNEL in sys.modules


def is_kept() -> bool:
    """Tell whether an earlier process has compiled them and left the code: loading it is enough."""
    return kept.is_kept()


def is_keepable() -> bool:
    """Tell whether what is compiled is kept for later processes: there is a cache to write to."""
    return kept.kept_in() is not None


def _kernel() -> ModuleType:
    """Return the compiled functions; the first call imports Numba, which takes about a second."""
    from analyzer.simulate.allocator.numba import bfc_operations as kernel

    return kernel


def _run(kernel: ModuleType, *arguments: Any) -> int:
    """Call the compiled replay; what was kept of it and cannot be read is compiled again."""
    try:
        return int(kernel.run(*arguments))
    except (EOFError, OSError, ImportError, AttributeError, pickle.UnpicklingError):
        # Reading comes before running, so that nothing is done twice.
        kept.forget(kernel.KEPT_IN)
        return int(kernel.run(*arguments))


class CompiledAllocator:
    """One allocator and its pool, fed with arrays of operations.

    Args:
        options: Limit, growth and the rest.
        slots: How many buffers can be alive at once; a slot may be used again once freed.
    """

    def __init__(self, options: BfcOptions, slots: int) -> None:
        self.options = options
        self.failed = False
        self._kernel = _kernel()
        self._done = 0
        self._handle_of = np.full(max(slots, 1), -1, np.int32)
        self._options = np.array(
            [
                options.memory_limit_bytes,
                options.max_spare_bytes,
                options.coalesce_regions,
                options.garbage_collection,
                -1 if options.driver_bytes is None else options.driver_bytes,
                options.descending,
                options.first_address,
                options.gap_bytes,
                UPPER_ADDRESS,
            ],
            np.int64,
        )
        self._scalars = self._kernel.scalars_of(options.first_region_bytes)
        self._bin_length = np.zeros(BINS, np.int64)
        self._chunks = np.empty((0, 5), np.int64)
        self._bins: NDArray[Any] = np.empty((BINS, 0), np.int32)
        self._recycled: NDArray[Any] = np.empty(0, np.int32)
        self._regions = np.empty((0, 3), np.int64)
        self._extensions = np.empty((0, 11), np.int64)
        self._releases = np.empty((0, 3), np.int64)
        self._make_room()

    def feed(
        self,
        slot: Table,
        request: Table,
        *,
        known: Table = _NO_ADDRESSES,
        out: Table | None = None,
    ) -> int:
        """Replay operations and return how many were done: all, or as many as succeeded.

        Args:
            slot: Which buffer, shape ``(n_ops,)``.
            request: Bytes asked for; 0 frees the slot's buffer.
            known: Addresses that a trace gives, to place regions by; empty for none.
            out: Table of shape ``(n_ops, 5)`` to be filled: address, chunk bytes, in use, pool,
                largest free. None where only the end matters.

        Raises:
            AccountingError: a slot is allocated twice or freed while empty.
        """
        if slot.size and not (slot.min() >= 0 and slot.max() < self._handle_of.size):
            raise AccountingError(f"a slot is outside 0 to {self._handle_of.size - 1}")
        record = np.empty((1, OUT_COLUMNS), np.int64) if out is None else out
        kernel = self._kernel
        start = 0
        while True:
            start = _run(
                kernel,
                self._options, self._scalars, self._chunks, self._bins, self._bin_length,
                self._recycled, self._regions, self._extensions, self._releases,
                slot, request, known, self._handle_of, start, self._done, out is not None, record,
            )  # fmt: skip
            reason = self._scalars[kernel.REASON]
            if reason != kernel.FULL:
                break
            self._make_room()
        if reason == kernel.INVALID:
            raise AccountingError(f"operation {start} allocates a live slot or frees an empty one")
        self.failed = bool(reason == kernel.FAILED)
        self._done += start
        return int(start)

    def under(self, memory_limit_bytes: int) -> CompiledAllocator:
        """Return a copy, with all that it holds, that goes on under another limit."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(other, name, value.copy())
        other._options[self._kernel.LIMIT] = memory_limit_bytes
        return other

    @property
    def same_under(self) -> tuple[int, int]:
        """The least and the highest memory limit under which all that was fed goes as it went.

        Bytes; said of an allocator without a fragmentation fraction, which is one of the limit.
        """
        if self.options.fragmentation_fraction > 0:
            return int(self._options[self._kernel.LIMIT]), int(self._options[self._kernel.LIMIT])
        return int(self._scalars[self._kernel.LEAST]), int(self._scalars[self._kernel.MOST])

    @property
    def in_use_bytes(self) -> int:
        """Bytes of the chunks that somebody holds."""
        return int(self._scalars[self._kernel.IN_USE])

    @property
    def peak_in_use_bytes(self) -> int:
        """Highest ``in_use_bytes`` so far."""
        return int(self._scalars[self._kernel.PEAK])

    @property
    def pool_bytes(self) -> int:
        """Bytes taken from the driver and not given back."""
        return int(self._scalars[self._kernel.POOL])

    @property
    def extensions(self) -> list[Extension]:
        """The regions that were taken; ``owner`` is the number of the operation."""
        rows = self._extensions[: self._scalars[self._kernel.N_EXTENSIONS]].tolist()
        return [
            Extension(
                address=row[0],
                size_bytes=row[1],
                owner=row[2],
                requested_bytes=row[3],
                planned_bytes=row[4],
                asked_bytes=row[5],
                number=number,
                free_bytes=row[6],
                largest_free_bytes=row[7],
                available_bytes=row[8],
            )
            for number, row in enumerate(rows)
        ]

    @property
    def releases(self) -> list[tuple[int, int, int]]:
        """Regions given back: address, bytes, number of the operation that needed the room."""
        rows = self._releases[: self._scalars[self._kernel.N_RELEASES]].tolist()
        return [(row[0], row[1], row[2]) for row in rows]

    def _make_room(self) -> None:
        """Double what has run full: arrays are as long as the most things ever alive at once."""
        scalars, kernel = self._scalars, self._kernel
        chunks = self._chunks.shape[0]
        if scalars[kernel.N_CHUNKS] - scalars[kernel.N_RECYCLED] + 3 > chunks:
            chunks = max(1024, 2 * chunks)
            self._chunks = _longer(self._chunks, (chunks, 5))
            self._bins = _longer(self._bins, (BINS, chunks))
            self._recycled = _longer(self._recycled, (chunks,))
        extensions = max(64, 2 * int(scalars[kernel.N_EXTENSIONS]))
        self._extensions = _longer(self._extensions, (extensions, 11))
        self._regions = _longer(self._regions, (extensions, 3))
        releases = max(64, 2 * int(scalars[kernel.N_RELEASES] + scalars[kernel.N_REGIONS]))
        self._releases = _longer(self._releases, (releases, 3))


def _longer(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a copy of ``array`` with at least ``shape``."""
    if all(old >= new for old, new in zip(array.shape, shape, strict=True)):
        return array
    result = np.zeros(shape, array.dtype)
    result[tuple(slice(0, n) for n in array.shape)] = array
    return result
