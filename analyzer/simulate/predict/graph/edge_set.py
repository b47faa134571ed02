"""The order in which a node lists its out-edges (``EdgeSet`` in ``edgeset.h``).

A node keeps up to eight out-edges in order of creation. More lie in a hash set of pointers, so that
their order depends on heap addresses. Edges that are created together lie side by side in blocks of
the graph's arena (``arena.cc``); the place of a block is random.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final, TypeVar

INLINE_EDGES: Final = 8
"""Out-edges that a node keeps in order (``EdgeSet::kInline``)."""

_EDGE_BYTES: Final = 32
"""``sizeof(Edge)``: two pointers and three numbers."""
_BLOCK_BYTES: Final = 8192
"""Bytes of a block of the graph's arena."""
_FOLLOWS: Final = 0.75
"""Share of blocks that follow the one before: 22 of 29 in four graphs (``posix_memalign`` calls)."""
_ADDRESS_BITS: Final = 31
"""Random bits of a block's address."""
_SLOTS_PER_BUCKET: Final = 8
"""Slots of a bucket of a ``FlatSet`` (``kWidth`` in ``flatrep.h``)."""
_FULL_RATIO: Final = 0.8
"""Share of its slots above which a ``FlatSet`` doubles (``flatrep.h``)."""

_Item = TypeVar("_Item")


def order_edges(edges: Sequence[_Item], chances: Random, *, grows: bool = True) -> list[_Item]:
    """Return edges in one order in which an ``EdgeSet`` may list them.

    Args:
        edges: The edges in order of creation.
        chances: Draws the addresses.
        grows: Whether the set starts small; otherwise it has room for all edges.
    """
    if len(edges) <= INLINE_EDGES:
        return list(edges)
    table: list[tuple[int, int] | None] = [None] * _slots_for(1 if grows else len(edges))
    for position, address in enumerate(_draw_addresses(len(edges), chances)):
        if position >= int(len(table) * _FULL_RATIO):
            old = [entry for entry in table if entry is not None]
            table = [None] * _slots_for(position + 1)
            for entry in old:
                _insert(table, *entry)
        _insert(table, address, position)
    return [edges[entry[1]] for entry in table if entry is not None]


def _draw_addresses(count: int, chances: Random) -> list[int]:
    addresses: list[int] = []
    address = chances.getrandbits(_ADDRESS_BITS) & -_EDGE_BYTES
    for _ in range(count):
        addresses.append(address)
        address += _EDGE_BYTES
        if not address % _BLOCK_BYTES and chances.random() >= _FOLLOWS:
            address = chances.getrandbits(_ADDRESS_BITS) & -_BLOCK_BYTES
    return addresses


def _slots_for(count: int) -> int:
    slots = _SLOTS_PER_BUCKET
    while count >= _FULL_RATIO * slots:
        slots *= 2
    return slots


def _insert(table: list[tuple[int, int] | None], address: int, position: int) -> None:
    """Insert an edge: open addressing with quadratic probes, as in ``FlatSet<const Edge*>``."""
    mask = len(table) - 1
    index = ((address + (address >> 6)) >> 8) & mask
    probes = 1
    while table[index] is not None:
        index = (index + probes) & mask
        probes += 1
    table[index] = (address, position)
