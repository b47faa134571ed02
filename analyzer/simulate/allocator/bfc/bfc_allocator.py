"""TensorFlow's BFC allocator (best fit with coalescing), fed with arrays of operations.

The pool consists of regions, each tiled by chunks. A request is rounded up to 256 bytes and gets the
smallest sufficient free chunk, split if it is at least twice the request or 128 MiB would be spare.
A freed chunk is merged with its free neighbours at once. If no chunk fits, the pool takes another region
(``bfc_allocator.cc``). ``bfc_operations`` runs as plain Python or, 30 times as fast, compiled by Numba.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzer.model.errors import AccountingError
from analyzer.model.ranges import Range
from analyzer.simulate.allocator.bfc import bfc_operations, compiled_run
from analyzer.simulate.allocator.bfc.bfc_pool import (
    FULL,
    IN_USE,
    INVALID,
    LEAST_LIMIT,
    MOST_LIMIT,
    N_EXTENSIONS,
    NONE,
    OUT_COLUMNS,
    OUTCOME,
    BfcOptions,
    PoolSettings,
    copied,
    enlarged,
    new_pool,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Extension:
    """A region taken from the driver, and the request of operation ``owner`` that caused it."""

    address: int
    size_bytes: int
    owner: int


class BfcAllocator:
    """One allocator, ``slots`` buffers alive at once; ``is_compiled`` None: compiled if loaded."""

    def __init__(self, options: BfcOptions, slots: int, *, is_compiled: bool | None = None) -> None:
        self.options = options
        if is_compiled is None:
            is_compiled = compiled_run.is_loaded()
        compiled = compiled_run.load_run() if is_compiled else None
        self._run: compiled_run.Run = compiled or bfc_operations.run
        self._is_compiled = compiled is not None
        self._done = 0
        self._settings = PoolSettings.from_options(options)
        self._pool = new_pool(options, is_compiled=self._is_compiled)
        self._chunk_of = self._column(np.full(max(slots, 1), NONE))

    def feed(
        self,
        slot: Table,
        request: Table,
        *,
        known: Table | None = None,
        record: Table | None = None,
    ) -> int:
        """Run operations (0 bytes frees a slot); return how many succeed before one fails.

        ``known`` are a trace's addresses, to place regions by; ``record`` gets ``run``'s columns.
        """
        slots = len(self._chunk_of)
        if slot.size and not (slot.min() >= 0 and slot.max() < slots):
            raise AccountingError(f"a slot is outside 0 to {slots - 1}")
        rows = np.empty((0, OUT_COLUMNS), np.int64) if record is None else record
        hints = np.empty(0, np.int64) if known is None else known
        columns = [*map(self._column, (slot, request, hints)), self._chunk_of]
        out = rows if self._is_compiled else rows.tolist()
        start = self._run(self._settings, self._pool, *columns, 0, self._done, out)
        while self._total(OUTCOME) == FULL:
            self._pool = enlarged(self._pool)
            start = self._run(self._settings, self._pool, *columns, start, self._done, out)
        if self._total(OUTCOME) == INVALID:
            raise AccountingError(f"operation {start} allocates a live slot or frees an empty one")
        if record is not None and not self._is_compiled and start:
            record[:start] = out[:start]
        self._done += start
        return start

    def under(self, memory_limit_bytes: int) -> BfcAllocator:
        """Return a copy with the same chunks that continues under another limit."""
        other = copy.copy(self)
        other.options = replace(self.options, memory_limit_bytes=memory_limit_bytes)
        other._settings = self._settings._replace(limit_bytes=memory_limit_bytes)
        other._pool, other._chunk_of = copied(self._pool), self._chunk_of.copy()
        return other

    @property
    def equal_limits(self) -> Range:
        """The memory limits under which all operations so far have the same result.

        A limit matters if a region is refused, is given in full although the limit is near, or gets
        only the rest. Each byte more of the limit enlarges the last chunk of that region; runs are
        equal as long as it is chosen for the same requests and split in the same way.
        """
        limit = self.options.memory_limit_bytes
        least, most = self._total(LEAST_LIMIT), self._total(MOST_LIMIT)
        # The split rule may depend on the limit. A copy under another limit may have no range.
        if self.options.fragmentation_fraction > 0 or not least <= limit <= most:
            return Range.exactly(limit)
        return Range(least, most)

    @property
    def in_use_bytes(self) -> int:
        """Bytes of the chunks in use."""
        return self._total(IN_USE)

    @property
    def extensions(self) -> list[Extension]:
        """The regions taken, in order."""
        rows = self._pool.extensions[: self._total(N_EXTENSIONS)]
        return [Extension(*map(int, row)) for row in rows]

    def _total(self, index: int) -> int:
        return int(self._pool.totals[index])

    def _column(self, values: Table) -> Any:
        """Return the values as an array for compiled code, as a list for plain Python."""
        if self._is_compiled:
            return np.require(values, np.int64, ["C", "W"])
        return values.tolist()
