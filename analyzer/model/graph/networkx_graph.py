"""The graph of ops and tensors as a networkx graph, and as JSON.

Nodes are ``("op", name)`` and ``("tensor", "name:output")``. networkx takes 0.25 s to import.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from analyzer.model.graph.graph_index import GraphIndex

if TYPE_CHECKING:
    import networkx as nx


def build_graph(structure: GraphIndex) -> nx.MultiDiGraph:
    """Return the networkx graph; edges have ``control`` and ``index``, or ``evidence`` in a trace's."""
    import networkx as nx

    graph = nx.MultiDiGraph()

    for op in structure.ops.values():
        node = ("op", op.name)
        graph.add_node(
            node,
            kind="op",
            type=op.type,
            layer=structure.layers[op.name],
            phase=str(structure.phases[op.name]),
            source=op.source,
            device=op.device,
        )

        for index, spec in enumerate(op.outputs):
            tensor = f"{op.name}:{index}"
            graph.add_node(
                ("tensor", tensor),
                kind="tensor",
                dtype=spec.dtype,
                shape=spec.shape_text,
                size_bytes=spec.size_bytes,
                gradient=tensor in structure.gradients,
            )

            graph.add_edge(node, ("tensor", tensor), index=index, control=False)

    unknown = {"dtype": "", "shape": "", "size_bytes": None, "gradient": False}

    def evidence(source: str, op: str) -> dict[str, str]:
        found = structure.evidence.get((source, op))
        return {} if found is None else {"evidence": found}

    for name, op in structure.ops.items():
        for index, tensor in enumerate(op.inputs):
            if ("tensor", tensor) not in graph:
                graph.add_node(("tensor", tensor), kind="tensor", **unknown)

            ends = ("tensor", tensor), ("op", name)
            graph.add_edge(*ends, index=index, control=False, **evidence(tensor, name))

        for control in op.control_inputs:
            if ("op", control) in graph:
                facts = evidence(control, name)
                graph.add_edge(("op", control), ("op", name), control=True, **facts)

    return graph


def node_name(node: tuple[str, str]) -> str:
    """Return a node's name as text."""
    return f"{node[0]}:{node[1]}"


def to_node_link(graph: nx.MultiDiGraph) -> str:
    """Return the graph as JSON that ``networkx.node_link_graph(..., edges="edges")`` reads."""
    import networkx as nx

    named = nx.relabel_nodes(graph, node_name)
    return json.dumps(nx.node_link_data(named, edges="edges"))
