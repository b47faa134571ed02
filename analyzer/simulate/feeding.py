"""Either allocator, fed with arrays of operations: how far it gets, and under which limits it does."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Protocol

from analyzer.simulate.bfc import BfcAllocator
from analyzer.simulate.compiled import CompiledAllocator
from analyzer.simulate.options import BfcOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Table = NDArray[np.int64]


class Feedable(Protocol):
    """An allocator with what it holds."""

    @property
    def same_under(self) -> tuple[int, int]:
        """The least and the highest memory limit under which all that was fed goes as it went."""

    def feed(self, slot: Table, request: Table) -> int:
        """Do operations and return how many were done: all, or as many as succeeded.

        Args:
            slot: Which buffer, shape ``(n_ops,)``.
            request: Bytes asked for; 0 frees the slot's buffer.
        """

    def under(self, memory_limit_bytes: int) -> Feedable:
        """Return a copy, with all that it holds, that goes on under another limit."""


class ReferenceAllocator:
    """The reference implementation, fed as the compiled one is.

    Args:
        options: Limit, growth and the rest.
    """

    def __init__(self, options: BfcOptions) -> None:
        self._bfc = BfcAllocator(options)
        self._held: dict[int, int] = {}
        self._done = 0

    @property
    def same_under(self) -> tuple[int, int]:
        """The least and the highest memory limit under which all that was fed goes as it went."""
        return self._bfc.same_under

    def feed(self, slot: Table, request: Table, *, in_use: list[int] | None = None) -> int:
        """Do operations and return how many were done: all, or as many as succeeded.

        Args:
            slot: Which buffer, shape ``(n_ops,)``.
            request: Bytes asked for; 0 frees the slot's buffer.
            in_use: Gets the bytes in use after each.
        """
        bfc, held = self._bfc, self._held
        first = self._done
        for op, (buffer, size_bytes) in enumerate(
            zip(slot.tolist(), request.tolist(), strict=True), start=first
        ):
            if size_bytes:
                address = bfc.allocate(size_bytes, owner=op)
                if address is None:
                    self._done = op
                    return op - first
                held[buffer] = address
            else:
                bfc.free(held.pop(buffer))
            if in_use is not None:
                in_use.append(bfc.in_use_bytes)
        self._done = first + len(slot)
        return len(slot)

    def under(self, memory_limit_bytes: int) -> ReferenceAllocator:
        """Return a copy, with all that it holds, that goes on under another limit."""
        other = copy(self)
        other._bfc, other._held = self._bfc.under(memory_limit_bytes), dict(self._held)
        return other


def allocator_of(options: BfcOptions, n_buffers: int, *, is_compiled: bool) -> Feedable:
    """Return an allocator that holds nothing.

    Args:
        options: Limit, growth and the rest.
        n_buffers: Buffers are numbered from 0 to this.
        is_compiled: Which implementation; they do the same.
    """
    return CompiledAllocator(options, n_buffers) if is_compiled else ReferenceAllocator(options)
