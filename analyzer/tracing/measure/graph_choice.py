"""The graph of a trace: the capture's, else one derived from the trace, joined with other sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from analyzer.model.graph.graph_index import GraphIndex, build_graph_index
from analyzer.model.graph.phases import ScopeTable
from analyzer.model.recording.records import Step
from analyzer.tracing.derive.trace_graph import TraceGraph, derive_graph, name_tensors
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.parse.xplane import RawTrace
from analyzer.tracing.sources.graph_join import JoinedGraph, SourceGraph, join_graph


def find_graph(
    table: pd.DataFrame,
    raw: RawTrace,
    note: RunNote | None,
    steps: Sequence[Step],
    source: SourceGraph | None,
) -> tuple[pd.DataFrame, GraphIndex | None, JoinedGraph | None]:
    """Return the table with the tensors of the trace's graph, the graph, and its join with a source."""
    structure = index_note_graph(note)
    if structure is None:
        derived = derive_graph(table, raw, steps, with_eager=note is None)
        structure = index_trace_graph(derived, note)
        table = name_tensors(table, derived)
    if source is None:
        return table, structure, None
    join = join_graph(table, structure, source)
    return table, join.index, join


def index_note_graph(note: RunNote | None) -> GraphIndex | None:
    """Return the indexed graph of a note, None if it has none."""
    if note is None or not note.ops:
        return None
    names = {op.name for op in note.ops}
    return build_graph_index(
        [*note.ops, *(op for op in note.inside if op.name not in names)],
        traced=note.traced,
        gradients=note.gradients,
        nested_gradients=note.nested_gradients,
        scopes=ScopeTable(note.scopes),
    )


def index_trace_graph(graph: TraceGraph, note: RunNote | None) -> GraphIndex | None:
    """Return the indexed graph of a trace, with the scopes and gradients of a note if there is one."""
    if not graph.ops:
        return None
    index = build_graph_index(
        graph.ops,
        gradients=graph.gradients.union(note.gradients if note is not None else ()),
        scopes=ScopeTable(note.scopes) if note is not None and note.scopes else graph.scopes,
    )
    evidence = {edge: source.value for edge, source in graph.edges.items()}
    return replace(index, phases=graph.phases, evidence=evidence)


def describe_graph(structure: GraphIndex | None) -> tuple[str, ...]:
    """Return the sources of a graph that is derived from a trace; empty without one."""
    if structure is None or not structure.evidence:
        return ()
    return (
        f"The graph of {len(structure.ops):,} ops is derived from op names, kernels and frees: "
        "the op before a tensor's free counts as its last user.",
    )
