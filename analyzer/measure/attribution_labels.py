"""The attribution columns of the allocations table while they are being filled."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analyzer.contract.categories import Category
from analyzer.contract.graph_note import TensorSpec


class Labels:
    """One list a column, one entry a buffer.

    Attributes:
        op_type, layer, source, tensor, variable: Texts, empty where unknown.
        specs: Element type and shape of what rows hold, for those where neither is written.
    """

    def __init__(self, count: int) -> None:
        """Start with ``count`` buffers, all unattributed."""
        self._category: list[str] = [Category.UNATTRIBUTED.value] * count
        self._role: list[str] = [""] * count
        self._turns_at: list[int | None] = [None] * count
        self.op_type: list[str] = [""] * count
        self.layer: list[str] = [""] * count
        self.source: list[str] = [""] * count
        self.tensor: list[str] = [""] * count
        self.variable: list[str] = [""] * count
        self.specs: dict[int, TensorSpec] = {}

    def set(
        self, row: int, category: Category | str, *, role: str, turns_at: int | None = None
    ) -> None:
        """Give a buffer its category.

        Args:
            row: Row of the allocations table.
            category: What the buffer is for.
            role: Finer than the category, in words.
            turns_at: Instant from which on it is; None from birth.
        """
        self._category[row] = Category(category).value
        self._role[row] = role
        self._turns_at[row] = turns_at

    def is_open(self, row: int) -> bool:
        """Say whether the buffer has no category yet."""
        return self._category[row] == Category.UNATTRIBUTED.value

    def open_rows(self) -> Iterator[int]:
        """Return the buffers without a category."""
        return (row for row in range(len(self._category)) if self.is_open(row))

    def apply(self, allocations: pd.DataFrame) -> pd.DataFrame:
        """Return ``allocations`` with the columns filled."""
        return allocations.assign(
            **self._specified(allocations),
            op_type=pd.Categorical(self.op_type),
            layer=pd.Categorical(self.layer),
            source=pd.Categorical(self.source),
            tensor=pd.Categorical(self.tensor),
            variable=pd.Categorical(self.variable),
            category=pd.Categorical(self._category),
            role=pd.Categorical(self._role),
            turns_at=pd.array(self._turns_at, dtype="Int64"),
        )

    def _specified(self, allocations: pd.DataFrame) -> dict[str, pd.Categorical]:
        if not self.specs:
            return {}
        dtype, shape = (allocations[key].astype(object).tolist() for key in ("dtype", "shape"))
        for row, spec in self.specs.items():
            if not shape[row]:
                dtype[row], shape[row] = spec.dtype, spec.shape_text
        return {"dtype": pd.Categorical(dtype), "shape": pd.Categorical(shape)}
