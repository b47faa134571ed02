"""The attribution columns of the allocations table, and the labels of variables.

A user-defined step may keep gradient accumulators, moving averages or momentum in plain variables. The
graph shows the values that are written into them.
"""

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import Op, TensorSpec, split_tensor
from analyzer.model.contract.run_note import RunFile
from analyzer.model.graph.buffer_sharing import ALIAS_OPS
from analyzer.model.graph.graph_index import GraphIndex, Phase, reach

Mask: TypeAlias = npt.NDArray[np.bool_]

BATCH_ROLE: Final = "batch of a data set"
COPIED_BATCH: Final = f"{BATCH_ROLE}, copied to the device"
COPIED_INPUT: Final = "step input, copied to the device"
_REPLICA: Final = re.compile(r"/replica_\d+$")
"""Suffix of the path of a variable that a strategy mirrors on another device."""


_TEXTS: Final = ("op_type", "layer", "source", "tensor", "variable", "category", "role")


Holding: TypeAlias = tuple[int, int, int | None]
"""A buffer that holds a variable: its row, the variable's number, and the instant from which it holds
the variable (None for its birth)."""


class Labels:
    """Columns of texts with an entry for each buffer; empty if unknown."""

    def __init__(self, count: int) -> None:
        """Start with ``count`` unattributed buffers."""
        self.category = np.full(count, Category.UNATTRIBUTED.value, object)
        self.op_type, self.layer, self.source = (
            np.full(count, "", object) for _ in range(3)
        )
        self.tensor, self.variable, self.role = (
            np.full(count, "", object) for _ in range(3)
        )
        self._turns_at, self._turns = np.zeros(count, np.int64), np.zeros(count, bool)
        self.specs: dict[
            int, TensorSpec
        ] = {}  # of rows for which the trace may have none

    def set(
        self,
        row: int,
        category: Category | str,
        *,
        role: str,
        turns_at: int | None = None,
    ) -> None:
        """Set the category of one buffer, from the instant ``turns_at`` (None: from its birth)."""
        self.category[row] = Category(category).value
        self.role[row] = role
        self._turns[row] = turns_at is not None
        self._turns_at[row] = turns_at or 0

    def fill(self, rows: Mask, category: Category, role: str) -> None:
        """Set the category of the buffers in a mask, shape ``(n,)``."""
        self.category[rows], self.role[rows] = category.value, role

    def is_open(self, row: int) -> bool:
        """Say whether the buffer has no category yet."""
        return bool(self.category[row] == Category.UNATTRIBUTED.value)

    def open_rows(self) -> Mask:
        """Return which buffers have no category, shape ``(n,)``."""
        return np.asarray(self.category == Category.UNATTRIBUTED.value, bool)

    def apply(self, allocations: pd.DataFrame) -> pd.DataFrame:
        """Return ``allocations`` with these columns."""
        if self.specs:
            dtype, shape = (
                allocations[key].astype(object).tolist() for key in ("dtype", "shape")
            )
            for row, spec in self.specs.items():
                if not shape[row]:
                    dtype[row], shape[row] = spec.dtype, spec.shape_text

            allocations = allocations.assign(
                dtype=pd.Categorical(dtype), shape=pd.Categorical(shape)
            )

        turns_at = pd.arrays.IntegerArray(self._turns_at, ~self._turns)
        columns = {name: pd.Categorical(getattr(self, name)) for name in _TEXTS}
        return allocations.assign(**columns, turns_at=turns_at)


def label_variables(
    labels: Labels,
    note: RunFile,
    holdings: Sequence[Holding],
    roles: dict[int, tuple[str, str]],
) -> None:
    """Label the buffers that hold variables; ``roles`` are those that the graph shows instead."""
    paths = [_REPLICA.sub("", variable.path) for variable in note.variables]
    # The layer of a parameter by the name that its slot variables contain.
    layers = {
        path.replace("/", "_"): path.rpartition("/")[0]
        for path, variable in zip(paths, note.variables, strict=True)
        if variable.category == Category.PARAMETER.value
    }

    for row, number, since in holdings:
        variable = note.variables[number]
        category, role = roles.get(number, (variable.category, variable.role))
        labels.set(row, category, role=role, turns_at=since)
        labels.variable[row] = variable.path
        if variable.shape is not None:
            labels.specs[row] = TensorSpec(variable.dtype, variable.shape)
        layer, _, name = paths[number].rpartition("/")

        if variable.category != Category.PARAMETER.value:
            while (
                name and name not in layers
            ):  # adam/conv1_kernel_momentum: the longest prefix
                name = name.rpartition("_")[0]

            layer = layers.get(name, "")

        labels.layer[row] = layer


_ADDS: Final = frozenset({"Add", "AddV2", "AddN"})
# Ops between a gradient and an accumulator: a scale or a change of dtype.
_SCALES: Final = frozenset(
    {"Mul", "RealDiv", "DivNoNan", "Cast", "Neg", "Select", "SelectV2"}
)
_READS: Final = frozenset({"ReadVariableOp", "ResourceGather"})


def find_roles_of_state(
    note: RunFile, structure: GraphIndex
) -> dict[int, tuple[str, str]]:
    """Return category and role of the note's plain state variables, by their index in it."""
    handles = find_handles(structure)
    users = {
        number: _find_users(structure, handles[variable.argument])
        for number, variable in enumerate(note.variables)
        if variable.role == "state" and variable.argument in handles
    }
    writers = {
        number: [op for op in found if not op.type.startswith(tuple(_READS))]
        for number, found in users.items()
    }
    accumulators = {
        number
        for number, found in writers.items()
        if any(_accumulates(structure, op, users[number]) for op in found)
    }
    sums = {
        op.name for number in accumulators for op in users[number] if op.type in _READS
    }
    roles = {}

    for number, found in writers.items():
        if number in accumulators:
            roles[number] = Category.GRADIENT.value, "gradient accumulator"
        elif note.variables[number].shape != ():
            is_updated = any(_is_of_update(structure, op, sums) for op in found)
            roles[number] = (
                (Category.OPTIMIZER_STATE.value, "optimizer state")
                if is_updated
                else (Category.PARAMETER.value, "not trainable")
            )

    return roles


def find_handles(structure: GraphIndex) -> dict[object, str]:
    """Return the argument ops by index."""
    return {
        op.attrs.get("index"): op.name
        for op in structure.ops.values()
        if op.type == "_Arg"
    }


def _is_of_update(structure: GraphIndex, writer: Op, sums: set[str]) -> bool:
    """Say whether ``writer`` writes a value that depends on gradients or their sums.

    One op writes an accumulator and another one reads it: no edge connects gradients and their sum.
    """
    if structure.phases[writer.name] is not Phase.FORWARD:
        return True

    def find_sources(name: str) -> set[str]:
        op = structure.ops.get(name)
        return (
            set() if op is None else {split_tensor(tensor)[0] for tensor in op.inputs}
        )

    sources = reach(find_sources(writer.name), find_sources) if sums else set()
    return not sums.isdisjoint(sources)


def _find_users(structure: GraphIndex, handle: str) -> list[Op]:
    """Return the ops that use the handle, also through control flow.

    For a function that XLA compiles, these are its ops, not the call.
    """

    def pass_on(name: str) -> list[str]:
        return structure.users_of(name) if structure.ops[name].type in ALIAS_OPS else []

    users = (structure.ops[name] for name in reach(structure.users_of(handle), pass_on))

    return [
        op
        for op in users
        if not (op.type in ALIAS_OPS or op.attrs.get("_XlaMustCompile"))
    ]


def _accumulates(structure: GraphIndex, op: Op, users: list[Op]) -> bool:
    """Say whether ``op`` adds a gradient to the variable."""
    if len(op.inputs) < 2:
        return False
    if op.type == "AssignAddVariableOp":
        return _is_gradient(structure, op.inputs[1])
    total = structure.ops.get(split_tensor(op.inputs[1])[0])
    if op.type != "AssignVariableOp" or total is None or total.type not in _ADDS:
        return False
    reads = {user.name for user in users if user.type in _READS}
    terms = [tensor for tensor in total.inputs if split_tensor(tensor)[0] not in reads]

    return len(terms) < len(total.inputs) and any(
        _is_gradient(structure, t) for t in terms
    )


def _is_gradient(structure: GraphIndex, tensor: str, depth: int = 4) -> bool:
    """Say whether ``tensor`` is a gradient of a parameter, possibly scaled."""
    if tensor in structure.gradients:
        return True
    op = structure.ops.get(split_tensor(tensor)[0])
    if op is None or depth == 0 or op.type not in _SCALES | ALIAS_OPS:
        return False
    found = [
        source for source in op.inputs if _is_gradient(structure, source, depth - 1)
    ]

    return len(found) == 1  # a product of two gradients is no gradient
