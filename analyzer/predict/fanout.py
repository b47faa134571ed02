"""In which order a node's successors are looked at: the one freedom the executor has.

TensorFlow keeps up to eight out-edges of a node in the order they were made, and more than eight in a
hash set of pointers (``EdgeSet``, ``FlatSet``), whose order follows from the addresses that the
graph's arena happened to get. Addresses differ from process to process and stay for all steps of one,
which is why five runs of one step may peak differently and the steps of one run do not. The most
important such set is the graph's source, which starts every root.

A *draw* of the schedule is therefore a draw of addresses. :class:`Arena` replays the hash set with
addresses taken from a seeded generator: for even seeds edges lie in the order of their making in
blocks of 8 KiB, as in a fresh process; for odd seeds they lie anywhere, as where edges that a rewrite
removed were used again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from analyzer.predict.wiring import Wiring

INLINE_EDGES: Final = 8
_EDGE_BYTES: Final = 32
_BLOCK_BYTES: Final = 8192
_SLOTS_PER_BUCKET: Final = 8
_FULL_RATIO: Final = 0.8


class Arena:
    """Addresses of a graph's edges: blocks of 8 KiB, each somewhere on the heap.

    Args:
        seed: Which addresses; the same seed gives the same schedule.
    """

    def __init__(self, seed: int) -> None:
        generator = random.Random(seed)
        self._base = generator.getrandbits(31) & ~15
        self._generator = generator
        self._scattered = bool(seed % 2)
        self._blocks: list[int] = []

    def address(self, edge: int) -> int:
        """Return the address of edge number ``edge``, bytes."""
        block, offset = divmod(edge * _EDGE_BYTES, _BLOCK_BYTES)
        while len(self._blocks) <= block:
            self._blocks.append(self._base)
            self._base += _BLOCK_BYTES + 16
        return self._blocks[block] + offset

    def order(self, edges: Sequence[int]) -> list[int]:
        """Return positions in ``edges`` in the order in which the edge set yields them."""
        if len(edges) <= INLINE_EDGES:
            return list(range(len(edges)))
        if self._scattered:
            return self._generator.sample(range(len(edges)), len(edges))
        table = _PointerSet()
        for position, edge in enumerate(edges):
            table.insert(self.address(edge), position)
        return table.items()


class _PointerSet:
    """``FlatSet<const Edge*>``: open addressing, quadratic probes, four fifths full at most."""

    def __init__(self) -> None:
        self._slots: list[tuple[int, int] | None] = [None] * _SLOTS_PER_BUCKET
        self._count = 0

    def insert(self, address: int, item: int) -> None:
        if self._count >= int(len(self._slots) * _FULL_RATIO):
            self._resize(self._count + 1)
        self._place(address, item)

    def items(self) -> list[int]:
        return [slot[1] for slot in self._slots if slot is not None]

    def _resize(self, count: int) -> None:
        old = self._slots
        size = _SLOTS_PER_BUCKET
        while count >= _FULL_RATIO * size:
            size *= 2
        self._slots, self._count = [None] * size, 0
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
        self._count += 1


class FanOut:
    """The order of every node's successors, for one draw of addresses.

    Attributes:
        data: For each node, its data edges as (node, output, input).
        control: For each node, the nodes that wait for it.
        roots: The roots in the order in which the source starts them.
    """

    def __init__(self, wiring: Wiring, arena: Arena) -> None:
        self.data = list(wiring.data_out)
        self.control = list(wiring.control_out)
        for node, (data_ids, control_ids) in enumerate(wiring.edge_ids):
            if len(data_ids) + len(control_ids) <= INLINE_EDGES:
                continue
            edges = sorted(
                [(edge, False, k) for k, edge in enumerate(data_ids)]
                + [(edge, True, k) for k, edge in enumerate(control_ids)]
            )
            order = [edges[position] for position in arena.order([edge for edge, _, _ in edges])]
            self.data[node] = [
                wiring.data_out[node][k] for _, is_control, k in order if not is_control
            ]
            self.control[node] = [
                wiring.control_out[node][k] for _, is_control, k in order if is_control
            ]
        numbers = [wiring.edge_count + position for position in range(len(wiring.roots))]
        self.roots = [wiring.roots[position] for position in arena.order(numbers)]
