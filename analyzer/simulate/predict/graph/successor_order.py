"""In which order a node's successors are looked at: the one freedom the executor has.

TensorFlow keeps up to eight out-edges of a node in the order they were made, and more than eight in a
hash set of pointers, whose order follows from the addresses that the graph's arena happened to get
(``edge_addresses``). Addresses differ from process to process and stay
for all steps of one,
which is why five runs of one step may peak differently and the steps of one run do not. The most
important such set is the graph's source, which starts every root. A *draw* of the schedule is
therefore a draw of addresses.

The executor's graph is a copy of the function's (``Graph::Copy``): all nodes first, then all edges by
number; an op's set is made large enough at once, the source's grows.
"""

from __future__ import annotations

from analyzer.simulate.predict.graph.edge_addresses import Arena
from analyzer.simulate.predict.graph.edges import Wiring


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
        sets = wiring.edge_sets
        for node, found in sets.of_nodes:
            order = arena.order(found.offsets, grows=False)
            edges = [found.edges[position] for position in order]
            data, control = wiring.data_out[node], wiring.control_out[node]
            self.data[node] = [data[k] for is_control, k in edges if not is_control]
            self.control[node] = [control[k] for is_control, k in edges if is_control]
        skipped = sets.to_sink
        self.roots = [
            wiring.roots[position - skipped]
            for position in arena.order(sets.of_source)
            if position >= skipped
        ]
