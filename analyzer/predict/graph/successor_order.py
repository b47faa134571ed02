"""In which order a node's successors are looked at: the one freedom the executor has.

TensorFlow keeps up to eight out-edges of a node in the order they were made, and more than eight in a
hash set of pointers, whose order follows from the addresses that the graph's arena happened to get
(:mod:`analyzer.predict.graph.edge_addresses`). Addresses differ from process to process and stay
for all steps of one,
which is why five runs of one step may peak differently and the steps of one run do not. The most
important such set is the graph's source, which starts every root. A *draw* of the schedule is
therefore a draw of addresses.

The executor's graph is a copy of the function's (``Graph::Copy``): all nodes first, then all edges by
number; an op's set is made large enough at once, the source's grows.
"""

from __future__ import annotations

from typing import Final

from analyzer.predict.graph.edge_addresses import (
    EDGE_BYTES,
    INLINE_EDGES,
    NODE_BYTES,
    Arena,
    Layout,
)
from analyzer.predict.graph.edges import Wiring

_TO_SINK: Final = 2
"""Edges from source to sink that come before all others: one more with each copy of the graph."""


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
        layout = Layout()
        layout.take(NODE_BYTES, 2)
        own = layout.take(EDGE_BYTES)
        layout.take(NODE_BYTES, len(wiring.ops))
        for node, (data_ids, control_ids) in enumerate(wiring.edge_ids):
            if len(data_ids) + len(control_ids) <= INLINE_EDGES:
                continue
            edges = sorted(
                [(edge, False, k) for k, edge in enumerate(data_ids)]
                + [(edge, True, k) for k, edge in enumerate(control_ids)]
            )
            offsets = [layout.later(EDGE_BYTES, _TO_SINK + edge) for edge, _, _ in edges]
            order = [edges[position] for position in arena.order(offsets, grows=False)]
            self.data[node] = [
                wiring.data_out[node][k] for _, is_control, k in order if not is_control
            ]
            self.control[node] = [
                wiring.control_out[node][k] for _, is_control, k in order if is_control
            ]
        to_sink = [own, *(layout.later(EDGE_BYTES, number) for number in range(_TO_SINK))]
        to_roots = [layout.later(EDGE_BYTES, _TO_SINK + edge) for edge in wiring.root_edges]
        skipped = len(to_sink)
        self.roots = [
            wiring.roots[position - skipped]
            for position in arena.order([*to_sink, *to_roots])
            if position >= skipped
        ]
