"""The graph of ops and tensors as a networkx graph, as GraphML and as JSON.

Nodes are ``("op", name)`` and ``("tensor", "name:output")``. Edges lead from an op to its outputs, to
their consumers, and from op to op for a control dependency. networkx takes 0.25 s to import.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from analyzer.model.graph.graph_index import GraphIndex

if TYPE_CHECKING:
    import networkx as nx


def build_graph(structure: GraphIndex) -> nx.MultiDiGraph:
    """Return the networkx graph.

    Edges have ``control``, and ``index`` for an op's input; in a graph derived from a trace,
    ``evidence`` (``free``, ``copy``, ``name``).
    """
    import networkx as nx

    graph: nx.MultiDiGraph = nx.MultiDiGraph()
    for op in structure.ops.values():
        graph.add_node(
            ("op", op.name),
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
            graph.add_edge(("op", op.name), ("tensor", tensor), index=index, control=False)
    for op in structure.ops.values():
        for index, tensor in enumerate(op.inputs):
            if ("tensor", tensor) not in graph:
                graph.add_node(
                    ("tensor", tensor),
                    kind="tensor",
                    dtype="",
                    shape="",
                    size_bytes=None,
                    gradient=False,
                )
            known = _evidence(structure, tensor, op.name)
            graph.add_edge(("tensor", tensor), ("op", op.name), index=index, control=False, **known)
        for control in op.control_inputs:
            if ("op", control) in graph:
                known = _evidence(structure, control, op.name)
                graph.add_edge(("op", control), ("op", op.name), control=True, **known)
    return graph


def _evidence(structure: GraphIndex, source: str, op: str) -> dict[str, str]:
    found = structure.evidence.get((source, op))
    return {} if found is None else {"evidence": str(found)}


# Characters that XML 1.0 does not allow; op names in a trace are untrusted.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def node_name(node: tuple[str, str]) -> str:
    """Return a node's name as text."""
    return f"{node[0]}:{node[1]}"


def to_node_link(graph: nx.MultiDiGraph) -> str:
    """Return the graph as JSON that ``networkx.node_link_graph(..., edges="edges")`` reads."""
    content: dict[str, Any] = {
        "directed": True,
        "multigraph": True,
        "graph": {},
        "nodes": [{"id": node_name(node), **data} for node, data in graph.nodes(data=True)],
        "edges": [
            {"source": node_name(a), "target": node_name(b), "key": key, **data}
            for a, b, key, data in graph.edges(keys=True, data=True)
        ],
    }
    return json.dumps(content)


def to_graphml(graph: nx.MultiDiGraph) -> str:
    """Return the graph as GraphML, which has no missing values: unknown values are omitted."""
    import networkx as nx

    plain = nx.MultiDiGraph()
    plain.add_nodes_from(
        (_xml(node_name(node)), _drop_unknown(data)) for node, data in graph.nodes(data=True)
    )
    plain.add_edges_from(
        (_xml(node_name(source)), _xml(node_name(target)), _drop_unknown(data))
        for source, target, data in graph.edges(data=True)
    )
    return "\n".join(nx.generate_graphml(plain, prettyprint=False))


def _drop_unknown(data: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _xml(value) if isinstance(value, str) else value
        for key, value in data.items()
        if value is not None and value != ""
    }


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", text)
