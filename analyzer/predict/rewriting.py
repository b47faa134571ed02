"""The order in which oneDNN's pass rewrites the nodes of a graph.

The pass walks the graph depth first from its source and rewrites the nodes in reverse postorder; each
rewritten node is a new one, at the end of the graph (``mkl_layout_pass.cc``, ``GetReversePostOrder``).
The source's edges lie in a hash set, so that two gradients of one product may change places from
process to process.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from analyzer.graph.ops import PLACE, Op
from analyzer.predict.arena import EDGE_BYTES, INLINE_EDGES, NODE_BYTES, Arena

_PREFIX: Final = "_Mkl"
Edges = Sequence[Sequence[tuple[int, int]]]


def rewritten_places(
    ops: Sequence[Op], inputs: Edges, control: Sequence[Sequence[int]], seed: int
) -> dict[int, int]:
    """Return new places for the nodes that oneDNN's pass made.

    Args:
        ops: The graph that the executor runs.
        inputs: For each node, the (node, output) that feeds each data input.
        control: For each node, the nodes that it waits for.
        seed: Which addresses the graph's edges have.
    """
    made = [node for node, op in enumerate(ops) if op.type.startswith(_PREFIX)]
    if not made:
        return {}
    places = [int(op.attrs.get(PLACE, node)) for node, op in enumerate(ops)]
    sources = [
        [*(source for source, _ in data), *waits]
        for data, waits in zip(inputs, control, strict=True)
    ]
    walk = _walk(ops, sources, creation_order(ops, sources, places), Arena(seed))
    ordered = sorted(made, key=lambda node: walk.get(node, len(ops) + node))
    return dict(zip(ordered, made, strict=True))


def creation_order(
    ops: Sequence[Op], sources: Sequence[Sequence[int]], places: Sequence[object]
) -> list[int]:
    """Return the nodes in the order in which a graph is built from its listing.

    Always the first node of the listing whose inputs exist (``GraphConstructor::Convert``); nodes of
    a cycle outside a loop are left out.
    """
    rank = sorted(range(len(ops)), key=places.__getitem__)  # type: ignore[arg-type]
    place = [0] * len(ops)
    for position, node in enumerate(rank):
        place[node] = position
    pending = [0] * len(ops)
    consumers: list[list[int]] = [[] for _ in ops]
    for node, feeds in enumerate(sources):
        for source in feeds:
            if ops[source].type in ("NextIteration", "RefNextIteration"):
                continue  # the one edge that closes a loop; added when the loop is complete
            pending[node] += 1
            consumers[source].append(node)
    ready = [place[node] for node in range(len(ops)) if not pending[node]]
    heapq.heapify(ready)
    built: list[int] = []
    while ready:
        node = rank[heapq.heappop(ready)]
        built.append(node)
        for consumer in consumers[node]:
            pending[consumer] -= 1
            if not pending[consumer]:
                heapq.heappush(ready, place[consumer])
    return built


def _walk(
    ops: Sequence[Op], sources: Sequence[Sequence[int]], built: Sequence[int], arena: Arena
) -> dict[int, int]:
    """Return each node's place in the reverse postorder of the graph before the rewriting."""
    offset = 2 * NODE_BYTES + EDGE_BYTES
    out: list[list[tuple[int, int]]] = [[] for _ in ops]
    for node in built:
        offset += NODE_BYTES
        for source in sources[node]:
            out[source].append((offset, node))
            offset += EDGE_BYTES
    roots: list[tuple[int, int]] = []
    for node in built:
        if not sources[node]:
            roots.append((offset, node))
            offset += EDGE_BYTES
        if not out[node]:
            offset += EDGE_BYTES
    late = {node for node in built if _is_merged(ops[node])}
    for edges in out:
        if len(edges) > 1 and any(node in late for _, node in edges):
            # Two nodes were merged to a new one, whose edges come last.
            edges.sort(key=lambda edge: edge[1] in late)
    postorder: list[int] = []
    seen = [False] * len(ops)
    stack = [(node, False) for node in _nodes(roots, arena)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            postorder.append(node)
        elif not seen[node]:
            seen[node] = True
            stack.append((node, True))
            stack.extend((consumer, False) for consumer in _nodes(out[node], arena))
    return {node: place for place, node in enumerate(reversed(postorder))}


def _nodes(edges: Sequence[tuple[int, int]], arena: Arena) -> list[int]:
    if len(edges) <= INLINE_EDGES:
        return [node for _, node in edges]
    return [edges[k][1] for k in arena.order([offset for offset, _ in edges])]


def _is_merged(op: Op) -> bool:
    return op.type.endswith("WithBias") and "Backprop" in op.type
