"""``graph.json.gz``: the executed ops and the traced graph, like TensorFlow's nodes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

import msgspec
from msgspec import Meta

from analyzer.model.contract.fields import (
    Bytes,
    Count,
    Index,
    Integer,
    Name,
    Shape,
    check_size,
    tensor_bytes,
)
from analyzer.model.contract.reading import read_record
from analyzer.model.contract.run_note import DAMAGED
from analyzer.model.tables import read_table


def op_types(text: str) -> frozenset[str]:
    """Return the set of op types in a text, separated by white space."""
    return frozenset(text.split())


@cache
def read_op_types(place: str) -> dict[str, dict[str, frozenset[str]]]:
    """Return the tables of a file of the package, with the op types of each row."""
    tables = read_table(place, dict[str, dict[str, str]])
    return {
        name: {key: op_types(text) for key, text in rows.items()}
        for name, rows in tables.items()
    }


GRAPH_VERSION: Final = 1
_MOST_EDGES: Final = 1 << 16  # limit of the inputs or outputs of one op
_Names = Annotated[tuple[Name, ...], Meta(max_length=_MOST_EDGES)]
_MOST_DIGITS: Final = 8  # digits of an output's index in a tensor's name
ARGUMENT_TYPES: Final = op_types("_Arg _DeviceArg")  # op types of a graph's arguments
RESULT_TYPES: Final = op_types("_Retval _DeviceRetval")  # op types of a graph's results

_TYPES: Final = read_op_types("model/graph/graph_op_types.toml")["types"]
CONVOLUTIONS: Final = _TYPES["convolutions"]
PARAMETER_GRADIENTS: Final = _TYPES["parameter_gradients"]

_LEAST: Final = {
    **dict.fromkeys(("_Arg", "_DeviceArg", "Const"), (0, 1)),
    **dict.fromkeys(
        op_types("Enter Exit Identity LoopCond NextIteration RefEnter"),
        (1, 1),
    ),
    "Merge": (1, 2),
    **dict.fromkeys(("RefSwitch", "Switch"), (2, 2)),
}
"""Minimum number of inputs and outputs of op types with special treatment in the executor."""

Number = bool | Integer | float

_Values = Annotated[tuple[Number | Name, ...], Meta(max_length=4096)]


class Tensor(TypedDict, total=False):
    """An attribute that is a tensor, or a function with its name.

    A small tensor has flat ``values`` (numbers that JSON cannot hold as text), a large one of equal
    booleans ``every``.
    """

    function: Name
    dtype: Name
    shape: Shape | None
    values: _Values
    every: bool


class TensorSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One output of an op."""

    dtype: Name  # TensorFlow's name, such as ``float32`` or ``resource``
    shape: Shape | None  # -1 for an unknown axis, None for an unknown rank

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the elements; None if the shape or the element size is unknown."""
        return tensor_bytes(self.dtype, self.shape)

    @property
    def known_shape(self) -> tuple[int, ...] | None:
        """The shape; None unless it is fully known."""
        return (
            None if self.shape is None or min(self.shape, default=0) < 0 else self.shape
        )

    @property
    def shape_text(self) -> str:
        """The shape in the allocator's notation, such as ``[32,128]``; empty if unknown."""
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
"""The value of an attribute; dtypes by name, shapes as lists."""


_ATTRIBUTE_TYPES: Final[dict[Any, str]] = {
    str: "data_format padding frame_name rnn_mode",
    Count: "N parallel_iterations",
    Index: "index",
    list[Bytes]: "dilations strides explicit_paddings",
    list[str]: "fused_ops",
    list[Shape | None]: "analyzer_least_shapes",
}
_KnownAttributes: Final = msgspec.defstruct(
    "_KnownAttributes",
    [
        (name, kind, None)
        for kind, names in _ATTRIBUTE_TYPES.items()
        for name in op_types(names)
    ],
)
"""The attributes that the package reads, with the types of TensorFlow's op registry."""


@dataclass(frozen=True, slots=True)
class Op:
    """One node of the executed graph, in which nested functions are inlined."""

    name: Name  # unique in the graph; the allocator writes it as ``tf_op``
    type: Name
    inputs: _Names = ()  # as ``node:output``, in order
    control_inputs: _Names = ()  # ops that it waits for
    outputs: Annotated[tuple[TensorSpec, ...], Meta(max_length=_MOST_EDGES)] = ()
    device: Name = ""  # empty if not placed
    attrs: Mapping[str, Any] = field(default_factory=dict)  # as in ``Attribute``
    source: Name = ""  # ``file:line`` of the user's code


class TracedOp(msgspec.Struct, frozen=True, array_like=True):
    """An op of the traced graph: its inputs and the functions that it calls."""

    name: Name
    inputs: tuple[Name, ...] = ()
    calls: tuple[Name, ...] = ()


class TracedGraph(msgspec.Struct, frozen=True):
    """The traced graph of the step (``function`` is empty) or of one of its functions."""

    function: Name
    ops: tuple[TracedOp, ...]


class GraphFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``graph.json.gz``."""

    schema_version: int = GRAPH_VERSION
    ops: tuple[Op, ...]
    inside: tuple[Op, ...] = ()  # of functions that run as one op
    traced: tuple[TracedGraph, ...] = ()


def read_graph_file(path: Path) -> GraphFile:
    """Read the graph of a run folder, or raise a TraceError."""
    return read_record(
        path,
        GraphFile,
        version=GRAPH_VERSION,
        hint=DAMAGED,
        check=_check,
    )


def encode_graph(graph: GraphFile) -> bytes:
    """Return a graph as JSON text that ``read_graph_file`` reads."""
    plain = msgspec.to_builtins(graph)

    for name in ("ops", "inside"):
        plain[name] = [
            {key: value for key, value in op.items() if value} for op in plain[name]
        ]

    return json.dumps(plain).encode()


def check_tensor(tensor: str) -> None:
    """Raise a ValueError if a tensor is not named ``node:output`` or ``node``."""
    _, colon, output = tensor.rpartition(":")
    if colon and not (output.isdecimal() and len(output) < _MOST_DIGITS):
        raise ValueError(f"{tensor[:80]!r} is no tensor of an op")


def _check(graph: GraphFile) -> None:
    if len({op.name for op in graph.ops}) < len(graph.ops):
        raise ValueError("two ops have the same name")

    for op in (*graph.ops, *graph.inside):
        try:
            _check_op(op)
        except ValueError as error:
            raise ValueError(f"op {op.name[:80]!r}: {error}") from None

    for name in (name for one in graph.traced for op in one.ops for name in op.inputs):
        check_tensor(name)


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
        msgspec.convert(op.attrs, dict[str, Attribute])
        msgspec.convert(op.attrs, _KnownAttributes)


LEAST_SHAPES: Final = "analyzer_least_shapes"
"""Attribute of an op: the shapes of its outputs with one element, if data decide the shapes and the
upper bound was taken."""


def split_tensor(tensor: str) -> tuple[str, int]:
    """Return op name and output index of a tensor named ``node:output``."""
    name, _, index = tensor.rpartition(":")
    return (name, int(index)) if name else (tensor, 0)
