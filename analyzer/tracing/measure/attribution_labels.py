"""The attribution columns of the allocations table while they are filled."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import TensorSpec
from analyzer.model.recording.schema import TextColumn

Mask: TypeAlias = npt.NDArray[np.bool_]


class Labels:
    """Columns of texts with an entry for each buffer.

    Attributes:
        op_type, layer, source, tensor, variable: Empty if unknown.
        specs: Dtype and shape of rows for which the trace has neither.
    """

    def __init__(self, count: int) -> None:
        """Start with ``count`` unattributed buffers."""
        self._category = TextColumn(count, Category.UNATTRIBUTED.value)
        self._role = TextColumn(count)
        self._turns_at = np.zeros(count, np.int64)
        self._turns = np.zeros(count, bool)
        self.op_type = TextColumn(count)
        self.layer = TextColumn(count)
        self.source = TextColumn(count)
        self.tensor = TextColumn(count)
        self.variable = TextColumn(count)
        self.specs: dict[int, TensorSpec] = {}

    def set(
        self, row: int, category: Category | str, *, role: str, turns_at: int | None = None
    ) -> None:
        """Set the category of one buffer.

        Args:
            row: Row of the allocations table.
            category: The category.
            role: More specific than the category.
            turns_at: Instant from which it is valid; None for the birth.
        """
        self._category[row] = Category(category).value
        self._role[row] = role
        self._turns[row] = turns_at is not None
        self._turns_at[row] = turns_at or 0

    def fill(self, rows: Mask, category: Category, role: str) -> None:
        """Set the category of the buffers in a mask, shape ``(n,)``."""
        self._category.fill(rows, category.value)
        self._role.fill(rows, role)

    def is_open(self, row: int) -> bool:
        """Say whether the buffer has no category yet."""
        return self._category[row] == Category.UNATTRIBUTED.value

    def open_rows(self) -> Mask:
        """Return which buffers have no category, shape ``(n,)``."""
        return self._category.equal(Category.UNATTRIBUTED.value)

    def apply(self, allocations: pd.DataFrame) -> pd.DataFrame:
        """Return ``allocations`` with these columns."""
        return allocations.assign(
            **self._specified(allocations),
            op_type=self.op_type.category(),
            layer=self.layer.category(),
            source=self.source.category(),
            tensor=self.tensor.category(),
            variable=self.variable.category(),
            category=self._category.category(),
            role=self._role.category(),
            turns_at=pd.arrays.IntegerArray(self._turns_at, ~self._turns),
        )

    def _specified(self, allocations: pd.DataFrame) -> dict[str, pd.Categorical]:
        if not self.specs:
            return {}
        dtype, shape = (allocations[key].astype(object).tolist() for key in ("dtype", "shape"))
        for row, spec in self.specs.items():
            if not shape[row]:
                dtype[row], shape[row] = spec.dtype, spec.shape_text
        return {"dtype": pd.Categorical(dtype), "shape": pd.Categorical(shape)}
