"""Ops and tensors as plain data: what capture hands over and everything else reads.

An op is written as TensorFlow writes a node: ``inputs`` name tensors as ``node:output``. Nothing here
needs TensorFlow, so a graph can be saved beside its trace and read anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ITEM_BYTES: Final[dict[str, int]] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "qint8": 1,
    "quint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "string": 24,
}
"""Bytes of one element (``tensorflow/core/framework/types.proto``); of a string its ``TF_TString``,
which holds up to 22 letters and refers to longer ones elsewhere. Resources and variants have no size
that shows in a tensor's buffer."""

PLACE: Final = "analyzer_place"
"""Attribute of an op: its place in the graph before oneDNN's pass moved the nodes that it rewrote."""

MERGED_PLACE: Final = "analyzer_merged_place"
"""The same of the bias' gradient that the pass merged into a filter's."""


LEAST_SHAPES: Final = "analyzer_least_shapes"
"""The same: shapes of its outputs with one element where the data decide and the most was taken."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One output of an op.

    Attributes:
        dtype: TensorFlow's name of the element type, such as ``float32`` or ``resource``.
        shape: Sizes of the axes, -1 for one that is not known; None where the rank is not known.
    """

    dtype: str
    shape: tuple[int, ...] | None

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the elements; None where the shape or the element's size is not known."""
        item_bytes = ITEM_BYTES.get(self.dtype)
        if item_bytes is None or self.shape is None or any(axis < 0 for axis in self.shape):
            return None
        return item_bytes * math.prod(self.shape)

    @property
    def shape_text(self) -> str:
        """The shape as the allocator writes it, such as ``[32,128]``; empty where not known."""
        return "" if self.shape is None else f"[{','.join(map(str, self.shape))}]"


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

    name: str
    type: str
    inputs: tuple[str, ...] = ()
    control_inputs: tuple[str, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    device: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


def split_tensor(tensor: str) -> tuple[str, int]:
    """Return the op's name and the output's index of a tensor named ``node:output``."""
    name, _, index = tensor.rpartition(":")
    return (name, int(index)) if name else (tensor, 0)


def to_json(ops: Iterable[Op]) -> list[dict[str, Any]]:
    """Return the ops as JSON values; what is empty is left out."""
    rows = []
    for op in ops:
        row: dict[str, Any] = {"name": op.name, "type": op.type}
        if op.inputs:
            row["inputs"] = list(op.inputs)
        if op.control_inputs:
            row["control_inputs"] = list(op.control_inputs)
        if op.outputs:
            row["outputs"] = [
                [spec.dtype, None if spec.shape is None else list(spec.shape)]
                for spec in op.outputs
            ]
        for key in ("device", "source"):
            if getattr(op, key):
                row[key] = getattr(op, key)
        if op.attrs:
            row["attrs"] = dict(op.attrs)
        rows.append(row)
    return rows


def from_json(rows: Iterable[Mapping[str, Any]]) -> list[Op]:
    """Return the ops that :func:`to_json` wrote."""
    return [
        Op(
            name=row["name"],
            type=row["type"],
            inputs=tuple(row.get("inputs", ())),
            control_inputs=tuple(row.get("control_inputs", ())),
            outputs=tuple(
                TensorSpec(dtype, None if shape is None else tuple(shape))
                for dtype, shape in row.get("outputs", ())
            ),
            device=row.get("device", ""),
            attrs=row.get("attrs", {}),
            source=row.get("source", ""),
        )
        for row in rows
    ]
