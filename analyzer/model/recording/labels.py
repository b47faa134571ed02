"""The attribution columns of the allocations table, and the labels of variables."""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.contract.fields import Category
from analyzer.model.contract.run_note import (
    ACCUMULATOR_ROLE,
    STATE_ROLE,
    Op,
    RunFile,
    TensorSpec,
    op_types,
    split_tensor,
)
from analyzer.model.graph.buffer_sharing import ALIAS_OPS
from analyzer.model.graph.graph_index import GraphIndex

Mask = npt.NDArray[np.bool_]

BATCH_ROLE = "batch or example of a data set"
ELEMENT_ROLE = "held by the data set"  # made by a function of its pipeline
COPIED_BATCH = f"{BATCH_ROLE}, copied to the device"
COPIED_INPUT = "step input, copied to the device"

# Suffix of the path of a variable that a strategy mirrors on another device.
_REPLICA = re.compile(r"/replica_\d+$")


_TEXTS = ("op_type", "layer", "source", "tensor", "variable", "category", "role")


# A buffer that holds a variable: its row, the variable's number, and the instant from which it holds
# the variable (None for its birth).
Holding = tuple[int, int, int | None]


class Labels:
    """Columns of texts with an entry for each buffer; empty if unknown."""

    def __init__(self, count: int) -> None:
        """Start with ``count`` unattributed buffers."""
        self.category = np.full(count, Category.UNATTRIBUTED.value, object)
        self.op_type, self.layer, self.source, self.tensor, self.variable, self.role = (
            np.full(count, "", object) for _ in range(6)
        )

        self._turns_at = np.zeros(count, np.int64)
        self._turns = np.zeros(count, bool)
        # of rows for which the trace may have none
        self.specs: dict[int, TensorSpec] = {}

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
        return bool(self.category[row] == Category.UNATTRIBUTED)

    def open_rows(self) -> Mask:
        """Return which buffers have no category, shape ``(n,)``."""
        return np.asarray(self.category == Category.UNATTRIBUTED, bool)

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
                dtype=pd.Categorical(dtype),
                shape=pd.Categorical(shape),
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
        if variable.category == Category.PARAMETER
    }

    for row, number, since in holdings:
        variable = note.variables[number]
        category, role = roles.get(number, (variable.category, variable.role))
        labels.set(row, category, role=role, turns_at=since)
        labels.variable[row] = variable.path

        if variable.shape is not None:
            labels.specs[row] = TensorSpec(variable.dtype, variable.shape)

        layer, _, name = paths[number].rpartition("/")

        if variable.category != Category.PARAMETER:
            # adam/conv1_kernel_momentum: the longest prefix
            while name and name not in layers:
                name = name.rpartition("_")[0]

            layer = layers.get(name, "")

        labels.layer[row] = layer


_ADDS = frozenset({"Add", "AddV2", "AddN"})
# Ops between a gradient and an accumulator: a scale or a change of dtype.
_SCALES = op_types("Mul RealDiv DivNoNan Cast Neg Select SelectV2")
_OF_ROWS = "UnsortedSegmentSum"  # makes a tensor of a lookup's gradient and its indices
_READS = ("ReadVariableOp", "ResourceGather")


def find_roles_of_state(
    note: RunFile, structure: GraphIndex
) -> dict[int, tuple[str, str]]:
    """Return category and role of the note's plain variables, by their index in it.

    A variable to which the graph adds gradients is their sum. One that only the update uses, or one with
    the shape of a parameter that is not trainable, is a moving average or momentum.
    """
    parameter = Category.PARAMETER.value
    state = (Category.OPTIMIZER_STATE.value, "state with a parameter's shape")
    shapes = {one.shape for one in note.variables if one.category == parameter}
    arguments = [op for op in structure.ops.values() if op.type == "_Arg"]
    handles = {op.attrs.get("index"): op.name for op in arguments}

    roles = {}

    for number, variable in enumerate(note.variables):
        if variable.role != STATE_ROLE:
            continue

        handle = handles.get(variable.argument)
        used = structure.users_behind(handle, ALIAS_OPS) if handle else []

        # Also through control flow; of a function that XLA compiles its ops, not the call.
        users = [
            op
            for op in used
            if op.type not in ALIAS_OPS and not op.attrs.get("_XlaMustCompile")
        ]

        if any(_accumulates(structure, op, users) for op in users):
            roles[number] = (Category.GRADIENT.value, ACCUMULATOR_ROLE)
        elif variable.shape in shapes - {()}:
            roles[number] = state

    return roles


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
    has_own_value = len(terms) < len(total.inputs)

    return has_own_value and any(_is_gradient(structure, one) for one in terms)


def _is_gradient(structure: GraphIndex, tensor: str, depth: int = 4) -> bool:
    """Say whether ``tensor`` is a gradient of a parameter, possibly scaled."""
    if tensor in structure.gradients:
        return True

    op = structure.ops.get(split_tensor(tensor)[0])
    if op is None or depth == 0:
        return False

    if op.type == _OF_ROWS:
        return _is_gradient(structure, op.inputs[0], depth - 1)

    if op.type not in _SCALES | ALIAS_OPS:
        return False

    gradients = [one for one in op.inputs if _is_gradient(structure, one, depth - 1)]

    return len(gradients) == 1  # a product of two gradients is no gradient
