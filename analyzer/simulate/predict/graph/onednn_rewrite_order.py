"""The order in which TensorFlow's oneDNN pass rewrites the nodes of a graph.

The pass walks the graph depth first from its source and rewrites the nodes in reverse postorder. Each
rewritten node is appended to the graph (``GetReversePostOrder`` in ``mkl_layout_pass.cc``), which
changes the order of edges. The source's edges lie in a hash set, so the two gradients of one product
may change places from process to process.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from analyzer.model.contract.graph_note import Op
from analyzer.model.graph.ops import PLACE
from analyzer.simulate.predict.graph.edge_set import order_edges

_PREFIX: Final = "_Mkl"


class RewriteOrder:
    """The graph before the oneDNN pass, ready to be walked.

    Args:
        ops: The graph as the pass left it, before constant folding.
        sources: For each node, the nodes that it waits for: of its data inputs, then of the others.
    """

    def __init__(self, ops: Sequence[Op], sources: Sequence[Sequence[int]]) -> None:
        self._names = [op.name for op in ops]
        self._rewritten = [node for node, op in enumerate(ops) if op.type.startswith(_PREFIX)]
        self._out: list[list[int]] = [[] for _ in ops]
        places = [op.attrs.get(PLACE, node) for node, op in enumerate(ops)]
        built = create_in_order(consumers_of(ops, sources), places) if self._rewritten else []
        back = _back_edge_nodes(ops)
        for is_back in (False, True):  # back edges are added last
            for node in built:
                for source in sources[node]:
                    if (source in back) is is_back:
                        self._out[source].append(node)
        self._roots = [node for node in built if not sources[node]]

    def draw(self, seed: int) -> list[str]:
        """Return the names of the rewritten nodes in one possible order of rewriting."""
        if not self._rewritten:
            return []
        rank = self._walk(Random(seed))
        last = len(self._out)
        return [
            self._names[n] for n in sorted(self._rewritten, key=lambda n: rank.get(n, last + n))
        ]

    def _walk(self, chances: Random) -> dict[int, int]:
        """Return each node's rank in the reverse postorder."""
        postorder: list[int] = []
        is_seen = [False] * len(self._out)
        stack = order_edges(self._roots, chances)
        while stack:
            node = stack.pop()
            if node < 0:
                postorder.append(~node)
            elif not is_seen[node]:
                is_seen[node] = True
                stack.append(~node)
                stack.extend(order_edges(self._out[node], chances))
        return {node: rank for rank, node in enumerate(reversed(postorder))}


def consumers_of(ops: Sequence[Op], sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the nodes that cannot be created before each node, once for each edge."""
    consumers: list[list[int]] = [[] for _ in ops]
    back = _back_edge_nodes(ops)
    for node, feeds in enumerate(sources):
        for source in feeds:
            if source not in back:
                consumers[source].append(node)
    return consumers


def create_in_order(consumers: Sequence[Sequence[int]], places: Sequence[Any]) -> list[int]:
    """Return the nodes in the order in which a graph is built from its listing.

    It takes the first node of the listing whose inputs exist (``GraphConstructor::Convert``). Nodes of
    a cycle outside a loop are left out.

    Args:
        consumers: For each node, the nodes that cannot be created before it.
        places: For each node, its place in the listing: anything that sorts.
    """
    count = len(consumers)
    by_rank = sorted(range(count), key=places.__getitem__)
    rank = [0] * count
    for position, node in enumerate(by_rank):
        rank[node] = position
    pending = [0] * count
    for waiting in consumers:
        for node in waiting:
            pending[node] += 1
    ready = [rank[node] for node in range(count) if not pending[node]]
    heapq.heapify(ready)
    built: list[int] = []
    while ready:
        node = by_rank[heapq.heappop(ready)]
        built.append(node)
        for consumer in consumers[node]:
            pending[consumer] -= 1
            if not pending[consumer]:
                heapq.heappush(ready, rank[consumer])
    return built


def _back_edge_nodes(ops: Sequence[Op]) -> set[int]:
    """Return the nodes whose edges close loops; TensorFlow adds them last (``AddBackEdges``)."""
    return {node for node, op in enumerate(ops) if op.type in ("NextIteration", "RefNextIteration")}
