"""A trace's ops joined by name with a graph of a target, or one that TensorBoard wrote.

Both come from the same code, but their names may differ: the executor puts the name of the call before
the ops of an inlined function, and a layer has another number if the program built other models before::

    trace   StatefulPartitionedCall/functional_3/conv2d_7/Relu
    graph   functional_1/conv2d_2/Relu
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from analyzer.model.contract.graph_note import Op, TensorSpec, split_tensor
from analyzer.model.graph.graph_index import (
    GraphIndex,
    build_graph_index,
    find_consumers,
    find_inlined,
)
from analyzer.model.graph.phases import ScopeTable
from analyzer.model.recording.records import Step
from analyzer.tracing.derive.op_names import find_optimizer, read_shape
from analyzer.tracing.derive.trace_graph import derive_graph
from analyzer.tracing.parse.protobuf import (
    TEXTS,
    decode_text,
    message_class,
    read_schema,
)
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.parse.xplane import RawTrace

TENSORBOARD: Final = "tensorboard"
"""Evidence of an edge from TensorBoard's event file, which has no shapes, layers or gradients."""
_NUMBER: Final = re.compile(r"_\d+(?=/|$)")
_CALLS: Final = re.compile(r"^((Stateful)?PartitionedCall/)+")  # of inlined functions
_REWRITES: Final = re.compile(r"-\d+-[A-Za-z]+-LayoutOptimizer$")
"""End of the name of a transposition that Grappler inserts; see ``generic_layout_optimizer``."""


@dataclass(frozen=True, slots=True)
class SourceGraph:
    """A graph from outside a trace."""

    name: str  # its name in messages, such as ``the graph of train.py:build_model``
    kind: str  # the evidence of its edges: ``target`` or ``tensorboard``
    index: GraphIndex
    batch_size: int | None = None  # its batch size; None if its shapes leave it open


@dataclass(frozen=True, slots=True)
class JoinedGraph:
    """A trace's graph with the ops of another source; the ops have the trace's names."""

    index: GraphIndex
    source: SourceGraph
    tensors: int  # number of named tensors of the step's functions in the trace
    joined: int  # number of those with an op of the source
    batch_size: (
        int | None
    )  # the trace's, by the shapes of the joined tensors; None if unknown

    @property
    def says(self) -> str:
        """The match in words."""
        share = self.joined / self.tensors if self.tensors else 0.0
        return (
            f"{share:.1%} of the tensors of the traced steps ({self.joined:,} of {self.tensors:,}) "
            f"join {self.source.name} by op name."
        )


def join_graph(
    table: pd.DataFrame, derived: GraphIndex | None, source: SourceGraph
) -> JoinedGraph:
    """Join a trace with a graph; other ops of the graph ``derived`` from its own names stay."""
    rows = table[(table["op"].astype(str) != "") & (table["born"] >= 0)]
    in_steps = rows[rows["step"].notna()]
    rows = in_steps if len(in_steps) else rows
    names = [str(op) for op in rows["op"].astype(object).unique()]
    found = match_names(
        [*names, *(derived.ops if derived is not None else ())], source.index.ops
    )
    index = _rename(source, found)
    if derived is not None:
        index = _merge(index, derived, has_facts=source.kind != TENSORBOARD)
    # Ops of other runs belong to the input pipeline or to Python, not to the graph.
    runs = rows.loc[rows["op"].astype(object).isin(found), "run_id"]
    runs = runs[runs != 0].unique()
    rows = rows[rows["run_id"].isin(runs)] if len(runs) else rows
    joined = rows[rows["op"].astype(object).isin(found)]
    batch_size = _find_batch_size(joined, index, source.batch_size)

    return JoinedGraph(index, source, len(rows), len(joined), batch_size)


def match_names(names: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Return the name among ``others`` of each op or layer of a trace, if it has one.

    Names that differ otherwise are matched without their numbers, then without the model's name.
    """
    own = {name: name for name in others}
    names = list(dict.fromkeys(names))
    inlined = {
        name: find_inlined(name, own) or find_inlined(_REWRITES.sub("", name), own)
        for name in names
    }
    found = {name: op for name, op in inlined.items() if op is not None}
    taken = set(found.values())

    def group(
        ones: Iterable[str], skip: Container[str], root: bool
    ) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = defaultdict(list)
        for name in ones:
            if name not in skip:
                key = _CALLS.sub("", _NUMBER.sub("", name))
                groups[_drop_root(key) if root else key].append(name)

        return groups

    # Layers are numbered in the order of their creation in both programs.
    for mine_has_root, theirs_has_root in ((False, False), (False, True), (True, True)):
        candidates = group(own, taken, theirs_has_root)
        for key, mine in group(names, found, mine_has_root).items():
            exact = (
                candidates.get(key)
                if theirs_has_root
                else find_inlined(key, candidates)
            )
            theirs = (exact if key else None) or []

            if len(mine) == len(theirs) and taken.isdisjoint(theirs):
                taken.update(theirs)
                pairs = zip(
                    sorted(mine, key=_numbers),
                    sorted(theirs, key=_numbers),
                    strict=True,
                )
                found.update(pairs)

    return found


def _drop_root(name: str) -> str:
    """Return an op or a layer without the model's name, its first scope; empty if it has none."""
    tape = "gradient_tape/" if name.startswith("gradient_tape/") else ""
    _, _, rest = name.removeprefix(tape).partition("/")
    return tape + rest if rest and not find_optimizer(name) else ""


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(number[1:]) for number in _NUMBER.findall(name))


def _rename(source: SourceGraph, found: Mapping[str, str]) -> GraphIndex:
    """Return the source's graph with the trace's names; an op that ran several times keeps the first."""
    index = source.index
    new: dict[str, str] = {}
    for name, op in found.items():
        new.setdefault(op, name)

    def rename(tensor: str) -> str:
        op, number = split_tensor(tensor)
        return f"{new[op]}:{number}" if op in new else tensor

    ops = [
        replace(
            op,
            name=new.get(name, name),
            inputs=tuple(map(rename, op.inputs)),
            control_inputs=tuple(new.get(one, one) for one in op.control_inputs),
        )
        for name, op in index.ops.items()
    ]

    return GraphIndex(
        ops={op.name: op for op in ops},
        consumers=find_consumers(ops),
        gradients=frozenset(map(rename, index.gradients)),
        phases={new.get(name, name): phase for name, phase in index.phases.items()},
        layers={new.get(name, name): layer for name, layer in index.layers.items()},
        evidence={(given, op.name): source.kind for op in ops for given in op.inputs},
    )


def _merge(index: GraphIndex, derived: GraphIndex, *, has_facts: bool) -> GraphIndex:
    """Return a graph with the ops of the derived one that it lacks, and their edges.

    If the graph has only names and edges, no shapes, layers and gradients (``has_facts``), the derived
    graph's facts and further edges of its ops are added.
    """
    ops = dict(index.ops)
    for name, op in derived.ops.items():
        own = ops.setdefault(name, op)
        if own is not op and not has_facts:
            ops[name] = replace(
                own,
                inputs=tuple(dict.fromkeys((*own.inputs, *op.inputs))),
                outputs=(*op.outputs, *own.outputs[len(op.outputs) :]),
            )

    gradients = {
        tensor
        for tensor in derived.gradients
        if not has_facts or split_tensor(tensor)[0] not in index.ops
    }
    first, second = (derived, index) if has_facts else (index, derived)

    return GraphIndex(
        ops=ops,
        consumers=find_consumers(ops.values()),
        gradients=index.gradients | gradients,
        phases={**first.phases, **second.phases},
        layers={**first.layers, **second.layers},
        evidence={**derived.evidence, **index.evidence},
        early=derived.early,
    )


def _find_batch_size(
    rows: pd.DataFrame, index: GraphIndex, given: int | None
) -> int | None:
    """Return the batch size with which most tensors have the shape of the trace.

    It turns a tensor of the graph with the batch size ``given`` (None if open) into one of the trace.
    """
    votes: Counter[int] = Counter()
    for op, text in zip(rows["op"].astype(str), rows["shape"].astype(str), strict=True):
        shape = read_shape(text) or ()
        for spec in index.ops[op].outputs:
            if (
                not spec.shape
                or len(spec.shape) != len(shape)
                or spec.shape[1:] != shape[1:]
            ):
                continue
            first, size = spec.shape[0], shape[0] if spec.shape[0] < 0 else 0
            if given is not None and first > 0 and shape[0] * given % first == 0:
                size = shape[0] * given // first

            if size:
                votes[size] += 1
                break

    return votes.most_common(1)[0][0] if votes else None


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
        table, structure = derive_graph(table, raw, steps, note)
    if source is None:
        return table, structure, None
    join = join_graph(table, structure, source)

    # The graph of another program states nothing about this one.
    return table, join.index if 2 * join.joined >= join.tensors else structure, join


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


_MOST_BYTES: Final = 1 << 28  # limit of an event file; a graph has some megabytes
_HEAD_BYTES, _TAIL_BYTES = 12, 4
_PARENTS: Final = 4
"""Folders above a trace, ``LOGS/train/plugins/profile/RUN``, in which an event file may lie."""

_MESSAGES: Final = read_schema("events")
_Event: Any = message_class("analyzer.events", _MESSAGES, "Event")
_members = _Event.DESCRIPTOR.file.message_types_by_name
_GraphDef: Any = message_factory.GetMessageClass(_members["GraphDef"])
_RunMetadata: Any = message_factory.GetMessageClass(_members["RunMetadata"])

_RESULTS: Final = {
    name: number
    for names in TEXTS["op_results"].splitlines()
    for number, name in enumerate(names.split())
}
"""Name of a result in a function's body (``node:result:index``) -> number of the op's output."""


def find_event_graph(trace: Path) -> SourceGraph | None:
    """Return the newest graph in the event files near a trace; None if there is none."""
    for folder in list(trace.parents)[: _PARENTS + 1]:
        for file in sorted(folder.glob("events.out.tfevents.*"), reverse=True):
            ops = read_event_ops(file) if file.is_file() else ()
            if ops:
                index = build_graph_index(ops)
                return SourceGraph(f"the graph in {file.name}", TENSORBOARD, index)

    return None


def read_event_ops(path: Path) -> tuple[Op, ...]:
    """Return the ops of the graphs in an event file; empty without a readable graph.

    It is a sequence of records (``record_writer.cc``): length, checksum, ``Event``, checksum. A graph is
    in an event's ``graph_def`` (``tf.summary.graph``), or in the ``RunMetadata`` of a summary
    (``tf.summary.trace_export``), which has the executed graph.
    """
    if path.stat().st_size > _MOST_BYTES:
        return ()
    executed: dict[str, Op] = {}
    traced: dict[str, Op] = {}

    try:
        for content in _records(path.read_bytes()):
            event = _Event.FromString(content)
            if event.graph_def:
                traced.update(_read_ops(_GraphDef.FromString(event.graph_def)))

            for value in event.summary.value:
                is_graph = (
                    value.metadata.plugin_data.plugin_name
                    == b"graph_run_metadata_graph"
                )
                for text in value.tensor.string_val if is_graph else ():
                    for graphs in _RunMetadata.FromString(text).function_graphs:
                        for graph in (*graphs.partition_graphs, graphs.post):
                            executed.update(_read_ops(graph))
    except (DecodeError, OSError):
        return ()

    ops = executed or traced
    counts: Counter[str] = Counter()  # of outputs, by their uses

    for op in ops.values():
        for name, number in map(split_tensor, op.inputs):
            counts[name] = max(counts[name], number + 1)

    unknown = TensorSpec("", None)
    return tuple(
        replace(op, outputs=(unknown,) * counts[op.name]) for op in ops.values()
    )


def _records(content: bytes) -> Iterator[bytes]:
    at = 0
    while at + _HEAD_BYTES <= len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        start = at + _HEAD_BYTES
        if start + size > len(content):  # the last record may be cut off
            return
        yield content[start : start + size]
        at = start + size + _TAIL_BYTES


def _read_ops(graph: Any) -> dict[str, Op]:
    nodes = [
        *graph.node,
        *(node for one in graph.library.function for node in one.node_def),
    ]
    ops = {}

    for node in nodes:
        inputs = list(map(decode_text, node.input))
        ops[decode_text(node.name)] = Op(
            decode_text(node.name),
            decode_text(node.op),
            tuple(_tensor(one) for one in inputs if not one.startswith("^")),
            tuple(one[1:] for one in inputs if one.startswith("^")),
            device=decode_text(node.device),
        )

    return ops


def _tensor(text: str) -> str:
    """Return an input as ``node:output``; in a function's body it is ``node:result:index``."""
    node, *parts = text.split(":")
    if not parts or not parts[-1].isdecimal():
        return f"{node}:0"
    number = (
        int(parts[-1]) if len(parts) == 1 else _RESULTS.get(parts[0], 0) + int(parts[1])
    )

    return f"{node}:{number}"
