"""The graph for other people's tools: GraphML and JSON node-link."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import networkx as nx

# What XML 1.0 cannot hold at all; op names in a trace are untrusted.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_graph(graph: nx.MultiDiGraph, path: Path, *, graphml: bool) -> None:
    """Write the graph: ops are named ``op:NAME`` and tensors ``tensor:NAME:OUTPUT``.

    Args:
        graph: Ops and tensors.
        path: The file, written over where it is there.
        graphml: Whether it is GraphML; else node-link JSON.
    """
    path.write_text(to_graphml(graph) if graphml else to_node_link(graph), encoding="utf-8")


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
    """Return the graph as GraphML, which has no missing values: what is unknown is left out."""
    plain = nx.MultiDiGraph()
    plain.add_nodes_from(
        (_xml(node_name(node)), _known(data)) for node, data in graph.nodes(data=True)
    )
    plain.add_edges_from(
        (_xml(node_name(source)), _xml(node_name(target)), _known(data))
        for source, target, data in graph.edges(data=True)
    )
    return "\n".join(nx.generate_graphml(plain, prettyprint=False))


def _known(data: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _xml(value) if isinstance(value, str) else value
        for key, value in data.items()
        if value is not None and value != ""
    }


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", text)
