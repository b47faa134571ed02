"""``graph.json.gz``: the ops that run and the graph as it was traced.

Version 1. Ops are written as TensorFlow writes nodes; what is empty is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

import msgspec
from msgspec import Meta

from analyzer.model.contract.element_sizes import check_size, tensor_bytes
from analyzer.model.contract.fields import Bytes, Count, Index, Integer, Name, Shape, Word
from analyzer.model.contract.reading import read_record
from analyzer.model.contract.run_note import DAMAGED, check_requests

GRAPH_VERSION: Final = 1  # of the note's layout
_MOST_EDGES: Final = 1 << 16
"""Inputs or outputs of one op at most."""

_Names = Annotated[tuple[Name, ...], Meta(max_length=_MOST_EDGES)]

_MOST_DIGITS: Final = 8  # of an output's number in a tensor's name
ARGUMENT_TYPES: Final = frozenset({"_Arg", "_DeviceArg"})
"""Types of the ops that stand for what a graph is given."""

RESULT_TYPES: Final = frozenset({"_Retval", "_DeviceRetval"})
"""Types of the ops that stand for what a graph returns."""

FRAME_TYPES: Final = ARGUMENT_TYPES | RESULT_TYPES | {"Identity", "NoOp"}
"""Types of the ops around the work of a graph that is one call."""

_LEAST: Final = {
    "_Arg": (0, 1),
    "_DeviceArg": (0, 1),
    "Const": (0, 1),
    "Enter": (1, 1),
    "Exit": (1, 1),
    "Identity": (1, 1),
    "LoopCond": (1, 1),
    "Merge": (1, 2),
    "NextIteration": (1, 1),
    "RefEnter": (1, 1),
    "RefSwitch": (2, 2),
    "Switch": (2, 2),
}
"""Least inputs and outputs of the types that the executor itself treats apart."""

Number = bool | Integer | float

_Values = Annotated[tuple[Number | Word, ...], Meta(max_length=4096)]


class Tensor(TypedDict, total=False):
    """An attribute that is a tensor or a function.

    ``dtype``, ``shape`` and, where they are few, the flat ``values`` (a number that JSON cannot hold
    is written as text), or ``every`` for a large tensor of equal booleans; ``function`` names one.
    """

    function: Name
    dtype: Word
    shape: Shape | None
    values: _Values
    every: bool


class TensorSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One output of an op.

    Attributes:
        dtype: TensorFlow's name of the element type, such as ``float32`` or ``resource``.
        shape: Sizes of the axes, -1 for one that is not known; None where the rank is not known.
    """

    dtype: Word
    shape: Shape | None

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the elements; None where the shape or the element's size is not known."""
        return tensor_bytes(self.dtype, self.shape)

    @property
    def shape_text(self) -> str:
        """The shape as the allocator writes it, such as ``[32,128]``; empty where not known."""
        return "" if self.shape is None else f"[{','.join(map(str, self.shape))}]"


Attribute = (
    bool
    | Integer
    | float
    | str
    | Tensor
    | list[bool | Integer | float | str | Shape | Tensor | None]
    | None
)
"""A plain value of an attribute; dtypes by name, shapes as lists."""


class KnownAttributes(TypedDict, total=False):
    """The attributes that rules read, with the type that TensorFlow's op registry gives them."""

    N: Count
    SrcT: str
    DstT: str
    axis: Integer
    begin_mask: Integer
    end_mask: Integer
    shrink_axis_mask: Integer
    data_format: str
    dilations: list[Bytes]
    strides: list[Bytes]
    ksize: list[Bytes]
    explicit_paddings: list[Bytes]
    padding: str
    equation: str
    frame_name: Name
    fused_ops: list[str]
    index: Index
    parallel_iterations: Count
    rnn_mode: str
    analyzer_place: Index
    analyzer_merged_place: Index
    analyzer_least_shapes: list[Shape | None]


_ATTRIBUTES: Final = dict[str, Attribute]


@dataclass(frozen=True, slots=True)
class Op:
    """One node of the graph that the executor runs (nested functions already inlined).

    Attributes:
        name: Unique in the graph; what the allocator writes as ``tf_op``.
        type: Such as ``Conv2D``.
        inputs: Tensors it consumes, as ``node:output``, in order.
        control_inputs: Ops it waits for without consuming anything of theirs.
        outputs: Its tensors, in order.
        device: TensorFlow's device string; empty where not placed.
        attrs: Plain values: numbers, strings, lists, dtypes by name; ``{"function": name}`` for a
            function, ``{"dtype", "shape", "values"}`` for a tensor (values only where few; in their
            place ``every`` for a large one of equal booleans).
        source: ``file:line`` of the user's code; empty where none.
    """

    name: Name
    type: Word
    inputs: _Names = ()
    control_inputs: _Names = ()
    outputs: Annotated[tuple[TensorSpec, ...], Meta(max_length=_MOST_EDGES)] = ()
    device: Name = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    source: Name = ""


class TracedOp(msgspec.Struct, frozen=True, array_like=True):
    """An op as it was traced: who feeds it, and which functions it calls."""

    name: Name
    inputs: tuple[Name, ...] = ()
    calls: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """The step's graph (``function`` is empty) or that of a function in it."""

    function: Name
    ops: tuple[TracedOp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFile:
    """What ``graph.json.gz`` holds.

    Attributes:
        schema_version: Which form of it.
        ops: The ops that run.
        inside: The ops of functions that run as one op, as they were traced.
        compiling: For each compiled function, what lowering it asks for: (number of a buffer, its
            bytes) where it is born, (number, 0) where it dies.
        traced: The graph as it was traced, with the functions in it.
    """

    schema_version: int = GRAPH_VERSION
    ops: tuple[Op, ...]
    inside: tuple[Op, ...] = ()
    compiling: tuple[tuple[tuple[Index, Bytes], ...], ...] = ()
    traced: tuple[TracedGraph, ...] = ()


def read_graph_file(path: Path) -> GraphFile:
    """Read the graph beside a note.

    Raises:
        TraceError: it is missing or damaged, or a newer version wrote it.
    """
    return read_record(path, GraphFile, version=GRAPH_VERSION, hint=DAMAGED, check=_check)


def encode_graph(graph: GraphFile) -> bytes:
    """Return a graph as JSON text that ``read_graph_file`` reads."""
    content = {
        "schema_version": graph.schema_version,
        "ops": [_row(op) for op in graph.ops],
        "inside": [_row(op) for op in graph.inside],
        "compiling": graph.compiling,
        "traced": [
            {"function": one.function, "ops": [[op.name, op.inputs, op.calls] for op in one.ops]}
            for one in graph.traced
        ],
    }
    return json.dumps(content).encode()


def _row(op: Op) -> dict[str, Any]:
    row = {
        "name": op.name,
        "type": op.type,
        "inputs": op.inputs,
        "control_inputs": op.control_inputs,
        "outputs": [(spec.dtype, spec.shape) for spec in op.outputs],
        "device": op.device,
        "source": op.source,
        "attrs": dict(op.attrs),
    }
    return {key: value for key, value in row.items() if value or key in ("name", "type")}


def check_tensor(tensor: str) -> None:
    """Check that a tensor is named ``node:output``, or by its node alone.

    Raises:
        ValueError: it is not.
    """
    _, colon, output = tensor.rpartition(":")
    if colon and not (output.isdecimal() and len(output) < _MOST_DIGITS):
        raise ValueError(f"{tensor[:80]!r} names no output of an op")


def _check(graph: GraphFile) -> None:
    if len({op.name for op in graph.ops}) < len(graph.ops):
        raise ValueError("two ops have one name")
    for op in (*graph.ops, *graph.inside):
        try:
            _check_op(op)
        except ValueError as error:
            raise ValueError(f"op {op.name[:80]!r}: {error}") from None
    for name in (name for one in graph.traced for op in one.ops for name in op.inputs):
        check_tensor(name)
    for events in graph.compiling:
        check_requests(events)


def _check_op(op: Op) -> None:
    for spec in op.outputs:
        check_size(spec.dtype, spec.shape)
    for tensor in op.inputs:
        check_tensor(tensor)
    least_inputs, least_outputs = _LEAST.get(op.type, (0, 0))
    if len(op.inputs) < least_inputs or len(op.outputs) < least_outputs:
        raise ValueError(f"too few inputs or outputs for the type {op.type}")
    if op.type in ARGUMENT_TYPES and "index" not in op.attrs:
        raise ValueError("an argument without its index")
    if op.attrs:
        msgspec.convert(op.attrs, _ATTRIBUTES)
        msgspec.convert(op.attrs, KnownAttributes)
