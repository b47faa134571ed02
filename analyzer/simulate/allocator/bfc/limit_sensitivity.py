"""Under which other memory limits a pool would have done all the same.

A limit shows in three places only: where a region is refused, where one is given whole although the
limit was near, and in the last region, which is what the limit left over. There one chunk, the one at
the region's end, is as much larger as the limit is. As long as it is taken for the same requests and
split, or not, in the same way, a run under another limit is the same run. So one run answers for a
range of limits, often a wide one, and a search has few of them to try.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from analyzer.simulate.allocator.bfc.bfc_options import BfcOptions
from analyzer.simulate.allocator.bfc.chunks import Chunk

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
        if options.fragmentation_fraction > 0 or options.driver_bytes is not None:
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
