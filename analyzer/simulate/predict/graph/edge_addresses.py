"""Addresses of a graph's edges, and the hash set whose order follows from them.

TensorFlow keeps up to eight edges of a node in the order they were made, and more than eight in a hash
set of pointers (``EdgeSet``, ``FlatSet``). The edges lie in the graph's arena: blocks of 8 KiB, 32 bytes
an edge and 200 bytes a node (``graph.h``, ``arena.cc``), each block wherever the heap has room. That is
mostly where earlier graphs of the same function were: glibc takes the smallest hole that suffices, and
what is left of it next, so that a few blocks follow one another and the next lie elsewhere. Where a hole
lies is as random as the heap's place.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

INLINE_EDGES: Final = 8
"""Edges that a node keeps in order (``EdgeSet::kInline``)."""

EDGE_BYTES: Final = 32
"""``sizeof(Edge)``: two pointers and three numbers."""

NODE_BYTES: Final = 200
"""``sizeof(Node)`` in TensorFlow 2.21."""

FOLLOWS: Final = 0.75
"""Share of the blocks of an executor's graph that follow the one before: 22 of the 29 that held edges of
four graphs (``posix_memalign`` watched in real processes). It is made last, where the copies before it
have left holes of several blocks."""

SELDOM_FOLLOWS: Final = 0.0
"""The same in the graph of a partition, which oneDNN's pass walks: none of 14. What else is made with
its nodes lies between them."""

_BLOCK_BYTES: Final = 8192
"""Bytes of one block of the graph's arena."""
_HEADER_BYTES: Final = 16
"""Bytes that the heap puts before a block."""
_ADDRESS_BITS: Final = 31
"""Bits of a block's address that are drawn."""
_TO_SINK: Final = 2
"""Edges from source to sink that come before all others: one more with each copy of the graph."""
_SLOTS_PER_BUCKET: Final = 8
"""Slots of one bucket of a ``FlatSet`` (``flatrep.h``, ``kWidth``)."""
_FULL_RATIO: Final = 0.8
"""Share of its slots from which on a ``FlatSet`` doubles (``flatrep.h``)."""


class Layout:
    """Offsets in an arena of what is allocated one thing after another; none lies across two blocks."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, size: int, count: int = 1) -> int:
        """Return the offset of the last of ``count`` things of ``size`` bytes that come next."""
        last = self.later(size, count - 1)
        self._next = last + size
        return last

    def later(self, size: int, number: int) -> int:
        """Return the offset of the thing after ``number`` others of ``size`` bytes, not yet taken."""
        block, used = divmod(self._next, _BLOCK_BYTES)
        here = (_BLOCK_BYTES - used) // size
        if number < here:
            return self._next + number * size
        blocks, within = divmod(number - here, _BLOCK_BYTES // size)
        return (block + 1 + blocks) * _BLOCK_BYTES + within * size


class Arena:
    """Where the things of a graph lie that are allocated one after another.

    Args:
        seed: Which addresses; the same seed gives the same ones.
        follows: How often a block follows the one before it.
    """

    def __init__(self, seed: int, follows: float = FOLLOWS) -> None:
        self._generator = random.Random(seed)
        self._follows = follows
        self._blocks: list[int] = []

    def address(self, offset: int) -> int:
        """Return the address of what lies ``offset`` bytes from the arena's start."""
        block, rest = divmod(offset, _BLOCK_BYTES)
        while len(self._blocks) <= block:
            self._blocks.append(self._next_block())
        return self._blocks[block] + rest

    def order(self, offsets: Sequence[int], *, grows: bool = True) -> list[int]:
        """Return positions in ``offsets`` in the order in which a set of such edges yields them.

        Args:
            offsets: Where the edges lie in the arena, bytes, in the order of their making.
            grows: Whether the set begins small; otherwise it has room for all.
        """
        if len(offsets) <= INLINE_EDGES:
            return list(range(len(offsets)))
        self.address(max(offsets))  # every block up to there has its place
        blocks = self._blocks
        addresses = [blocks[offset // _BLOCK_BYTES] + offset % _BLOCK_BYTES for offset in offsets]
        table = _PointerSet(1 if grows else len(offsets))
        table.insert_all(addresses)
        return table.items()

    def _next_block(self) -> int:
        if self._blocks and self._generator.random() < self._follows:
            return self._blocks[-1] + _BLOCK_BYTES + _HEADER_BYTES
        return self._generator.getrandbits(_ADDRESS_BITS) & ~15


@dataclass(frozen=True, slots=True)
class EdgeSet:
    """The out-edges of a node that has too many to keep them in order.

    Attributes:
        edges: In the order of their making: whether it is a control edge, and which of the node's.
        offsets: Where each lies in the arena, bytes.
    """

    edges: list[tuple[bool, int]]
    offsets: list[int]


@dataclass(frozen=True, slots=True)
class EdgeSets:
    """What the order of a graph's edges follows from, whatever the addresses.

    Attributes:
        of_nodes: Each node with more than ``INLINE_EDGES`` out-edges, and those.
        of_source: Offsets of the source's edges: those to the sink, then those to the roots.
        to_sink: How many of these go to the sink.
    """

    of_nodes: list[tuple[int, EdgeSet]]
    of_source: list[int]
    to_sink: int


def edge_sets_of(
    edge_ids: Sequence[tuple[Sequence[int], Sequence[int]]], root_edges: Sequence[int]
) -> EdgeSets:
    """Return where a graph's edges lie in its arena, of the nodes where that decides their order.

    Args:
        edge_ids: For each node, the numbers of its data edges and of its control edges.
        root_edges: Numbers of the source's edges to the roots.
    """
    layout = Layout()
    layout.take(NODE_BYTES, 2)
    own = layout.take(EDGE_BYTES)
    layout.take(NODE_BYTES, len(edge_ids))
    found: list[tuple[int, EdgeSet]] = []
    for node, (data_ids, control_ids) in enumerate(edge_ids):
        if len(data_ids) + len(control_ids) <= INLINE_EDGES:
            continue
        edges = sorted(
            [(edge, False, k) for k, edge in enumerate(data_ids)]
            + [(edge, True, k) for k, edge in enumerate(control_ids)]
        )
        offsets = [layout.later(EDGE_BYTES, _TO_SINK + edge) for edge, _, _ in edges]
        found.append((node, EdgeSet([(is_control, k) for _, is_control, k in edges], offsets)))
    to_sink = [own, *(layout.later(EDGE_BYTES, number) for number in range(_TO_SINK))]
    to_roots = [layout.later(EDGE_BYTES, _TO_SINK + edge) for edge in root_edges]
    return EdgeSets(found, [*to_sink, *to_roots], len(to_sink))


class _PointerSet:
    """``FlatSet<const Edge*>``: open addressing, quadratic probes, four fifths full at most."""

    def __init__(self, count: int) -> None:
        self._slots: list[tuple[int, int] | None] = []
        self._resize(count)

    def insert_all(self, addresses: Sequence[int]) -> None:
        """Insert addresses, none twice; what an address brings in is its position among them."""
        slots, room = self._slots, int(len(self._slots) * _FULL_RATIO)
        mask = len(slots) - 1
        for position, address in enumerate(addresses):
            if position >= room:
                self._resize(position + 1)
                slots, room = self._slots, int(len(self._slots) * _FULL_RATIO)
                mask = len(slots) - 1
            index = ((address + (address >> 6)) >> 8) & mask
            probes = 1
            while slots[index] is not None:
                index = (index + probes) & mask
                probes += 1
            slots[index] = (address, position)

    def items(self) -> list[int]:
        return [slot[1] for slot in self._slots if slot is not None]

    def _resize(self, count: int) -> None:
        old = self._slots
        size = _SLOTS_PER_BUCKET
        while count >= _FULL_RATIO * size:
            size *= 2
        self._slots = [None] * size
        for slot in old:
            if slot is not None:
                self._place(*slot)

    def _place(self, address: int, item: int) -> None:
        mask = len(self._slots) - 1
        index = ((address + (address >> 6)) >> 8) & mask
        probes = 1
        while self._slots[index] is not None:
            index = (index + probes) & mask
            probes += 1
        self._slots[index] = (address, item)
