"""The graph of ops and tensors as a networkx graph.

Two kinds of node: ``("op", name)`` and ``("tensor", "name:output")``. An op points to the tensors it
produces, a tensor to the ops that consume it; a control edge goes from op to op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analyzer.model.graph.graph_index import Structure

if TYPE_CHECKING:
    import networkx as nx


def build_graph(structure: Structure) -> nx.MultiDiGraph:
    """Return the graph.

    Op nodes carry ``kind``, ``type``, ``layer``, ``phase``, ``source`` and ``device``; tensor nodes
    ``kind``, ``dtype``, ``shape`` (text, empty where unknown), ``size_bytes`` (None where unknown)
    and ``gradient``. Edges carry ``control``, and ``index`` for the op's input.
    """
    import networkx as nx  # a quarter of a second, and most readings of a trace need no graph

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
            graph.add_edge(("tensor", tensor), ("op", op.name), index=index, control=False)
        for control in op.control_inputs:
            if ("op", control) in graph:
                graph.add_edge(("op", control), ("op", op.name), control=True)
    return graph
