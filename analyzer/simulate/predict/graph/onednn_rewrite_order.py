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

from analyzer.model.contract.graph_note import Op
from analyzer.model.graph.ops import MERGED_PLACE, PLACE
from analyzer.simulate.predict.graph.edge_addresses import (
    EDGE_BYTES,
    INLINE_EDGES,
    NODE_BYTES,
    SELDOM_FOLLOWS,
    Arena,
    Layout,
)

_PREFIX: Final = "_Mkl"
_GRADIENT: Final = 2
"""Which input of a filter's gradient is the output's."""
_MERGED: Final = -1
"""Stands for the merged node while its edge is made."""
_SINK: Final = -2
"""Stands for the graph's sink."""


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
        self._to_sink = 0
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
        """Note each node's out-edges in the order of their making, and where they lie.

        What the pass merged was two nodes when the graph was made: a bias' gradient has its place too.
        """
        before = _Unmerged(ops, sources)
        built = creation_order(before.consumers(ops), before.places)
        out = self._out
        closing = closing_nodes(ops)
        layout = Layout()
        layout.take(NODE_BYTES, 2)
        self._to_sink = layout.take(EDGE_BYTES)
        for node in built:
            layout.take(NODE_BYTES)
            for source in before.sources[node]:
                if source not in closing:
                    out[before.merged_into(source)].append((layout.take(EDGE_BYTES), node))
        for node in built:
            for source in before.sources[node]:
                if source in closing:
                    out[source].append((layout.take(EDGE_BYTES), node))
        fed = {source for feeds in before.sources for source in feeds}
        for node in built:
            if not before.sources[node]:
                self._roots.append((layout.take(EDGE_BYTES), node))
            if node not in fed:
                layout.take(EDGE_BYTES)
        filters = set(before.filters)
        for node in built:
            if node in filters:
                self._merge(node, before.filters.index(node) + len(ops), sources[node][_GRADIENT])

    def _merge(self, node: int, bias: int, gradient: int) -> None:
        """Reorder the edges of the gradient that a filter's and a bias' gradients came from.

        The merged node's edge is added, then those of the two are erased, the bias' first; in each gap
        goes the last edge (``EdgeSet::erase``, ``MergeConv2DBackpropFilterWithBiasAddGrad``). The other
        inputs lose one edge only, whose gap the new one fills.

        Args:
            node: The merged node.
            bias: The gradient of the bias, as it was before.
            gradient: Where both came from.
        """
        edges = self._out[gradient]
        if len(edges) + 1 > INLINE_EDGES:
            self._out[gradient] = [edge for edge in edges if edge[1] != bias]
            return
        offset = next(offset for offset, reader in edges if reader == node)
        slots = [*edges, (offset, _MERGED)]
        for gone in (bias, node):
            gap = next(number for number, edge in enumerate(slots) if edge[1] == gone)
            last = slots.pop()
            if gap < len(slots):
                slots[gap] = last
        slots = [(at, node if reader == _MERGED else reader) for at, reader in slots]
        self._out[gradient] = slots

    def _walk(self, arena: Arena) -> dict[int, int]:
        """Return each node's place in the reverse postorder."""
        out = self._out
        postorder: list[int] = []
        seen = [False] * len(out)
        # The edge from source to sink is one of the source's, and takes a place among the roots'.
        stack = [
            node for node in _nodes([(self._to_sink, _SINK), *self._roots], arena) if node != _SINK
        ]
        while stack:
            node = stack.pop()
            if node < 0:
                postorder.append(~node)
            elif not seen[node]:
                seen[node] = True
                stack.append(~node)
                stack.extend(_nodes(out[node], arena))
        return {node: place for place, node in enumerate(reversed(postorder))}


class _Unmerged:
    """The graph before filters' and bias' gradients were merged: the latter are nodes after all others.

    Attributes:
        filters: The merged nodes; the bias' gradient of the first is the first node after the others.
        sources: For each node, the nodes that it waits for.
        places: For each node, its place in the listing.
    """

    def __init__(self, ops: Sequence[Op], sources: Sequence[Sequence[int]]) -> None:
        self.filters = [node for node, op in enumerate(ops) if _is_merged(op)]
        self._count = len(ops)
        bias_of = {f"{ops[node].name}:1": n for n, node in enumerate(self.filters, len(ops))}
        self.sources: list[Sequence[int]] = []
        for op, feeds in zip(ops, sources, strict=True):
            data = (
                [bias_of.get(t, feed) for t, feed in zip(op.inputs, feeds, strict=False)]
                if bias_of
                else []
            )
            self.sources.append([*data, *feeds[len(data) :]])
        self.sources += [[sources[node][_GRADIENT]] for node in self.filters]
        self.places: list[Any] = [op.attrs.get(PLACE, node) for node, op in enumerate(ops)]
        # A note that does not tell: after the filter's, as gradients are made.
        self.places += [
            ops[node].attrs.get(MERGED_PLACE, self.places[node] + 0.5) for node in self.filters
        ]

    def consumers(self, ops: Sequence[Op]) -> list[list[int]]:
        """Return, for each node, the nodes that cannot be made before it."""
        biases = [Op(f"{ops[node].name}/bias", "BiasAddGrad") for node in self.filters]
        return consumers_of([*ops, *biases], self.sources)

    def merged_into(self, node: int) -> int:
        """Return the node that a node is part of after the merging."""
        return node if node < self._count else self.filters[node - self._count]


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
        consumers: For each node, those that cannot be made before it (``consumers_of``).
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
