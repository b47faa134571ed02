"""The order in which oneDNN's pass rewrites the nodes of a graph.

The pass walks the graph depth first from its source and rewrites the nodes in reverse postorder; each
rewritten node is a new one, at the end of the graph (``mkl_layout_pass.cc``, ``GetReversePostOrder``).
The source's edges lie in a hash set, so that two gradients of one product may change places from
process to process.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, Final

from analyzer.contract.graph_note import Op
from analyzer.graph.ops import MERGED_PLACE, PLACE
from analyzer.predict.graph.edge_addresses import (
    EDGE_BYTES,
    INLINE_EDGES,
    NODE_BYTES,
    SELDOM_FOLLOWS,
    Arena,
    Layout,
)

_PREFIX: Final = "_Mkl"
_GRADIENT: Final = 2
_BIAS_EDGE: Final = (-1, -1)
_FILTER_EDGE: Final = (-2, -2)
"""Which input of a filter's gradient is the output's, and the edges to the two gradients from there
before they are merged."""


class Rewriting:
    """The graph before oneDNN's pass, ready to be walked.

    Args:
        ops: The graph as the pass left it: constants are computed after it.
        sources: For each node, the nodes that it waits for: of its data inputs, then of the others.
    """

    def __init__(self, ops: Sequence[Op], sources: Sequence[Sequence[int]]) -> None:
        self._names = [op.name for op in ops]
        self._made = [node for node, op in enumerate(ops) if op.type.startswith(_PREFIX)]
        self._out: list[list[tuple[int, int]]] = [[] for _ in ops]
        self._roots: list[tuple[int, int]] = []
        if self._made:
            self._lay_out(ops, sources)

    def order(self, seed: int) -> list[str]:
        """Return the names of the nodes that the pass made in the order in which it made them.

        Args:
            seed: Which addresses the graph's edges have.
        """
        if not self._made:
            return []
        walk = self._walk(Arena(seed, SELDOM_FOLLOWS))
        made = sorted(self._made, key=lambda node: walk.get(node, len(self._out) + node))
        return [self._names[node] for node in made]

    def _lay_out(self, ops: Sequence[Op], sources: Sequence[Sequence[int]]) -> None:
        """Note each node's out-edges in the order of their making, and where they lie."""
        places = [int(op.attrs.get(PLACE, node)) for node, op in enumerate(ops)]
        built = creation_order(consumers_of(ops, sources), places)
        out = self._out
        closing = closing_nodes(ops)
        layout = Layout()
        layout.take(NODE_BYTES, 2)
        layout.take(EDGE_BYTES)
        for node in built:
            layout.take(NODE_BYTES)
            for source in sources[node]:
                if source not in closing:
                    out[source].append((layout.take(EDGE_BYTES), node))
        for node in built:
            for source in sources[node]:
                if source in closing:
                    out[source].append((layout.take(EDGE_BYTES), node))
        for node in built:
            if not sources[node]:
                self._roots.append((layout.take(EDGE_BYTES), node))
            if not out[node]:
                layout.take(EDGE_BYTES)
        for node in built:
            if _is_merged(ops[node]):
                self._merge(node, sources[node][_GRADIENT], ops[node], places)

    def _merge(self, node: int, gradient: int, op: Op, places: Sequence[int]) -> None:
        """Reorder the edges of the gradient that a filter's and a bias' gradients came from.

        The merged node's edge is added, then those of the two are erased, the bias' first; in each gap
        goes the last edge (``EdgeSet::erase``, ``MergeConv2DBackpropFilterWithBiasAddGrad``). The other
        inputs lose one edge only, whose gap the new one fills.
        """
        edges = self._out[gradient]
        if len(edges) + 2 > INLINE_EDGES:
            return
        own = next(edge for edge in edges if edge[1] == node)
        bias = op.attrs.get(MERGED_PLACE)
        # A note that does not tell: after the filter's, as gradients are made.
        bias = places[node] if bias is None else bias
        before = sum(places[n] <= bias for _, n in edges)
        slots = [*edges[:before], _BIAS_EDGE, *edges[before:]]
        slots[slots.index(own)] = _FILTER_EDGE
        slots.append(own)
        for gone in (_BIAS_EDGE, _FILTER_EDGE):
            gap, last = slots.index(gone), slots.pop()
            if gap < len(slots):
                slots[gap] = last
        self._out[gradient] = slots

    def _walk(self, arena: Arena) -> dict[int, int]:
        """Return each node's place in the reverse postorder."""
        out = self._out
        postorder: list[int] = []
        seen = [False] * len(out)
        stack = _nodes(self._roots, arena)
        while stack:
            node = stack.pop()
            if node < 0:
                postorder.append(~node)
            elif not seen[node]:
                seen[node] = True
                stack.append(~node)
                stack.extend(_nodes(out[node], arena))
        return {node: place for place, node in enumerate(reversed(postorder))}


def consumers_of(ops: Sequence[Op], sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return, for each node, the nodes that cannot be made before it; once for each edge."""
    consumers: list[list[int]] = [[] for _ in ops]
    closing = closing_nodes(ops)
    for node, feeds in enumerate(sources):
        for source in feeds:
            if source not in closing:
                consumers[source].append(node)
    return consumers


def closing_nodes(ops: Sequence[Op]) -> set[int]:
    """Return the nodes whose edges close loops, and are added after all others (``AddBackEdges``)."""
    return {node for node, op in enumerate(ops) if op.type in ("NextIteration", "RefNextIteration")}


def creation_order(consumers: Sequence[Sequence[int]], places: Sequence[Any]) -> list[int]:
    """Return the nodes in the order in which a graph is built from its listing.

    Always the first node of the listing whose inputs exist (``GraphConstructor::Convert``); nodes of
    a cycle outside a loop are left out.

    Args:
        consumers: For each node, those that cannot be made before it (:func:`consumers_of`).
        places: For each node, its place in the listing: anything that sorts.
    """
    count = len(consumers)
    rank = sorted(range(count), key=places.__getitem__)
    place = [0] * count
    for position, node in enumerate(rank):
        place[node] = position
    pending = [0] * count
    for waiting in consumers:
        for node in waiting:
            pending[node] += 1
    ready = [place[node] for node in range(count) if not pending[node]]
    heapq.heapify(ready)
    pop, push = heapq.heappop, heapq.heappush
    built: list[int] = []
    while ready:
        node = rank[pop(ready)]
        built.append(node)
        for consumer in consumers[node]:
            pending[consumer] -= 1
            if not pending[consumer]:
                push(ready, place[consumer])
    return built


def _nodes(edges: Sequence[tuple[int, int]], arena: Arena) -> list[int]:
    if len(edges) <= INLINE_EDGES:
        return [node for _, node in edges]
    return [edges[k][1] for k in arena.order([offset for offset, _ in edges])]


def _is_merged(op: Op) -> bool:
    return op.type.endswith("WithBias") and "Backprop" in op.type
