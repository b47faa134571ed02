"""What a pool is made of: chunks in regions, and the record of a region being taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from analyzer.model.units import GRANULE_BYTES

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """One taking of a region from the driver, and what led to it.

    Attributes:
        address, size_bytes: What was given.
        owner: Owner of the allocation that no free chunk could serve.
        requested_bytes: What that allocation asked for.
        planned_bytes: Size that the growth rule had come to before the request was looked at.
        asked_bytes: First ask of the driver: at least the request, at most what the limit left.
        number: 0 for the first region.
        free_bytes, largest_free_bytes: Free in the pool just before.
        available_bytes: What the limit still left.
    """

    address: int
    size_bytes: int
    owner: int
    requested_bytes: int
    planned_bytes: int
    asked_bytes: int
    number: int
    free_bytes: int
    largest_free_bytes: int
    available_bytes: int
