"""TensorFlow's BFC allocator with objects: the oracle of the allocator on columns.

It is written independently of ``bfc_operations`` (chunk objects and sorted lists of Python), and its
``check`` verifies all invariants after any operation. Deliberately slow and simple.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Final

from analyzer.model.errors import AccountingError
from analyzer.model.units import GRANULE_BYTES, round_up
from analyzer.simulate.allocator.bfc.bfc_allocator import Extension
from analyzer.simulate.allocator.bfc.bfc_pool import (
    UPPER_ADDRESS,
    BfcOptions,
)

BINS = 21
"""Bins of free chunks, each for sizes from 256 bytes times a power of two (``kNumBins``)."""


def bin_of(size_bytes: int) -> int:
    """Return the bin that holds free chunks of ``size_bytes``: 0 for 256 B, 20 for 256 MiB up.

    No chunk is smaller than 256 B.
    """
    number = (size_bytes // GRANULE_BYTES).bit_length() - 1
    return number if number < BINS - 1 else BINS - 1


@dataclass(slots=True, eq=False)
class Chunk:
    """A piece of a region. ``owner`` is whose it is, None where it is free."""

    address: int
    size_bytes: int
    owner: int | None = None
    requested_bytes: int = 0
    below: Chunk | None = field(default=None, repr=False)
    above: Chunk | None = field(default=None, repr=False)

    @property
    def end(self) -> int:
        """First address after the chunk."""
        return self.address + self.size_bytes


@dataclass(slots=True, eq=False)
class Region:
    """Bytes that the driver gave in one piece, or several that lie end to end.

    Attributes:
        address: First address.
        size_bytes: Bytes, of all pieces.
        first: Its lowest chunk.
    """

    address: int
    size_bytes: int
    first: Chunk

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks from the lowest address up."""
        chunk: Chunk | None = self.first
        while chunk is not None:
            yield chunk
            chunk = chunk.above

    def copied(self, chunks: dict[int, Chunk]) -> Region:
        """Return a copy with chunks of its own, and put those into ``chunks`` by their address."""
        below: Chunk | None = None
        for chunk in self.chunks():
            new = Chunk(chunk.address, chunk.size_bytes, chunk.owner, chunk.requested_bytes, below)
            if below is not None:
                below.above = new
            chunks[new.address] = below = new
        return Region(self.address, self.size_bytes, chunks[self.first.address])


ANY_BYTES: Final = 1 << 62
"""Stands for "however large"."""


class Sameness:
    """The limits under which what was done so far goes as it went.

    Args:
        options: The allocator's set-up.

    Attributes:
        least_bytes, most_bytes: The range of limits.
        flexible: The chunk that is as much larger as the limit is; None before the last region.
    """

    def __init__(self, options: BfcOptions) -> None:
        self._limit_bytes = options.memory_limit_bytes
        self.least_bytes, self.most_bytes = -ANY_BYTES, ANY_BYTES
        self.flexible: Chunk | None = None
        if options.fragmentation_fraction > 0:
            self.end()

    def end(self) -> None:
        """Say nothing of other limits any more."""
        self._hold(self._limit_bytes, self._limit_bytes)

    def under(self, limit_bytes: int, chunks: Mapping[int, Chunk]) -> Sameness:
        """Return a copy for a copied pool under another limit, one of the range.

        Args:
            limit_bytes: The limit.
            chunks: The copied pool's chunks by their address.
        """
        other = Sameness(BfcOptions(memory_limit_bytes=limit_bytes))
        other.least_bytes, other.most_bytes = self.least_bytes, self.most_bytes
        other.flexible = None if self.flexible is None else chunks[self.flexible.address]
        return other

    def observe_no_region(self, needed_bytes: int) -> None:
        """Note that a limit under ``needed_bytes`` refused a region."""
        if self.flexible is None:
            self._hold(-ANY_BYTES, needed_bytes - 1)

    def observe_region(self, least_bytes: int, most_bytes: int) -> None:
        """Note that a region is taken, of the size that the limits between these two would give it."""
        self._hold(least_bytes, most_bytes)

    def observe_taken(self, rounded_bytes: int, larger_bytes: int, max_spare_bytes: int) -> None:
        """Note that the flexible chunk, still whole, is taken for a request.

        Args:
            rounded_bytes: The request.
            larger_bytes: Size of the free chunk that would be next.
            max_spare_bytes: Left-over from which a chunk is split whatever the request.
        """
        assert self.flexible is not None
        limit, size_bytes = self._limit_bytes, self.flexible.size_bytes
        spare = size_bytes - rounded_bytes
        least_spare = max(min(rounded_bytes, max_spare_bytes), 1)
        most = limit + max(larger_bytes - size_bytes - 1, 0)
        if spare >= least_spare:
            self._hold(limit + least_spare - spare, most)
        else:
            self._hold(limit - spare, min(most, limit + least_spare - spare - 1))

    def observe_other(self, rounded_bytes: int, chunk_bytes: int = 0) -> None:
        """Note that another chunk is taken for a request, or none, where the flexible one is free."""
        flexible = self.flexible
        if flexible is None or flexible.owner is not None:
            return
        size_bytes = flexible.size_bytes
        if size_bytes < rounded_bytes:
            self._hold(-ANY_BYTES, self._limit_bytes + rounded_bytes - size_bytes - 1)
        else:
            least = self._limit_bytes + min(chunk_bytes - size_bytes + 1, 0)
            if least > self.least_bytes:
                self.least_bytes = least

    def moved(self, old: Chunk, new: Chunk) -> None:
        """Note that the end of chunk ``old`` belongs to ``new`` now."""
        if old is self.flexible:
            self.flexible = new

    def _hold(self, least_bytes: int, most_bytes: int) -> None:
        self.least_bytes = max(self.least_bytes, least_bytes)
        self.most_bytes = min(self.most_bytes, most_bytes)


class OracleAllocator:
    """One allocator and its pool.

    Args:
        options: Limit, growth and the rest.
    """

    def __init__(self, options: BfcOptions) -> None:
        self.options = options
        self.in_use_bytes = 0
        self.peak_in_use_bytes = 0
        self.requested_bytes = 0
        self.pool_bytes = 0
        self.peak_pool_bytes = 0
        self.allocations = 0
        self.extensions: list[Extension] = []
        self.released: list[tuple[int, int]] = []
        self._next_region_bytes = options.first_region_bytes
        self._max_spare_bytes = options.max_spare_bytes
        self._bins: list[list[tuple[int, int]]] = [[] for _ in range(BINS)]
        self._chunks: dict[int, Chunk] = {}
        self._regions: dict[int, Region] = {}
        self._lowest = self._highest = 0
        self._sameness = Sameness(options)

    @property
    def same_under(self) -> tuple[int, int]:
        """The least and the highest memory limit under which all that was done goes as it went."""
        return self._sameness.least_bytes, self._sameness.most_bytes

    def under(self, memory_limit_bytes: int) -> OracleAllocator:
        """Return a copy, with all that it holds, that goes on under another limit."""
        other = copy(self)
        other.options = replace(self.options, memory_limit_bytes=memory_limit_bytes)
        other.extensions, other.released = list(self.extensions), list(self.released)
        other._bins = [list(free) for free in self._bins]
        other._chunks, other._regions = {}, {}
        for address, region in self._regions.items():
            other._regions[address] = region.copied(other._chunks)
        other._sameness = self._sameness.under(memory_limit_bytes, other._chunks)
        return other

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions by address."""
        return tuple(self._regions[address] for address in sorted(self._regions))

    @property
    def free_bytes(self) -> int:
        """Bytes of the pool that nobody holds."""
        return self.pool_bytes - self.in_use_bytes

    @property
    def largest_free_bytes(self) -> int:
        """Size of the largest free chunk; 0 where there is none."""
        for free in reversed(self._bins):
            if free:
                return free[-1][0]
        return 0

    @property
    def fragmentation(self) -> float:
        """(free - largest free) / free, 0 to 1; not a number where nothing is free."""
        free_bytes = self.free_bytes
        return (free_bytes - self.largest_free_bytes) / free_bytes if free_bytes else float("nan")

    def chunks(self) -> Iterator[Chunk]:
        """Yield every chunk, from the lowest address up."""
        for region in self.regions:
            yield from region.chunks()

    def chunk_at(self, address: int) -> Chunk:
        """Return the chunk in use at ``address``.

        Raises:
            KeyError: no chunk in use begins there.
        """
        chunk = self._chunks[address]
        if chunk.owner is None:
            raise KeyError(address)
        return chunk

    def allocate(
        self, requested_bytes: int, *, owner: int = 0, region_address: int | None = None
    ) -> int | None:
        """Place a request and return its address, or None where it does not fit.

        Args:
            requested_bytes: What is asked for, more than 0.
            owner: Whatever tells whose the chunk is.
            region_address: Where a region lies if this request makes the pool grow, where a
                trace tells; ignored where it would overlap the pool.
        """
        if requested_bytes <= 0:
            raise ValueError(f"an allocation of {requested_bytes} bytes")
        rounded_bytes = round_up(requested_bytes)
        chunk = self._take(rounded_bytes)
        if chunk is None and self._extend(rounded_bytes, owner, region_address):
            chunk = self._take(rounded_bytes)
        if (
            chunk is None
            and self._release_free_regions(rounded_bytes)
            and self._extend(rounded_bytes, owner, region_address)
        ):
            chunk = self._take(rounded_bytes)
        if chunk is None:
            return None
        chunk.owner = owner
        chunk.requested_bytes = requested_bytes
        self.allocations += 1
        self.requested_bytes += requested_bytes
        self.in_use_bytes += chunk.size_bytes
        self.peak_in_use_bytes = max(self.peak_in_use_bytes, self.in_use_bytes)
        return chunk.address

    def free(self, address: int) -> None:
        """Give back the chunk at ``address`` and merge it with its free neighbours.

        Raises:
            KeyError: no chunk in use begins there.
        """
        chunk = self.chunk_at(address)
        self.in_use_bytes -= chunk.size_bytes
        self.requested_bytes -= chunk.requested_bytes
        chunk.owner = None
        chunk.requested_bytes = 0
        self._insert(self._merged(chunk))

    def _take(self, rounded_bytes: int) -> Chunk | None:
        """Take the best free chunk out of its bin, split where the rule says so."""
        sameness = self._sameness
        for number in range(bin_of(rounded_bytes), BINS):
            free = self._bins[number]
            at = bisect_left(free, (rounded_bytes, -1))
            if at < len(free):
                chunk = self._chunks[free[at][1]]
                if sameness.flexible is chunk:
                    larger_bytes = self._larger_bytes(number, at)
                    sameness.observe_taken(rounded_bytes, larger_bytes, self._max_spare_bytes)
                elif sameness.flexible is not None:
                    sameness.observe_other(rounded_bytes, chunk.size_bytes)
                del free[at]
                spare_bytes = chunk.size_bytes - rounded_bytes
                if spare_bytes >= rounded_bytes or spare_bytes >= self._max_spare_bytes:
                    self._split(chunk, rounded_bytes)
                return chunk
        if sameness.flexible is not None:
            sameness.observe_other(rounded_bytes)
        return None

    def _larger_bytes(self, number: int, at: int) -> int:
        """Return the size of the free chunk that is next in order, or ``ANY_BYTES`` for none."""
        free = self._bins[number]
        if at + 1 < len(free):
            return free[at + 1][0]
        return next((chunks[0][0] for chunks in self._bins[number + 1 :] if chunks), ANY_BYTES)

    def _split(self, chunk: Chunk, rounded_bytes: int) -> None:
        """Leave ``rounded_bytes`` in ``chunk`` and make the rest a free chunk above it."""
        if chunk.size_bytes == rounded_bytes:
            return
        rest = Chunk(
            chunk.address + rounded_bytes,
            chunk.size_bytes - rounded_bytes,
            below=chunk,
            above=chunk.above,
        )
        if rest.above is not None:
            rest.above.below = rest
        chunk.above = rest
        chunk.size_bytes = rounded_bytes
        self._chunks[rest.address] = rest
        self._insert(rest)
        self._sameness.moved(chunk, rest)

    def _merged(self, chunk: Chunk) -> Chunk:
        """Join a free chunk that is in no bin with its free neighbours; return the result."""
        if chunk.above is not None and chunk.above.owner is None:
            self._remove(chunk.above)
            self._absorb(chunk, chunk.above)
        if chunk.below is not None and chunk.below.owner is None:
            self._remove(chunk.below)
            self._absorb(chunk.below, chunk)
            chunk = chunk.below
        return chunk

    def _absorb(self, lower: Chunk, upper: Chunk) -> None:
        lower.size_bytes += upper.size_bytes
        lower.above = upper.above
        if upper.above is not None:
            upper.above.below = lower
        del self._chunks[upper.address]
        self._sameness.moved(upper, lower)

    def _insert(self, chunk: Chunk) -> None:
        insort(self._bins[bin_of(chunk.size_bytes)], (chunk.size_bytes, chunk.address))

    def _remove(self, chunk: Chunk) -> None:
        free = self._bins[bin_of(chunk.size_bytes)]
        del free[bisect_left(free, (chunk.size_bytes, chunk.address))]

    def _extend(self, rounded_bytes: int, owner: int, region_address: int | None) -> bool:
        """Take one more region that can hold ``rounded_bytes``; tell whether it was given."""
        available_bytes = (
            (self.options.memory_limit_bytes - self.pool_bytes) // GRANULE_BYTES * GRANULE_BYTES
        )
        if rounded_bytes > available_bytes:
            self._sameness.observe_no_region(self.pool_bytes + rounded_bytes)
            return False
        planned_bytes = self._next_region_bytes
        while rounded_bytes > self._next_region_bytes:
            self._next_region_bytes *= 2
        ask_bytes = min(self._next_region_bytes, available_bytes)
        is_rest = available_bytes <= self._next_region_bytes
        self._sameness.observe_region(
            self.pool_bytes + (rounded_bytes if is_rest else self._next_region_bytes),
            self.pool_bytes + self._next_region_bytes if is_rest else ANY_BYTES,
        )
        if self._next_region_bytes == planned_bytes:
            self._next_region_bytes *= 2
        address = self._place(ask_bytes, region_address)
        self.extensions.append(Extension(address=address, size_bytes=ask_bytes, owner=owner))
        chunk = self._add_region(address, ask_bytes)
        if is_rest:
            self._sameness.flexible = chunk
        self._insert(self._merged(chunk))
        return True

    def _place(self, size_bytes: int, region_address: int | None) -> int:
        """Return the address of a new region: the one that is known, else next to the others."""
        address = region_address
        if address is None or any(
            address < region.address + region.size_bytes and region.address < address + size_bytes
            for region in self._regions.values()
        ):
            if not self.extensions:
                address = self.options.first_address
            elif not self.options.descending:
                address = self._highest + self.options.gap_bytes
            elif len(self.extensions) == 1:
                address = UPPER_ADDRESS - size_bytes
            else:
                address = self._lowest - self.options.gap_bytes - size_bytes
        self._lowest = address if len(self.extensions) < 2 else min(self._lowest, address)
        self._highest = max(self._highest, address + size_bytes)
        return address

    def _add_region(self, address: int, size_bytes: int) -> Chunk:
        """Add a region's bytes to the pool; return its chunk, which is in no bin yet."""
        self.pool_bytes += size_bytes
        self.peak_pool_bytes = max(self.peak_pool_bytes, self.pool_bytes)
        chunk = Chunk(address, size_bytes)
        self._chunks[address] = chunk
        before = self._region_ending_at(address) if self.options.coalesce_regions else None
        if before is None:
            self._regions[address] = Region(address, size_bytes, chunk)
        else:
            before.size_bytes += size_bytes
            *_, last = before.chunks()
            last.above, chunk.below = chunk, last
        return chunk

    def _region_ending_at(self, address: int) -> Region | None:
        for region in self._regions.values():
            if region.address + region.size_bytes == address:
                return region
        return None

    def _release_free_regions(self, rounded_bytes: int) -> bool:
        """Give every wholly free region back, if the request could be served then."""
        if not self.options.garbage_collection:
            return False
        self._sameness.end()
        idle = [
            region
            for region in self._regions.values()
            if region.first.owner is None and region.first.above is None
        ]
        idle_bytes = sum(region.size_bytes for region in idle)
        available_bytes = self.options.memory_limit_bytes - self.pool_bytes + idle_bytes
        if not idle or rounded_bytes > available_bytes:
            return False
        for region in idle:
            self._remove(region.first)
            del self._chunks[region.address], self._regions[region.address]
            self.pool_bytes -= region.size_bytes
            self.released.append((region.address, region.size_bytes))
        return True

    def check(self) -> None:
        """Check that the books balance.

        Raises:
            AccountingError: chunks overlap or leave a gap, a total is not the sum of its parts,
                two free chunks are neighbours, or a bin holds something else than its free chunks.
        """
        free: list[list[tuple[int, int]]] = [[] for _ in range(BINS)]
        in_use_bytes = requested_bytes = 0
        for region in self.regions:
            _expect("region's end", _walk(region), region.address + region.size_bytes)
            for chunk in region.chunks():
                _expect("chunk by address", self._chunks.get(chunk.address), chunk)
                if chunk.owner is None:
                    free[bin_of(chunk.size_bytes)].append((chunk.size_bytes, chunk.address))
                else:
                    in_use_bytes += chunk.size_bytes
                    requested_bytes += chunk.requested_bytes
        _expect("bins", self._bins, [sorted(chunks) for chunks in free])
        _expect("in use", self.in_use_bytes, in_use_bytes)
        _expect("requested", self.requested_bytes, requested_bytes)
        _expect("pool", self.pool_bytes, sum(region.size_bytes for region in self.regions))
        _expect("chunks", len(self._chunks), sum(1 for _ in self.chunks()))
        if self.pool_bytes > self.options.memory_limit_bytes:
            raise AccountingError(f"the pool of {self.pool_bytes} bytes exceeds its limit")


def _walk(region: Region) -> int:
    """Return where the chunks of ``region`` end, if they tile it and no two free ones touch."""
    at, below = region.address, None
    for chunk in region.chunks():
        _expect("chunk's address", chunk.address, at)
        _expect("lower neighbour", chunk.below, below)
        if chunk.size_bytes <= 0 or chunk.size_bytes % GRANULE_BYTES:
            raise AccountingError(f"a chunk of {chunk.size_bytes} bytes at {chunk.address}")
        if below is not None and below.owner is None and chunk.owner is None:
            raise AccountingError(f"two free neighbours at {below.address} and {chunk.address}")
        at, below = chunk.end, chunk
    return at


def _expect(what: str, got: object, expected: object) -> None:
    if got is not expected and got != expected:
        raise AccountingError(f"{what}: {got} is not {expected}")
