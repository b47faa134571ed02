"""The graph of a trace without a capture note.

Ops come from the names of allocations and kernels, their outputs from the allocations, and edges from
three sources: the op before a buffer's free is its last user, a copy names its source and reader, and an
op of the gradient tape contains the name of its forward op.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.choice import Choice
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.ops import op_types, split_tensor
from analyzer.model.graph.phases import ScopeTable, is_in_gradient_scope
from analyzer.tracing.derive.op_sequence import RECEIVED, OpSequence, find_copies
from analyzer.tracing.parse.xplane import RawTrace

_OPTIMIZER: Final = re.compile(
    r"(adam|adamw|adamax|nadam|sgd|rmsprop|adagrad|adadelta|adafactor|ftrl|lion|lamb|muon"
    r"|lossscaleoptimizer|loss_scale_optimizer)(_\d+)?",
    re.IGNORECASE,
)
"""Name scope of Keras' optimizers."""
_APPLIES: Final = re.compile(r"Resource(Sparse)?Apply\w+")
_SUFFIX: Final = re.compile(r"(_\d+)?(-\d+-.*-LayoutOptimizer)?$")
_PARAMETER_GRADIENTS: Final = op_types(
    """
    BiasAddGrad Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter
    """
)
"""Op types whose result is always the gradient of a parameter."""
_MOST_OUTPUTS: Final = 64
"""Limit of the outputs of one op; a loop's buffers are its outputs in turn."""


class EdgeSource(Choice):
    """The evidence of an edge."""

    CAPTURE = "capture"
    FREE = "free"
    COPY = "copy"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class TraceGraph:
    """A graph that is derived from a trace.

    Attributes:
        ops: The ops, in the order in which they began.
        gradients: Tensors that are gradients of parameters.
        scopes: Name scopes of layers and optimizers.
        tensors: Row of the allocations table -> the tensor that the buffer holds.
        copies: Row -> op that copied the buffer's content from the host.
        users: Row -> the op before its free.
        edges: Input (tensor or op) and op of each edge -> its source.
    """

    ops: tuple[Op, ...]
    gradients: frozenset[str]
    scopes: ScopeTable
    tensors: Mapping[int, str] = field(default_factory=dict)
    copies: Mapping[int, str] = field(default_factory=dict)
    users: Mapping[int, str] = field(default_factory=dict)
    edges: Mapping[tuple[str, str], EdgeSource] = field(default_factory=dict)


def derive_graph(table: pd.DataFrame, raw: RawTrace) -> TraceGraph:
    """Return the graph of the functions that ran in a trace.

    Args:
        table: Table with the columns of ``ALLOCATIONS`` of the trace's events.
        raw: The trace.
    """
    building = _Building(table, raw)
    return building.graph()


def name_tensors(table: pd.DataFrame, graph: TraceGraph) -> pd.DataFrame:
    """Return the allocations with the tensors of a graph, and copies named after their op."""
    tensors, ops = (table[name].astype(object).to_numpy().copy() for name in ("tensor", "op"))
    for row, tensor in graph.tensors.items():
        tensors[row] = tensor
    for row, name in graph.copies.items():
        ops[row] = name
    return table.assign(tensor=pd.Categorical(tensors), op=pd.Categorical(ops))


class _Building:
    """A graph while it is derived."""

    def __init__(self, table: pd.DataFrame, raw: RawTrace) -> None:
        self._raw = raw
        sequence = OpSequence(raw)
        self._first = sequence.first_times()
        copies = find_copies(table, raw)
        names = table["op"].astype(object).to_numpy().copy()
        for row, (name, _, _) in copies.items():
            names[row] = name
        self._names = names
        in_function = (table["run_id"] != 0).to_numpy() & (names != "") & (names != RECEIVED)
        in_function[list(copies)] = True
        self._rows = np.flatnonzero(in_function & (table["born"] >= 0).to_numpy())
        self._table = table.iloc[self._rows]
        self._copies = copies
        self._copy_names = {name for name, _, _ in copies.values()}
        self._users = self._find_users(sequence)
        self._outputs: dict[str, list[TensorSpec]] = {}
        self._tensors: dict[int, str] = {}
        self._inputs: dict[str, list[str]] = {}
        self._edges: dict[tuple[str, str], EdgeSource] = {}

    def _find_users(self, sequence: OpSequence) -> dict[int, str]:
        """Return row -> the op before its free, for buffers of functions that are freed."""
        events = self._raw.events
        dies = self._table["dies"].to_numpy()
        freed = np.flatnonzero(dies < len(events))
        thread, time = (events[name].to_numpy()[dies[freed]] for name in ("thread", "time_ps"))
        users = sequence.before(thread.astype(np.int64), time)
        return {
            int(self._rows[at]): user
            for at, user in zip(freed.tolist(), users, strict=True)
            if user
        }

    def graph(self) -> TraceGraph:
        """Return the graph."""
        self._add_outputs()
        for row, user in self._users.items():
            tensor = self._tensors.get(row)
            if tensor is not None and split_tensor(tensor)[0] != user:
                self._connect(tensor, user, EdgeSource.FREE)
        for row, (_, source, reader) in self._copies.items():
            self._connect(f"{source}:0", self._names[row], EdgeSource.COPY)
            self._outputs.setdefault(source, [TensorSpec("", None)])
            if reader:
                self._connect(self._tensors.get(row, ""), reader, EdgeSource.COPY)
        known = {*self._outputs, *self._inputs, *self._raw.op_types}
        names = sorted(
            {*self._outputs, *self._inputs}, key=lambda name: self._first.get(name, 1 << 62)
        )
        ops = tuple(self._op(name, known) for name in names)
        return TraceGraph(
            ops=ops,
            gradients=frozenset(self._find_gradients()),
            scopes=_find_scopes(ops, known),
            tensors=self._tensors,
            copies={row: one[0] for row, one in self._copies.items()},
            users=self._users,
            edges=self._edges,
        )

    def _add_outputs(self) -> None:
        """Find the tensors of the buffers: outputs outlive the op that requested them."""
        columns = (self._table[name].astype(object) for name in ("region", "dtype", "shape"))
        threads = self._raw.events["thread"].to_numpy()[self._table["born"].to_numpy()]
        order = np.lexsort((self._table["born"].to_numpy(), threads))
        facts = list(zip(*(column.tolist() for column in columns), strict=True))
        burst: tuple[int, str] = (-1, "")
        used = 0
        for at in order.tolist():
            row = int(self._rows[at])
            name, (region, dtype, shape) = str(self._names[row]), facts[at]
            if (int(threads[at]), name) != burst:
                burst, used = (int(threads[at]), name), 0
            is_scratch = region != "output" and self._users.get(row) == name
            outputs = self._outputs.setdefault(name, [])
            if is_scratch or used >= _MOST_OUTPUTS:
                continue
            spec = TensorSpec(dtype, _read_shape(shape))
            if used == len(outputs):
                outputs.append(spec)
            self._tensors[row] = f"{name}:{used}"
            used += 1

    def _connect(self, tensor: str, op: str, source: EdgeSource) -> None:
        if not tensor or (tensor, op) in self._edges:
            return
        self._edges[tensor, op] = source
        self._inputs.setdefault(op, []).append(tensor)

    def _op(self, name: str, known: set[str]) -> Op:
        forward = _forward_op(name, known)
        controls = (forward,) if forward and forward in self._outputs else ()
        if controls:
            self._edges[forward, name] = EdgeSource.NAME
        return Op(
            name=name,
            type=self._type(name),
            inputs=tuple(self._inputs.get(name, ())),
            control_inputs=controls,
            outputs=tuple(self._outputs.get(name, ())),
        )

    def _type(self, name: str) -> str:
        """Return an op's type by its annotation, else by its name if TensorFlow chose the name."""
        if name in self._copy_names:
            return "_Recv"
        known = self._raw.op_types.get(name)
        last = _SUFFIX.sub("", name.rpartition("/")[2])
        if "-LayoutOptimizer" in name and "Transpose" in name:
            return known or "Transpose"
        return known or (last if last[:1].isupper() else "")

    def _find_gradients(self) -> set[str]:
        """Return the tape's tensors that an optimizer uses, and results of gradient kernels."""
        found = set()
        for row, tensor in self._tensors.items():
            name = split_tensor(tensor)[0]
            is_sum = self._type(name) == "AddN"
            if not (is_in_gradient_scope(name) or is_sum):
                continue
            user = self._users.get(row, "")
            is_updated = bool(user) and self._is_update(user)
            is_kernel = not is_sum and self._type(name) in _PARAMETER_GRADIENTS
            if is_updated or (is_kernel and tensor.endswith(":0")):
                found.add(tensor)
        return found

    def _is_update(self, name: str) -> bool:
        return is_in_optimizer(name) or is_apply(self._type(name))


def is_apply(op_type: str) -> bool:
    """Say whether an op type updates a variable by an optimizer's rule."""
    return bool(_APPLIES.fullmatch(op_type))


def is_in_optimizer(name: str) -> bool:
    """Say whether an op's name scope is one of Keras' optimizers."""
    return any(_OPTIMIZER.fullmatch(part) for part in name.split("/")[:-1][:3])


def _forward_op(name: str, known: set[str]) -> str:
    """Return the forward op that the name of an op of the tape contains; empty for none."""
    if not is_in_gradient_scope(name):
        return ""
    scope = _plain_scope(name)
    last, own = scope.rpartition("/")[2], name.rpartition("/")[2]
    is_prefix = bool(last) and own.lower().startswith(re.sub(r"_\d+$", "", last).lower())
    return scope if scope in known or is_prefix else ""


def _plain_scope(name: str) -> str:
    parts = name.split("/")[:-1]
    return "/".join(part for part in parts if part not in ("gradient_tape", "gradients"))


def _find_scopes(ops: Sequence[Op], known: set[str]) -> ScopeTable:
    """Return the owners of the ops' scopes: an optimizer, else the layer that the scope names."""
    owners = {}
    for op in ops:
        scope = _plain_scope(op.name)
        if is_in_optimizer(op.name):
            root = next(part for part in scope.split("/") if _OPTIMIZER.fullmatch(part))
            owners[root] = ("optimizer", root)
        elif scope:
            forward = _forward_op(op.name, known)
            owners.setdefault(scope, ("layer", scope.rpartition("/")[0] if forward else scope))
    return ScopeTable(owners)


def _read_shape(text: str) -> tuple[int, ...] | None:
    """Return the axes of a shape such as ``[3,4]``; None if unknown."""
    axes = text.removeprefix("[").removesuffix("]")
    if axes == text:
        return None
    parts = axes.split(",") if axes else []
    is_known = all(part.isascii() and part.isdigit() and len(part) < 16 for part in parts)
    return tuple(int(part) for part in parts) if is_known else None
