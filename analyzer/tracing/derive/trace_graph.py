"""The graph of a trace without a capture note.

Ops come from the names of allocations and kernels, their outputs from the allocations, and edges from
three sources: the op before a buffer's free is its last user, a copy names its source and reader, and an
op of the gradient tape contains the name of its forward op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.choice import Choice
from analyzer.model.contract.graph_note import Op, TensorSpec, split_tensor
from analyzer.model.graph.phases import Phase, ScopeTable, is_in_gradient_scope
from analyzer.model.recording.records import Step
from analyzer.model.recording.timeline import HOST_ALLOCATORS
from analyzer.tracing.derive.op_names import (
    FOLDED,
    GUARDS_BYTES,
    LAYOUT,
    PARAMETER_GRADIENTS,
    OpTypes,
    find_forward_op,
    find_gradient_kernel,
    find_scopes,
    is_apply,
    is_in_optimizer,
    plain_scope,
    read_shape,
)
from analyzer.tracing.derive.op_sequence import RECEIVED, OpSequence, find_copies
from analyzer.tracing.parse.xplane import RawTrace

_CALL: Final = "StatefulPartitionedCall/"  # prefix of the ops of an inlined function
_MOST_OUTPUTS: Final = 64
"""Limit of the outputs of one op; a loop's buffers are its outputs in turn."""


class EdgeSource(Choice):
    """The evidence of an edge: see the module; ``order`` is only the time of a buffer's free."""

    FREE = "free"
    ORDER = "order"
    COPY = "copy"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class TraceGraph:
    """A graph that is derived from a trace."""

    ops: tuple[Op, ...]  # the ops, in the order in which they began
    gradients: frozenset[str]
    scopes: ScopeTable
    # row of the allocations table -> the tensor that the buffer holds
    tensors: Mapping[int, str] = field(default_factory=dict)
    # row -> op, for copies from the host and eager ops
    names: Mapping[int, str] = field(default_factory=dict)
    phases: Mapping[str, Phase] = field(default_factory=dict)
    # input (tensor or op) and op of each edge -> its source
    edges: Mapping[tuple[str, str], EdgeSource] = field(default_factory=dict)


def derive_graph(
    table: pd.DataFrame, raw: RawTrace, steps: Sequence[Step], *, with_eager: bool
) -> TraceGraph:
    """Return the graph of the functions and eager steps that ran in a trace.

    Args:
        with_eager: Whether eager ops in steps belong to it; their order shows the phases.
    """
    return _Building(table, raw, steps, with_eager=with_eager).graph()


def name_tensors(table: pd.DataFrame, graph: TraceGraph) -> pd.DataFrame:
    """Return the allocations with the tensors of a graph, and its names of ops."""
    tensors, ops = (table[name].astype(object).to_numpy().copy() for name in ("tensor", "op"))
    for row, tensor in graph.tensors.items():
        tensors[row] = tensor
    for row, name in graph.names.items():
        ops[row] = name
    return table.assign(tensor=pd.Categorical(tensors), op=pd.Categorical(ops))


class _Building:
    """A graph while it is derived."""

    def __init__(
        self, table: pd.DataFrame, raw: RawTrace, steps: Sequence[Step], *, with_eager: bool
    ) -> None:
        self._raw = raw
        copies = find_copies(table, raw)
        names = table["op"].astype(object).to_numpy().copy()
        named = (names != "") & (names != RECEIVED) & (table["born"] >= 0).to_numpy()
        in_function = (table["run_id"] != 0).to_numpy() & named & _is_in_graph(table, names)
        in_function &= np.array([FOLDED not in name for name in names], bool)
        is_eager = named & ~in_function & table["step"].notna().to_numpy() & with_eager
        self._starts = np.array([step.start_ps or 0 for step in steps], np.int64)
        eager = {*names[is_eager], *(op for op in raw.op_types if is_apply(op) and is_eager.any())}
        sequence = OpSequence(raw, frozenset(eager), self._starts)
        self._first = sequence.first_times()
        self._names = names
        self._name_eager(sequence, np.flatnonzero(is_eager), table)
        for row, (name, _, _) in copies.items():
            names[row] = name
        in_function[list(copies)] = True
        self._rows = np.flatnonzero(in_function | is_eager)
        self._table = table.iloc[self._rows]
        self._copies = copies
        self._copy_names = {name for name, _, _ in copies.values()}
        self._users = self._find_users(sequence)
        self._scratch = self._find_scratch()
        self._outputs: dict[str, list[TensorSpec]] = {}
        is_raw = (self._table["region"] == "") & (self._table["requested_bytes"] >= GUARDS_BYTES)
        is_raw &= ~self._table["allocator"].isin(list(HOST_ALLOCATORS))
        guarded = names[self._rows[is_raw.to_numpy()]].tolist()
        self._gradients: frozenset[str] = frozenset()
        self._scope_start: dict[str, int] = {}
        self._batches: dict[tuple[str, int], set[int]] = {}  # by scope and last axis
        self._sizes: dict[str, set[int]] = {}
        sizes = self._table["requested_bytes"].tolist()
        for row, size in zip(self._rows.tolist(), sizes, strict=True):
            self._sizes.setdefault(str(names[row]), set()).add(size)
        self._types = OpTypes(raw.op_types, self._sizes, guarded, self._copy_names)
        self._tensors: dict[int, str] = {}
        self._inputs: dict[str, list[str]] = {}
        self._edges: dict[tuple[str, str], EdgeSource] = {}

    def _name_eager(
        self, sequence: OpSequence, rows: npt.NDArray[np.int64], table: pd.DataFrame
    ) -> None:
        born = table["born"].to_numpy()[rows]
        events = self._raw.events
        times, threads = (events[name].to_numpy()[born] for name in ("time_ps", "thread"))
        found = sequence.before(threads.astype(np.int64), times + 1)
        for row, (name, _) in zip(rows.tolist(), found, strict=True):
            self._names[row] = name

    def _find_users(self, sequence: OpSequence) -> dict[int, tuple[str, bool]]:
        """Return row -> the op before its free, for buffers of functions that are freed."""
        events = self._raw.events
        dies = self._table["dies"].to_numpy()
        freed = np.flatnonzero(dies < len(events))
        thread, time = (events[name].to_numpy()[dies[freed]] for name in ("thread", "time_ps"))
        users = sequence.before(thread.astype(np.int64), time)
        return {
            int(self._rows[at]): user
            for at, user in zip(freed.tolist(), users, strict=True)
            if user[0]
        }

    def _find_scratch(self) -> set[int]:
        """Return the rows that the requesting op frees itself.

        TensorFlow 2.9 and later record the op that frees, if it does so itself (``AddTraceMe`` in
        ``bfc_allocator.cc``).
        """
        events = self._raw.events
        ops = events["op"].astype(object).to_numpy()
        is_noted = bool(((events["kind"] < 0).to_numpy() & (ops != "")).any())
        dies = np.minimum(self._table["dies"].to_numpy(), len(ops) - 1)
        return {
            row
            for row, op in zip(self._rows.tolist(), ops[dies], strict=True)
            if self._users.get(row) == (self._names[row], True)
            and (op == self._names[row] or not is_noted)
        }

    def graph(self) -> TraceGraph:
        """Return the graph."""
        self._add_outputs()
        for row, (user, is_own) in self._users.items():
            tensor = self._tensors.get(row)
            if tensor is not None and split_tensor(tensor)[0] != user:
                self._connect(tensor, user, EdgeSource.FREE if is_own else EdgeSource.ORDER)
        for row, (_, source, reader) in self._copies.items():
            self._connect(f"{source}:0", self._names[row], EdgeSource.COPY)
            self._outputs.setdefault(source, [TensorSpec("", None)])
            if reader:
                self._connect(self._tensors.get(row, ""), reader, EdgeSource.COPY)
        for name, outputs in self._outputs.items():
            scope, first = name.rpartition("/")[0], self._first.get(name, 0)
            self._scope_start[scope] = min(first, self._scope_start.get(scope, first))
            for spec in outputs:
                if spec.shape is not None and len(spec.shape) == 2:
                    self._batches.setdefault((scope, spec.shape[1]), set()).add(spec.shape[0])
        known = {*self._outputs, *self._inputs, *self._raw.op_types}
        updates = {name for name in self._first if is_apply(self._types.of(name))}
        names = sorted(
            {*self._outputs, *self._inputs, *updates},
            key=lambda name: self._first.get(name, 1 << 62),
        )
        ops = tuple(self._op(name, known) for name in names)
        self._gradients = frozenset(self._find_gradients())
        return TraceGraph(
            ops=ops,
            gradients=self._gradients,
            scopes=find_scopes(ops, known),
            tensors=self._tensors,
            names={
                row: str(self._names[row])
                for row in self._rows.tolist()
                if row in self._copies or "#" in self._names[row]
            },
            phases=self._find_phases(names, known),
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
            outputs = self._outputs.setdefault(name, [])
            if (region != "output" and row in self._scratch) or used >= _MOST_OUTPUTS:
                continue
            spec = TensorSpec(dtype, read_shape(shape))
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
        forward = find_forward_op(name, known)
        controls = (forward,) if forward and forward in self._outputs else ()
        if controls:
            self._edges[forward, name] = EdgeSource.NAME
        return Op(
            name=name,
            type=self._types.of(name),
            inputs=tuple(self._inputs.get(name, ())),
            control_inputs=controls,
            outputs=tuple(self._outputs.get(name, ())),
        )

    def _find_phases(self, names: Sequence[str], known: set[str]) -> dict[str, Phase]:
        """Return the phase of each op, by its name, else by its order and the tensors around it."""
        phases = {name: self._phase(name, known) for name in names}
        begin = min(
            (
                self._first.get(name, 0)
                for name, phase in phases.items()
                if phase is Phase.BACKWARD and find_gradient_kernel(name)
            ),
            default=1 << 62,
        )
        readers: dict[str, set[Phase]] = {}
        for tensor, reader in self._edges:
            if tensor not in phases and reader in phases:
                readers.setdefault(split_tensor(tensor)[0], set()).add(phases[reader])
        for name in names:
            if phases[name] is not Phase.FORWARD or is_in_gradient_scope(name):
                continue
            if self._gradients.intersection(self._inputs.get(name, ())):
                phases[name] = Phase.UPDATE  # such as clipping
            elif "/" not in name.removeprefix(_CALL) and self._first.get(name, 0) > begin:
                # The tape adds gradients outside its scope, as does the layout optimizer.
                makers = {split_tensor(tensor)[0] for tensor in self._inputs.get(name, ())}
                around = {*readers.get(name, ()), *(phases.get(maker) for maker in makers)}
                is_backward = Phase.BACKWARD in around
                phases[name] = Phase.BACKWARD if is_backward else Phase.FORWARD
        return phases

    def _phase(self, name: str, known: set[str]) -> Phase:
        if "#" in name:
            return self._eager_phase(name)
        if self._is_update(name):
            return Phase.UPDATE
        is_backward = is_in_gradient_scope(name) or f"{name}:0" in self._gradients
        return Phase.BACKWARD if is_backward and not self._is_early(name, known) else Phase.FORWARD

    def _eager_phase(self, name: str) -> Phase:
        """Return the phase of an eager op by the order of the step's ops."""
        time = self._first.get(name, 0)
        step = int(np.searchsorted(self._starts, time, side="right"))
        backward, update = self._eager_bounds.get(step, (1 << 62, 1 << 62))
        if time >= update:
            return Phase.UPDATE
        return Phase.BACKWARD if time >= backward else Phase.FORWARD

    @cached_property
    def _eager_bounds(self) -> dict[int, tuple[int, int]]:
        """Start of the backward pass and of the update by step."""
        bounds: dict[int, tuple[int, int]] = {}
        for name, time in self._first.items():
            if "#" not in name:
                continue
            step = int(np.searchsorted(self._starts, time, side="right"))
            backward, update = bounds.get(step, (1 << 62, 1 << 62))
            op_type = self._types.of(name)
            if is_apply(op_type):
                update = min(update, time)
            elif find_gradient_kernel(op_type) == op_type != "":
                backward = min(backward, time)
            bounds[step] = backward, update
        return bounds

    def _is_early(self, name: str, known: set[str]) -> bool:
        """Say whether the layout optimizer named a forward op's copy after a backward op."""
        forward = find_forward_op(name, known) if LAYOUT in name else ""
        first = self._scope_start.get(forward.rpartition("/")[0], 0) if forward else 0
        return self._first.get(name, 0) < first

    def _find_gradients(self) -> set[str]:
        """Return the tape's tensors that an optimizer uses, and results of gradient kernels."""
        found = set()
        sizes = dict(zip(self._rows.tolist(), self._table["requested_bytes"].tolist(), strict=True))
        for row, tensor in self._tensors.items():
            name, index = split_tensor(tensor)
            op_type = self._types.of(name)
            is_backward = is_in_gradient_scope(name) or (
                "#" in name and self._eager_phase(name) is Phase.BACKWARD
            )
            if not (is_backward or op_type == "AddN"):
                continue
            user, is_own = self._users.get(row, ("", False))
            # An op that requests memory for each gradient requests as much as the gradient.
            spec = self._outputs[name][index]
            is_eager = "#" in name
            outlives = is_eager and spec.shape != () and self._is_used_by_update(row)
            fits = user not in self._sizes or sizes[row] in self._sizes[user]
            is_product = op_type == "MatMul" and not is_eager
            if (
                (op_type in PARAMETER_GRADIENTS and not index)
                or (is_own and fits and self._is_update(user))
                or outlives
                or (is_product and self._is_of_matrix(name, spec.shape))
            ):
                found.add(tensor)
        return found

    def _is_used_by_update(self, row: int) -> bool:
        """Say whether an eager step's buffer is alive when the step's update begins."""
        times = self._raw.events["time_ps"].to_numpy()
        born, dies = (int(self._table[name].loc[row]) for name in ("born", "dies"))
        step = int(np.searchsorted(self._starts, times[born], side="right"))
        update = self._eager_bounds.get(step, (0, 1 << 62))[1]
        end = times[dies] if dies < len(times) else times[-1]
        return bool(times[born] < update < end)

    def _is_of_matrix(self, name: str, shape: tuple[int, ...] | None) -> bool:
        """Say whether a product of the tape is the gradient of a layer's matrix.

        The layer's result is ``[batch, units]``. The gradient of the matrix is ``[inputs, units]``, the
        other one ``[batch, inputs]``.
        """
        if shape is None or len(shape) != 2:
            return False
        scope = plain_scope(name).rpartition("/")[0]
        return bool(self._batches.get((scope, shape[1]), set()) - {shape[0]})

    def _is_update(self, name: str) -> bool:
        return is_in_optimizer(name) or is_apply(self._types.of(name))


def _is_in_graph(table: pd.DataFrame, names: np.ndarray) -> np.ndarray:
    """Return which buffers a function requested, and no eager op with a run of its own."""
    scoped = pd.Series(["/" in name for name in names], index=table.index)
    ops = pd.Series(names, index=table.index).groupby(table["run_id"]).transform("nunique")
    found: np.ndarray = (scoped.groupby(table["run_id"]).transform("any") | (ops > 2)).to_numpy()
    return found
