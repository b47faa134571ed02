"""The attribution columns of the allocations table, and the labels of variables."""

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import TensorSpec
from analyzer.model.contract.run_note import RunFile

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
        self._turns_at = np.zeros(count, np.int64)
        self._turns = np.zeros(count, bool)
        self.specs: dict[
            int,
            TensorSpec,
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


def find_roles_of_state(note: RunFile) -> dict[int, tuple[str, str]]:
    """Return category and role of the note's plain state variables, by their index in it.

    A user-defined step may keep sums of gradients, moving averages or momentum in plain variables,
    which have the shapes of parameters.
    """
    parameter = Category.PARAMETER.value
    shapes = {one.shape for one in note.variables if one.category == parameter}
    roles = {}

    for number, variable in enumerate(note.variables):
        if variable.role != "state" or variable.shape == ():
            continue

        if variable.shape in shapes:
            kind = (Category.OPTIMIZER_STATE.value, "state with a parameter's shape")
        else:
            kind = (parameter, "not trainable")

        roles[number] = kind

    return roles
