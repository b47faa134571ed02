"""``graph.json.gz``: the executed ops and the traced graph, like TensorFlow's nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from analyzer.model.contract.fields import (
    Name,
    Shape,
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
    found = {}

    for name, rows in read_table(place, dict[str, dict[str, str]]).items():
        found[name] = {key: op_types(text) for key, text in rows.items()}

    return found


GRAPH_VERSION = 1
_MOST_EDGES = 1 << 16  # limit of the inputs or outputs of one op
_Names = Annotated[tuple[Name, ...], Meta(max_length=_MOST_EDGES)]
_MOST_DIGITS = 8  # digits of an output's index in a tensor's name
ARGUMENT_TYPES = op_types("_Arg _DeviceArg")  # op types of a graph's arguments
CONSTANTS = op_types("Const HostConst")
RESULT_TYPES = op_types("_Retval _DeviceRetval")  # op types of a graph's results

_TYPES = read_op_types("model/graph/graph_op_types.toml")["types"]
CONVOLUTIONS = _TYPES["convolutions"]
PARAMETER_GRADIENTS = _TYPES["parameter_gradients"]


class TensorSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One output of an op."""

    dtype: Name  # TensorFlow's name, such as ``float32`` or ``resource``
    shape: Shape | None  # -1 for an unknown axis, None for an unknown rank

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the elements; None if the shape or the element size is unknown."""
        return tensor_bytes(self.dtype, self.shape)

    @property
    def full_shape(self) -> tuple[int, ...] | None:
        """The shape; None unless it is fully known."""
        if self.shape is None or min(self.shape, default=0) < 0:
            return None

        return self.shape

    def of_size(self, size_bytes: int) -> TensorSpec | None:
        """Return the spec of a buffer, which determines one unknown axis; None if its size differs."""
        shape = self.shape or ()
        if shape.count(-1) != 1:
            return self if self.size_bytes == size_bytes else None

        row_bytes = tensor_bytes(self.dtype, tuple(map(abs, shape)))
        if not row_bytes or size_bytes % row_bytes:
            return None

        full = (size_bytes // row_bytes if axis < 0 else axis for axis in shape)
        return TensorSpec(self.dtype, tuple(full))

    @property
    def shape_text(self) -> str:
        """The shape in the allocator's notation, such as ``[32,128]``; empty if unknown."""
        if self.shape is None:
            return ""

        return f"[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Op:
    """One node of the executed graph, in which nested functions are inlined."""

    name: Name  # unique in the graph; the allocator writes it as ``tf_op``
    type: Name
    inputs: _Names = ()  # as ``node:output``, in order
    control_inputs: _Names = ()  # ops that it waits for
    outputs: Annotated[tuple[TensorSpec, ...], Meta(max_length=_MOST_EDGES)] = ()
    device: Name = ""  # empty if not placed
    # dtypes by name, shapes as lists; a tensor has ``dtype``, ``shape`` and flat ``values``, or
    # ``every`` if all are equal
    attrs: Mapping[str, Any] = field(default_factory=dict)
    source: Name = ""  # ``file:line`` of the user's code
    phase: Literal["forward", "backward", "update", ""] = ""  # empty if unknown


class GraphFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``graph.json.gz``."""

    schema_version: int = GRAPH_VERSION
    ops: tuple[Op, ...]
    inside: tuple[Op, ...] = ()  # of functions that run as one op


def read_graph_file(path: Path) -> GraphFile:
    """Read the graph of a run folder, or raise a TraceError."""
    return read_record(
        path,
        GraphFile,
        version=GRAPH_VERSION,
        hint=DAMAGED,
    )


def encode_graph(graph: GraphFile) -> bytes:
    """Return a graph as JSON text that ``read_graph_file`` reads."""
    plain = msgspec.to_builtins(graph)

    for op in (*plain["ops"], *plain["inside"]):
        for key in [key for key, value in op.items() if not value]:
            del op[key]

    return json.dumps(plain).encode()


def check_tensor(tensor: str) -> None:
    """Raise a ValueError if a tensor is not named ``node:output`` or ``node``."""
    _, colon, output = tensor.rpartition(":")
    if colon and not (output.isdecimal() and len(output) < _MOST_DIGITS):
        raise ValueError(f"{tensor[:80]!r} is no tensor of an op")


def split_tensor(tensor: str) -> tuple[str, int]:
    """Return op name and output index of a tensor named ``node:output``."""
    name, _, index = tensor.rpartition(":")
    return (name, int(index)) if name else (tensor, 0)
