"""The graph that TensorBoard's callback or ``tf.summary`` wrote next to a profile.

``events.out.tfevents.*`` is a sequence of records (``record_writer.cc``): length, checksum, ``Event``,
checksum. A graph is in an event's ``graph_def`` (``tf.summary.graph``), or in the ``RunMetadata`` of a
summary (``tf.summary.trace_export``), which has the executed graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from analyzer.model.contract.graph_note import Op, TensorSpec, split_tensor
from analyzer.model.graph.graph_index import build_graph_index
from analyzer.tracing.parse.protobuf import decode_text, message_class, read_schema
from analyzer.tracing.sources.graph_join import TENSORBOARD, SourceGraph

_MOST_BYTES: Final = 1 << 28  # limit of an event file; a graph has some megabytes
_HEAD_BYTES, _TAIL_BYTES = 12, 4
_PARENTS: Final = 4
"""Folders above a trace, ``LOGS/train/plugins/profile/RUN``, in which an event file may lie."""

_MESSAGES: Final = read_schema(
    """
    Node name=1:bytes op=2:bytes input=3:bytes[] device=4:bytes
    Function node_def=3:Node[]
    Library function=1:Function[]
    GraphDef node=1:Node[] library=2:Library
    FunctionGraphs partition_graphs=1:GraphDef[] post=3:GraphDef
    RunMetadata function_graphs=4:FunctionGraphs[]
    Tensor string_val=8:bytes[]
    Plugin plugin_name=1:bytes
    Metadata plugin_data=1:Plugin
    Value tensor=8:Tensor metadata=9:Metadata
    Summary value=1:Value[]
    Event graph_def=4:bytes summary=5:Summary
    """
)
_Event: Any = message_class("analyzer.events", _MESSAGES, "Event")
_members = _Event.DESCRIPTOR.file.message_types_by_name
_GraphDef: Any = message_factory.GetMessageClass(_members["GraphDef"])
_RunMetadata: Any = message_factory.GetMessageClass(_members["RunMetadata"])

_RESULTS: Final = {
    name: number
    for names in (
        "y batch_mean batch_variance reserve_space_1 reserve_space_2 reserve_space_3",
        "x_backprop scale_backprop offset_backprop",
        "loss backprop",
        "values indices",
    )
    for number, name in enumerate(names.split())
}
"""Name of a result in a function's body (``node:result:index``) -> number of the op's output, for op
types with several results; another name has the index itself."""


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
    """Return the ops of the graphs in an event file; empty without a readable graph."""
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
                is_graph = value.metadata.plugin_data.plugin_name == b"graph_run_metadata_graph"
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
    return tuple(replace(op, outputs=(unknown,) * counts[op.name]) for op in ops.values())


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
    nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
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
    number = int(parts[-1]) if len(parts) == 1 else _RESULTS.get(parts[0], 0) + int(parts[1])
    return f"{node}:{number}"
