"""A trace's ops joined by name with the ops of a graph from another source.

Both come from the same code, but their names may differ: the executor puts the name of the call before
the ops of an inlined function, and a layer has another number if the program built other models before::

    trace   StatefulPartitionedCall/functional_3/conv2d_7/Relu
    graph   functional_1/conv2d_2/Relu
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pandas as pd

from analyzer.model.contract.graph_note import TensorSpec, split_tensor
from analyzer.model.graph.graph_index import GraphIndex, build_graph_index, find_inlined
from analyzer.model.graph.phases import ScopeTable
from analyzer.model.recording.records import Step
from analyzer.tracing.derive.trace_graph import TraceGraph, derive_graph, name_tensors
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.parse.xplane import RawTrace

TENSORBOARD: Final = "tensorboard"
"""Evidence of an edge from TensorBoard's event file, which has no shapes, layers or gradients."""
_NUMBER: Final = re.compile(r"_\d+(?=/|$)")
_REWRITES: Final = re.compile(r"-\d+-[A-Za-z]+-LayoutOptimizer$")
"""End of the name of a transposition that Grappler inserts; see ``generic_layout_optimizer``."""


@dataclass(frozen=True, slots=True)
class SourceGraph:
    """A graph from outside a trace."""

    name: str  # its name in messages, such as ``the graph of train.py:build_model``
    kind: str  # the evidence of its edges: ``target`` or ``tensorboard``
    index: GraphIndex
    batch_size: int | None = None  # its batch size; None if its shapes leave it open
    infers: bool | None = None  # whether it is of inference; None if unknown


@dataclass(frozen=True, slots=True)
class JoinedGraph:
    """A trace's graph with the ops of another source."""

    index: GraphIndex  # the graph, with the names of the trace
    source: SourceGraph
    # number of named tensors of the step's functions in the trace, and of those with an op of the
    # source
    tensors: int
    joined: int
    # the trace's batch size by the shapes of the joined tensors; None if unknown
    batch_size: int | None

    @property
    def says(self) -> str:
        """The match in words."""
        share = self.joined / self.tensors if self.tensors else 0.0
        return (
            f"{share:.1%} of the tensors of the traced steps ({self.joined:,} of {self.tensors:,}) "
            f"join {self.source.name} by op name."
        )


def join_graph(table: pd.DataFrame, derived: GraphIndex | None, source: SourceGraph) -> JoinedGraph:
    """Join a trace with a graph.

    Args:
        table: Allocations with the columns ``op``, ``step`` and ``shape``.
        derived: The graph from the trace's own names, whose other ops stay; None without one.
    """
    rows = table[(table["op"].astype(str) != "") & (table["born"] >= 0)]
    in_steps = rows[rows["step"].notna()]
    rows = in_steps if len(in_steps) else rows
    trace_ops = [str(op) for op in rows["op"].astype(object).unique()]
    found = match_names(
        [*trace_ops, *(derived.ops if derived is not None else ())], source.index.ops
    )
    index = _rename(source, found)
    if derived is not None and source.kind == TENSORBOARD:
        index = _with_facts(index, derived)
    if derived is not None:
        index = _add_others(index, derived)
    # Ops of other runs belong to the input pipeline or to Python, not to the graph.
    runs = rows.loc[rows["op"].astype(object).isin(found), "run_id"]
    runs = runs[runs != 0].unique()
    rows = rows[rows["run_id"].isin(runs)] if len(runs) else rows
    is_joined = rows["op"].astype(object).isin(found)
    return JoinedGraph(
        index=index,
        source=source,
        tensors=len(rows),
        joined=int(is_joined.sum()),
        batch_size=_find_batch_size(rows[is_joined], index, source.batch_size),
    )


def match_names(names: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Return the name among ``others`` of each op or layer of a trace, if it has one."""
    own = {name: name for name in others}
    found: dict[str, str] = {}
    open_names: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        op = find_inlined(name, own) or find_inlined(_REWRITES.sub("", name), own)
        if op is not None:
            found[name] = op
        else:
            open_names[_without_numbers(name)].append(name)
    taken = set(found.values())
    candidates: dict[str, list[str]] = defaultdict(list)
    for name in own:
        if name not in taken:
            candidates[_without_numbers(name)].append(name)
    # Layers are numbered in the order of their creation in both programs.
    for key, mine in open_names.items():
        theirs = find_inlined(key, candidates) or ()
        if len(mine) == len(theirs) and taken.isdisjoint(theirs):
            taken.update(theirs)
            found.update(zip(sorted(mine, key=_numbers), sorted(theirs, key=_numbers), strict=True))
    return found


def _without_numbers(name: str) -> str:
    return _NUMBER.sub("", name)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(number[1:]) for number in _NUMBER.findall(name))


def _rename(source: SourceGraph, found: Mapping[str, str]) -> GraphIndex:
    """Return the source's graph with the trace's names; an op that ran several times keeps the first."""
    index = source.index
    new: dict[str, str] = {}
    for name, op in found.items():
        new.setdefault(op, name)

    def tensor(name: str) -> str:
        op, number = split_tensor(name)
        return f"{new[op]}:{number}" if op in new else name

    ops = {
        new.get(name, name): replace(
            op,
            name=new.get(name, name),
            inputs=tuple(map(tensor, op.inputs)),
            control_inputs=tuple(new.get(one, one) for one in op.control_inputs),
        )
        for name, op in index.ops.items()
    }
    evidence = {(given, op.name): source.kind for op in ops.values() for given in op.inputs}
    return GraphIndex(
        ops=ops,
        consumers={
            tensor(name): [new.get(user, user) for user in users]
            for name, users in index.consumers.items()
        },
        gradients=frozenset(map(tensor, index.gradients)),
        phases={new.get(name, name): phase for name, phase in index.phases.items()},
        layers={new.get(name, name): layer for name, layer in index.layers.items()},
        evidence=evidence,
    )


def _with_facts(index: GraphIndex, derived: GraphIndex) -> GraphIndex:
    """Return a graph of names and edges with the facts and the edges of the derived one."""
    counts: Counter[str] = Counter()
    for given in index.consumers:
        name, number = split_tensor(given)
        counts[name] = max(counts[name], number + 1)
    ops = {}
    consumers: dict[str, list[str]] = defaultdict(list)
    for name, op in index.ops.items():
        known = derived.ops.get(name)
        unknown = (TensorSpec("", None),) * counts[name]
        known_outputs = () if known is None else known.outputs
        more = [] if known is None else [one for one in known.inputs if one not in op.inputs]
        ops[name] = replace(
            op,
            inputs=(*op.inputs, *more),
            outputs=(*known_outputs, *unknown[len(known_outputs) :]),
        )
        for given in ops[name].inputs:
            consumers[given].append(name)
    return GraphIndex(
        ops=ops,
        consumers=consumers,
        gradients=derived.gradients,
        phases={**index.phases, **derived.phases},
        layers={**index.layers, **derived.layers},
        evidence={**derived.evidence, **index.evidence},
    )


def _add_others(index: GraphIndex, derived: GraphIndex) -> GraphIndex:
    """Return a graph with the ops of the derived one that it lacks, and their edges."""
    others = {name: op for name, op in derived.ops.items() if name not in index.ops}
    consumers = {name: list(users) for name, users in index.consumers.items()}
    for op in others.values():
        for given in op.inputs:
            consumers.setdefault(given, []).append(op.name)
    return GraphIndex(
        ops={**index.ops, **others},
        consumers=consumers,
        gradients=index.gradients | {t for t in derived.gradients if split_tensor(t)[0] in others},
        phases={**{name: derived.phases[name] for name in others}, **index.phases},
        layers={**{name: derived.layers[name] for name in others}, **index.layers},
        evidence={
            **{edge: known for edge, known in derived.evidence.items() if edge[1] in others},
            **index.evidence,
        },
    )


def _find_batch_size(rows: pd.DataFrame, index: GraphIndex, given: int | None) -> int | None:
    """Return the batch size with which most tensors have the shape of the trace."""
    votes: Counter[int] = Counter()
    for op, text in zip(rows["op"].astype(str), rows["shape"].astype(str), strict=True):
        axes = text.strip("[]").split(",")
        if not all(axis.isdecimal() for axis in axes):
            continue
        shape = tuple(map(int, axes))
        for spec in index.ops[op].outputs:
            size = _scale_batch(spec, shape, given)
            if size:
                votes[size] += 1
                break
    return votes.most_common(1)[0][0] if votes else None


def _scale_batch(spec: TensorSpec, shape: tuple[int, ...], given: int | None) -> int | None:
    """Return the batch size that turns a tensor of the graph into one of the trace; None for none."""
    if not spec.shape or len(spec.shape) != len(shape) or spec.shape[1:] != shape[1:]:
        return None
    first = spec.shape[0]
    if given is None or first < 0:
        return shape[0] if first < 0 else None
    return shape[0] * given // first if first and shape[0] * given % first == 0 else None


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
