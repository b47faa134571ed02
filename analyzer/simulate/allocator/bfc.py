"""TensorFlow's BFC allocator (best fit with coalescing, ``bfc_allocator.cc``).

The pool consists of regions, each tiled by chunks. A request is rounded up to 256 bytes and gets the
smallest sufficient free chunk, and of equal ones the lowest. The chunk is split if it is at least twice
the request, or if 128 MiB would be spare. A freed chunk is merged with its free neighbours at once. If
no chunk fits, the pool takes another region.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace

from analyzer.model.errors import InputError
from analyzer.model.units import GRANULE_BYTES, round_up

FIRST_REGION_BYTES = 2 << 20  # first region of a pool that grows on demand

# A chunk with this many spare bytes is split even if it is under twice the request.
_MAX_SPARE_BYTES = 128 << 20

UNLIMITED_BYTES = 1 << 46  # 64 TiB: stands for "no limit", far above any machine

_FIRST_ADDRESS = 1 << 40  # of the first region, if no trace gives it
_UPPER_ADDRESS = 1 << 50  # end of the regions that are placed downwards
_GAP_BYTES = 4096  # between regions, if no trace gives their addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class BfcOptions:
    """Settings of one best-fit allocator with coalescing (BFC)."""

    memory_limit_bytes: int = UNLIMITED_BYTES
    # take regions on demand, each twice the one before (``allow_growth``). Without it, the first
    # allocation takes one region of the whole limit.
    growth: bool = True
    # A card's allocator joins no regions, and gives free ones back to the driver before it fails.
    # On a CPU, neighbouring regions become one. Linux places the first region on the heap, and each
    # later one below the one before. Addresses matter because the lowest of several free chunks of
    # one size is taken.
    on_card: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.memory_limit_bytes <= UNLIMITED_BYTES:
            raise InputError(
                f"A memory limit of {self.memory_limit_bytes} bytes cannot be simulated.",
                "Give more than 0 bytes and at most 64 TiB.",
            )

    def under(self, memory_limit_bytes: int) -> BfcOptions:
        """Return the same settings with another limit."""
        return replace(self, memory_limit_bytes=memory_limit_bytes)

    def unlimited(self) -> BfcOptions:
        """Return the same settings without a limit."""
        return self.under(UNLIMITED_BYTES)

    @classmethod
    def cpu(cls, memory_limit_bytes: int = 64 << 30) -> BfcOptions:
        """Return the settings of ``TF_CPU_ALLOCATOR_USE_BFC=1``, by default with 64 GiB."""
        return cls(memory_limit_bytes=memory_limit_bytes)

    @classmethod
    def gpu(cls, memory_limit_bytes: int, *, growth: bool = False) -> BfcOptions:
        """Return the settings of a GPU: one region unless ``growth``."""
        return cls(
            memory_limit_bytes=memory_limit_bytes,
            growth=growth,
            on_card=True,
        )


@dataclass(slots=True, eq=False)
class Chunk:
    """A piece of a region, with its neighbours in the same region."""

    address: int
    size_bytes: int
    is_free: bool = False
    below: Chunk | None = None
    above: Chunk | None = None

    @property
    def end(self) -> int:
        """First address after the chunk."""
        return self.address + self.size_bytes


class BfcAllocator:
    """One allocator and its pool."""

    def __init__(self, options: BfcOptions) -> None:
        self.options = options
        self.in_use_bytes = 0
        self.pool_bytes = 0
        self.region_bytes: list[int] = []  # bytes of each region taken, in order

        first_bytes = FIRST_REGION_BYTES if options.growth else UNLIMITED_BYTES
        self._next_region_bytes = round_up(min(options.memory_limit_bytes, first_bytes))

        # Bytes and address of each free chunk, ascending
        self._free: list[tuple[int, int]] = []
        self._free_chunks: dict[int, Chunk] = {}  # free chunks by address
        self.regions: list[Chunk] = []  # the lowest chunk of each region
        self._lowest = self._highest = 0  # ends of the addresses of all regions

    @property
    def largest_free_bytes(self) -> int:
        """Size of the largest free chunk; 0 if none is free."""
        return self._free[-1][0] if self._free else 0

    def allocate(
        self,
        requested_bytes: int,
        region_address: int | None = None,
    ) -> Chunk | None:
        """Return the chunk for a request; None if it does not fit.

        A region that the request needs lies at ``region_address``, unless another is there.
        """
        rounded_bytes = round_up(requested_bytes)
        chunk = self._take(rounded_bytes)
        if chunk is None and self._extend(rounded_bytes, region_address):
            chunk = self._take(rounded_bytes)

        if chunk is None and self._return_free_regions(rounded_bytes):
            self._extend(rounded_bytes, region_address)
            chunk = self._take(rounded_bytes)

        if chunk is not None:
            self.in_use_bytes += chunk.size_bytes

        return chunk

    def free(self, chunk: Chunk) -> None:
        """Free a chunk."""
        self.in_use_bytes -= chunk.size_bytes
        self._merge(chunk)

    def _take(self, rounded_bytes: int) -> Chunk | None:
        """Take the smallest sufficient free chunk, and split it if it is much too large."""
        place = bisect_left(self._free, (rounded_bytes, 0))
        if place == len(self._free):
            return None

        size_bytes, address = self._free.pop(place)
        chunk = self._free_chunks.pop(address)
        chunk.is_free = False
        spare_bytes = size_bytes - rounded_bytes

        if spare_bytes >= rounded_bytes or spare_bytes >= _MAX_SPARE_BYTES:
            self._split(chunk, rounded_bytes)

        return chunk

    def _split(self, chunk: Chunk, size_bytes: int) -> None:
        """Make what a chunk has above ``size_bytes`` a free chunk."""
        rest = Chunk(chunk.address + size_bytes, chunk.size_bytes - size_bytes)
        rest.below = chunk
        rest.above = chunk.above

        if rest.above is not None:
            rest.above.below = rest

        chunk.above = rest
        chunk.size_bytes = size_bytes
        self._add_free(rest)

    def _merge(self, chunk: Chunk) -> None:
        """Join a chunk with its free neighbours, and add the result to the free chunks."""
        above = chunk.above
        below = chunk.below

        if above is not None and above.is_free:
            self._remove_free(above)
            _absorb(chunk, above)

        if below is not None and below.is_free:
            self._remove_free(below)
            _absorb(below, chunk)
            chunk = below

        self._add_free(chunk)

    def _add_free(self, chunk: Chunk) -> None:
        chunk.is_free = True
        self._free_chunks[chunk.address] = chunk
        insort(self._free, (chunk.size_bytes, chunk.address))

    def _remove_free(self, chunk: Chunk) -> None:
        chunk.is_free = False
        del self._free_chunks[chunk.address]
        del self._free[bisect_left(self._free, (chunk.size_bytes, chunk.address))]

    def _extend(self, rounded_bytes: int, known_address: int | None) -> bool:
        """Take a region that can hold the request; return whether the limit allows it."""
        left_bytes = self.options.memory_limit_bytes - self.pool_bytes
        available_bytes = left_bytes // GRANULE_BYTES * GRANULE_BYTES
        if rounded_bytes > available_bytes:
            return False

        planned_bytes = self._next_region_bytes
        while rounded_bytes > self._next_region_bytes:
            self._next_region_bytes *= 2

        size_bytes = min(self._next_region_bytes, available_bytes)
        if self._next_region_bytes == planned_bytes:
            self._next_region_bytes *= 2

        self.pool_bytes += size_bytes
        chunk = Chunk(self._choose_address(size_bytes, known_address), size_bytes)
        self.region_bytes.append(size_bytes)
        self._add_region(chunk)
        self._merge(chunk)

        return True

    def _choose_address(self, size_bytes: int, known_address: int | None) -> int:
        """Return the address of a new region: the known one if it is free, else beside the others."""
        count = len(self.region_bytes)
        address = known_address

        if address is None or self._overlaps(address, size_bytes):
            if count == 0:
                address = _FIRST_ADDRESS
            elif self.options.on_card:
                address = self._highest + _GAP_BYTES
            elif count == 1:
                address = _UPPER_ADDRESS - size_bytes
            else:
                address = self._lowest - _GAP_BYTES - size_bytes

        self._lowest = address if count < 2 else min(self._lowest, address)
        self._highest = max(self._highest, address + size_bytes)

        return address

    def _overlaps(self, address: int, size_bytes: int) -> bool:
        end = address + size_bytes
        return any(
            first.address < end and address < last.end
            for first, last in self._find_region_ends()
        )

    def _find_region_ends(self) -> Iterator[tuple[Chunk, Chunk]]:
        """Yield the lowest and the highest chunk of each region."""
        for first in self.regions:
            last = first
            while last.above is not None:
                last = last.above

            yield first, last

    def _add_region(self, chunk: Chunk) -> None:
        """Add a region of one chunk, or append it to the region that ends at its address."""
        for _, last in self._find_region_ends():
            if last.end == chunk.address and not self.options.on_card:
                last.above = chunk
                chunk.below = last

                return

        self.regions.append(chunk)

    def _return_free_regions(self, rounded_bytes: int) -> bool:
        """Give wholly free regions back to the driver if the request then fits; return whether so."""
        if not self.options.on_card:
            return False

        idle = [
            first for first in self.regions if first.is_free and first.above is None
        ]
        idle_bytes = sum(first.size_bytes for first in idle)
        available_bytes = self.options.memory_limit_bytes - self.pool_bytes + idle_bytes

        if not idle or rounded_bytes > available_bytes:
            return False

        for first in idle:
            self._remove_free(first)
            self.regions.remove(first)

        self.pool_bytes -= idle_bytes

        return True


def _absorb(lower: Chunk, upper: Chunk) -> None:
    """Add a chunk to its lower neighbour."""
    lower.size_bytes += upper.size_bytes
    lower.above = upper.above

    if upper.above is not None:
        upper.above.below = lower
